"""What a charge costs, on an empty ledger and at 10,000 entries: `python bench/ledger.py [postgresql://…]`."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sfumato.accounting import Budget, GaussianEvent, Relation, pure, repeat
from sfumato.ledger import Ledger
from sfumato.ledger.statement import as_json

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}

ENTRIES = 10_000
REPEATS = 200


def milliseconds(work: Callable[[int], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Median and 95th percentile."""
    times = []
    for number in range(repeats):
        start = time.perf_counter()
        work(number)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), statistics.quantiles(times, n=20)[-1] if repeats > 1 else times[0]


def flush(folder: Path) -> tuple[float, float]:
    """The bare cost of making 4 kB durable, which no durable ledger can undercut."""
    descriptor = os.open(folder / "flush", os.O_CREAT | os.O_WRONLY)

    def work(_: int) -> None:
        os.write(descriptor, b"x" * 4096)
        os.fsync(descriptor)

    return milliseconds(work)


def fill(ledger: Ledger, entries: int) -> None:
    """Ordinary charges; SQLite need not wait for the disk for these."""
    connection = getattr(ledger._store, "_connect", lambda: None)()
    sqlite = isinstance(connection, sqlite3.Connection)
    if sqlite:
        connection.execute("PRAGMA synchronous = OFF")
    for _ in range(entries - ledger.head.sequence - 1):
        ledger.charge(pure(1e-6), purpose="filling", **TERMS)
    if sqlite:
        connection.execute("PRAGMA synchronous = EXTRA")


def measure(ledger: Ledger, place: str) -> None:
    def charge_new_event(number: int) -> None:
        ledger.charge(GaussianEvent(5000.0 + number + ledger.head.sequence), purpose="a new event", **TERMS)

    def reserve_and_settle(_: int) -> None:
        ledger.reserve(repeat(pure(1e-6), 2), purpose="two steps", **TERMS).settle(pure(1e-6))

    show("charge, pure ε", milliseconds(lambda _: ledger.charge(pure(1e-6), purpose="a query", **TERMS)))
    show("charge, an event never seen", milliseconds(charge_new_event))
    show("reserve and settle lower", milliseconds(reserve_and_settle))
    show("epsilon_left", milliseconds(lambda _: ledger.epsilon_left))
    show("open", milliseconds(lambda _: Ledger.open(place).close()))
    show("verify", milliseconds(lambda _: ledger.verify(), 1))
    show("statement, some prices new", milliseconds(lambda _: as_json(ledger), 1))
    show("statement", milliseconds(lambda _: as_json(ledger), 9))


def show(what: str, times: tuple[float, float]) -> None:
    print(f"  {what:<30} median {times[0]:8.2f} ms   95% {times[1]:8.2f} ms")


def main() -> None:
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        show("bare 4 kB flush to disk", flush(Path(folder)))
        places = [f"{folder}/ledger.db", *(f"{url}?ledger=bench-{os.getpid()}" for url in sys.argv[1:])]
        for place in places:
            ledger = Ledger.create(place, Budget(epsilon=10, delta=1e-6))
            for entries in (1, ENTRIES):
                fill(ledger, entries)
                print(f"{'PostgreSQL' if '://' in place else 'SQLite'}, {ledger.head.sequence + 1} entries")
                measure(ledger, place)


if __name__ == "__main__":
    main()
