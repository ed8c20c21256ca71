"""A desk under many analysts, for long, and under kill -9.

python bench/desk.py think [--analysts 200] [--think 10] [--seconds 60]   ask, get the answer, think, ask again
python bench/desk.py burst [--analysts 200]                               all ask in the same instant
python bench/desk.py hour [--minutes 60] [--rate 2]                       few questions a second: memory
python bench/desk.py kills [--kills 100]                                  kill -9 of the server and its workers

Prints one JSON object. Of the answers, those `with_shared_charge` and those `without_charge` must be 0. A
question is small: a count by city of 5,000 people. The tick is 1 s, as of a new desk. `late_seconds` is how
long after its tick an answer was there: what the desk takes apart from the tick. CPU is that of the server: on
a busy machine it says more than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from argon2 import PasswordHasher

from sfumato.desk import accounts
from sfumato.desk.accounts import Account, Role, add_person
from sfumato.desk.desk import Desk
from sfumato.desk.example import make_example
from sfumato.desk.grants import Wanted
from sfumato.desk.jobs import DONE, Job, one_of_team, start
from sfumato.ledger import Ledger
from sfumato.randomness import public_generator

SQL = "SELECT city, COUNT(*) FROM people GROUP BY city"
TICK = 1.0  # as the example has it


class Server:
    """A desk in a process of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "sfumato", "serve", str(self.place), "--port", "0", "--json"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["address"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


Load = Callable[["Server", list[str]], Awaitable[list["Reply"]]]


def make_desk(folder: Path, *, analysts: int, teams: int) -> tuple[Path, list[str]]:
    """An example with many analysts, in teams that share an allocation; their tokens."""
    accounts._HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)  # everybody comes with a token
    place = folder / "desk.toml"
    make_example(place)
    desk = Desk.open(place)
    tokens = []
    for number in range(analysts):
        team = f"team {number % teams}"
        wanted = Wanted(team=team, purpose="questions", epsilon=2.0 / teams) if number < teams else None
        tokens.append(add_person(desk, f"analyst {number}", role="analyst", team=team, wanted=wanted).token)
    desk.close()
    return place, tokens


@dataclass(frozen=True)
class Reply:
    """What came of a question: its status, how long it took, how long after its tick it came, and its entry."""

    status: int
    seconds: float
    late: float
    entry: Any


async def question(client: httpx.AsyncClient, token: str) -> Reply:
    begun = time.time()
    try:
        answer = await client.post(
            "/api/v1/tables/people/query",
            json={"sql": SQL, "epsilon": 0.0002},
            headers={"authorization": f"Bearer {token}"},
        )
    except httpx.TransportError:  # hung up on: killed, or a client that was slower than the server waits
        return Reply(0, time.time() - begun, 0.0, None)
    ended = time.time()
    due = (math.floor(begun / TICK) + 2) * TICK
    return Reply(answer.status_code, ended - begun, ended - due, answer.json().get("entry"))


def client_of(server: Server, tokens: list[str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=600, limits=httpx.Limits(max_connections=len(tokens)))


async def thinking(server: Server, tokens: list[str], *, think: float, seconds: float) -> list[Reply]:
    """Everybody asks, waits for the answer, thinks for a random time of this mean, and asks again."""
    draw, found = public_generator(1), []
    until = time.monotonic() + seconds

    async def one(token: str, client: httpx.AsyncClient) -> None:
        while True:
            await asyncio.sleep(float(draw.exponential(think)))
            if time.monotonic() > until:
                return
            found.append(await question(client, token))

    async with client_of(server, tokens) as client:
        await asyncio.gather(*(one(token, client) for token in tokens))
    return found


async def burst(server: Server, tokens: list[str]) -> list[Reply]:
    """Everybody asks in the same instant, just after a tick."""
    async with client_of(server, tokens) as client:
        await asyncio.sleep(TICK - time.time() % TICK)
        return list(await asyncio.gather(*(question(client, token) for token in tokens)))


def compared(place: Path, entries: list[Any]) -> dict[str, int]:
    """Answers against the ledger, to the entry."""
    with Ledger.open(place.parent / "people.ledger.db") as ledger:
        ledger.verify()
        charges = {charge.head.sequence: charge.head.hash for charge in ledger.charges()}
    return {
        "answers": len(entries),
        "charges": len(charges),
        "with_shared_charge": len(entries) - len({entry["sequence"] for entry in entries}),
        "without_charge": sum(charges.get(entry["sequence"]) != entry["hash"] for entry in entries),
    }


def loaded(folder: Path, load: Load, *, analysts: int) -> dict[str, Any]:
    """What a load costs, how late its answers are, and whether they and the ledger agree."""
    place, tokens = make_desk(folder, analysts=analysts, teams=20)
    server = Server(place)
    try:
        warm = asyncio.run(burst(server, tokens[:2]))  # until the table is open
        first, memory = server.cpu(), server.memory()
        found = asyncio.run(load(server, tokens))
        cpu, after = server.cpu() - first, server.memory()
    finally:
        server.kill()
    given = [one for one in found if one.status == 200]
    late = sorted(one.late for one in given)
    taken = sorted(one.seconds for one in given)
    return {
        "analysts": analysts,
        "questions": len(found),
        "statuses": {str(code): count for code, count in Counter(one.status for one in found).items()},
        "server_cpu_seconds_each": cpu / len(found),
        "late_seconds": {"p50": statistics.median(late), "p95": late[int(0.95 * len(late))], "most": late[-1]},
        "seconds": {"p50": statistics.median(taken), "p95": taken[int(0.95 * len(taken))]},
        "slowed_kinds": slowed(place),
        "memory_mb": [memory, after],
        **compared(place, [one.entry for one in [*warm, *found] if one.status == 200]),
    }


def slowed(place: Path) -> dict[str, int]:
    desk = Desk.open(place)
    found = desk.pace.all()
    desk.close()
    return found


def hour(folder: Path, *, minutes: float, rate: float) -> dict[str, Any]:
    """Memory while few questions a second come; the slope over the second half."""
    place, tokens = make_desk(folder, analysts=20, teams=20)
    server = Server(place)
    samples: list[tuple[float, float]] = []

    async def ask() -> list[Reply]:
        found: list[Reply] = []
        async with client_of(server, tokens) as client:
            begun = time.monotonic()
            while (passed := time.monotonic() - begun) < 60 * minutes:
                asked = (
                    question(client, tokens[(len(found) + i) % 20]) for i in range(max(1, round(2 * rate)))
                )
                found += await asyncio.gather(*asked)
                if not samples or passed > samples[-1][0] + 20:
                    samples.append((passed, server.memory()))
                    print(json.dumps({"minute": round(passed / 60, 1), "mb": samples[-1][1]}), file=sys.stderr)
        return found

    try:
        found = asyncio.run(ask())
    finally:
        server.kill()
    half = samples[len(samples) // 2 :]
    slope = statistics.linear_regression([at for at, _ in half], [mb for _, mb in half]).slope
    return {
        "minutes": minutes,
        "questions": len(found),
        "statuses": {str(code): count for code, count in Counter(one.status for one in found).items()},
        "memory_mb": [samples[0][1], half[0][1], samples[-1][1]],
        "slope_of_the_second_half_mb_an_hour": slope * 3600,
        **compared(place, [one.entry for one in found if one.status == 200]),
    }


def killed(folder: Path, *, kills: int, minutes: float) -> dict[str, Any]:
    """kill -9 of the server, and with it its workers, at random moments, while questions and jobs go on.

    A server takes seconds to start; after so many minutes there are no more kills.
    """
    place, tokens = make_desk(folder, analysts=20, teams=20)
    desk = Desk.open(place)
    with desk.database.read() as connection:
        number = connection.exec_driver_sql("SELECT id FROM accounts WHERE name = 'ann'").scalar()
    ann = Account(id=int(number or 0), name="ann", role=Role.ANALYST, team="care")
    jobs = [
        start(desk, ann, desk.dataset("people"), Job(kind="train", target="ill", epsilon=0.05), None)
        for _ in range(4)
    ]
    moments, entries = public_generator(2).uniform(0.0, 3.0, kills), []
    server, until, done = Server(place), time.monotonic() + 60 * minutes, 0
    for moment in moments:
        if time.monotonic() > until:
            break
        done += 1
        entries += asyncio.run(_until(server, tokens, float(moment)))
        server.kill()
        server.start()
    while any(one_of_team(desk, "care", job).state in ("queued", "running") for job in jobs):
        time.sleep(1)
    server.kill()
    with Ledger.open(place.parent / "people.ledger.db") as ledger:
        charged = [sum(f"desk job {job}:" in one.purpose for one in ledger.charges()) for job in jobs]
    ended = [one_of_team(desk, "care", job) for job in jobs]
    desk.close()
    return {
        "kills": done,
        "jobs": {
            "states": [job.state for job in ended],
            "tries": [job.tries for job in ended],
            "charges": charged,
        },
        "jobs_done": sum(job.state == DONE for job in ended),
        **compared(place, entries),
    }


async def _until(server: Server, tokens: list[str], seconds: float) -> list[Any]:
    """The entries of what was answered before the time was over, which begins with the first answer."""
    found: list[Any] = []
    begun = asyncio.Event()

    async def ask(client: httpx.AsyncClient, token: str) -> None:
        while (reply := await question(client, token)).status == 200:
            found.append(reply.entry)
            begun.set()

    async with client_of(server, tokens) as client:
        tasks = [asyncio.create_task(ask(client, token)) for token in tokens[:4]]
        await begun.wait()
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=("think", "burst", "hour", "kills"))
    parser.add_argument("--analysts", type=int, default=200)
    parser.add_argument(
        "--think", type=float, default=10.0, help="seconds between an answer and a question, mean"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2.0, help="questions a second")
    parser.add_argument("--kills", type=int, default=100)
    words = parser.parse_args()
    answer: dict[str, Any] = {"machine": platform.platform(), "cores": os.cpu_count(), "load": words.load}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if words.load == "kills":
            answer |= killed(folder, kills=words.kills, minutes=words.minutes)
        elif words.load == "hour":
            answer |= hour(folder, minutes=words.minutes, rate=words.rate)
        elif words.load == "burst":
            answer |= loaded(folder, burst, analysts=words.analysts)
        else:
            load = functools.partial(thinking, think=words.think, seconds=words.seconds)
            answer |= {"think_seconds": words.think, **loaded(folder, load, analysts=words.analysts)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
