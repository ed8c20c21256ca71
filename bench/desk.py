"""A desk under many analysts, and under kill -9: python bench/desk.py [--analysts 200] [--each 3] [--kills 100]

Prints one JSON object; `charged_twice` and `charged_less` must be 0. CPU is that of the server's process: on a
busy machine it says more than the clock does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from sfumato.desk.accounts import Account, Role
from sfumato.desk.desk import Desk
from sfumato.desk.example import make_example
from sfumato.desk.grants import Wanted
from sfumato.desk.jobs import DONE, Job, one_of_team, start
from sfumato.desk.people import add_person
from sfumato.ledger import Ledger
from sfumato.randomness import public_generator

SQL = "SELECT city, COUNT(*) FROM people GROUP BY city"


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


def make_desk(folder: Path, *, analysts: int, teams: int, tick: float) -> tuple[Path, list[str]]:
    """An example with many analysts, in teams that share an allocation; their tokens."""
    place = folder / "desk.toml"
    make_example(place)
    place.write_text(place.read_text().replace("tick = 1", f"tick = {tick}"))
    desk = Desk.open(place)
    tokens = []
    for number in range(analysts):
        team = f"team {number % teams}"
        wanted = Wanted(team=team, purpose="questions", epsilon=2.0 / teams) if number < teams else None
        tokens.append(add_person(desk, f"analyst {number}", role="analyst", team=team, wanted=wanted).token)
    desk.close()
    return place, tokens


async def crowd(server: Server, tokens: list[str], *, each: int, over: float) -> list[tuple[int, float, Any]]:
    """Everybody asks `each` times, at moments spread over some seconds; status, seconds and entry of each."""
    moments = public_generator(1).uniform(0, over, (len(tokens), each)) if over else None
    limits = httpx.Limits(max_connections=len(tokens) * each)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:

        async def one(person: int, time_of: int) -> tuple[int, float, Any]:
            if moments is not None:
                await asyncio.sleep(float(moments[person, time_of]))
            begun = time.perf_counter()
            try:
                answer = await client.post(
                    "/api/v1/tables/people/query",
                    json={"sql": SQL, "epsilon": 0.002},
                    headers={"authorization": f"Bearer {tokens[person]}"},
                )
            except httpx.TransportError:  # hung up on: a busy client that was slower than the server waits
                return 0, time.perf_counter() - begun, None
            taken = time.perf_counter() - begun
            return answer.status_code, taken, answer.json().get("entry")

        asked = (one(person, time_of) for person in range(len(tokens)) for time_of in range(each))
        return list(await asyncio.gather(*asked))


def compared(place: Path, entries: list[Any]) -> dict[str, int]:
    """Answers against the ledger, to the entry."""
    with Ledger.open(place.parent / "people.ledger.db") as ledger:
        ledger.verify()
        charges = {charge.head.sequence: charge.head.hash for charge in ledger.charges()}
    return {
        "answers": len(entries),
        "charges": len(charges),
        "charged_twice": len(entries) - len({entry["sequence"] for entry in entries}),
        "charged_less": sum(charges.get(entry["sequence"]) != entry["hash"] for entry in entries),
    }


def many(folder: Path, *, analysts: int, each: int, over: float) -> dict[str, Any]:
    """Many analysts at once, who ask for more than they may spend."""
    place, tokens = make_desk(folder, analysts=analysts, teams=20, tick=0.05)
    server = Server(place)
    try:
        asyncio.run(crowd(server, tokens[:2], each=1, over=0.0))  # until the table is open
        first, memory = server.cpu(), server.memory()
        found = asyncio.run(crowd(server, tokens, each=each, over=over))
        cpu = server.cpu() - first
        times = sorted(taken for status, taken, _ in found if status == 200)
        statuses = {
            str(code): sum(status == code for status, _, _ in found) for code in (0, 200, 409, 429, 503)
        }
        return {
            "analysts": analysts,
            "questions": len(found),
            "spread_over_seconds": over,
            "statuses": statuses,
            "server_cpu_seconds_each": cpu / len(found),
            "p50_seconds": statistics.median(times),
            "p95_seconds": times[int(0.95 * len(times))],
            "memory_mb": [memory, server.memory()],
            **compared(place, [entry for status, _, entry in found if status == 200]),
        }
    finally:
        server.kill()


def killed(folder: Path, *, kills: int) -> dict[str, Any]:
    """kill -9 of the server, and with it its workers, at random moments, while questions and jobs go on."""
    place, tokens = make_desk(folder, analysts=20, teams=20, tick=0.05)
    desk = Desk.open(place)
    with desk.database.read() as connection:
        number = connection.exec_driver_sql("SELECT id FROM accounts WHERE name = 'ann'").scalar()
    ann = Account(id=int(number or 0), name="ann", role=Role.ANALYST, team="care")
    jobs = [
        start(desk, ann, desk.dataset("people"), Job(kind="train", target="ill", epsilon=0.05), None)
        for _ in range(4)
    ]
    moments, entries = public_generator(2).uniform(0.0, 3.0, kills), []
    server = Server(place)
    for moment in moments:
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
        "kills": kills,
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
        while True:
            answer = await client.post(
                "/api/v1/tables/people/query",
                json={"sql": SQL, "epsilon": 0.0002},
                headers={"authorization": f"Bearer {token}"},
            )
            if answer.status_code != 200:
                return
            found.append(answer.json()["entry"])
            begun.set()

    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        tasks = [asyncio.create_task(ask(client, token)) for token in tokens[:4]]
        await begun.wait()
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--analysts", type=int, default=200)
    parser.add_argument("--each", type=int, default=3, help="questions of each analyst")
    parser.add_argument(
        "--over", type=float, default=60.0, help="seconds over which they ask; 0 for all at once"
    )
    parser.add_argument("--kills", type=int, default=0)
    words = parser.parse_args()
    answer: dict[str, Any] = {"machine": platform.platform(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        if words.kills:
            answer |= killed(Path(folder), kills=words.kills)
        else:
            answer |= many(Path(folder), analysts=words.analysts, each=words.each, over=words.over)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
