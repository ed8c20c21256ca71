"""Many processes race for the last of a budget: it is spent to the end, and never beyond."""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
from itertools import chain
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from sfumato.accounting import Relation, pure
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Budget, Ledger

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}

PATIENCE = 60  # seconds, after which it is a deadlock
FAILED = 255
FORK = multiprocessing.get_context("fork")


def spend_until_refused(place: str) -> int:
    accepted = 0
    with Ledger.open(place) as ledger:
        while True:
            try:
                ledger.charge(pure(0.125), purpose="race", **TERMS)
                accepted += 1
            except BudgetExceeded:
                return accepted


def race(places: list[str], start: int, results: int) -> None:
    """One byte on `start` lets this process into the next race; one byte on `results` says how it went."""
    gc.freeze()  # what libraries with threads left in the parent is not theirs to take apart in a fork
    for place in places:
        os.read(start, 1)
        try:
            os.write(results, bytes([spend_until_refused(place)]))
        except BaseException:
            os.write(results, bytes([FAILED]))
            raise


def run_races(places: list[str], processes: int) -> list[int]:
    """How many charges were accepted in each race; each ledger has room for three."""
    results, report = os.pipe()
    starts = [os.pipe() for _ in range(processes)]
    workers = [FORK.Process(target=race, args=(places, start, report), daemon=True) for start, _ in starts]
    for worker in workers:
        worker.start()
    accepted = [run_race(place, [signal for _, signal in starts], results) for place in places]
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    for descriptor in (results, report, *chain.from_iterable(starts)):
        os.close(descriptor)
    return accepted


def run_race(place: str, signals: list[int], results: int) -> int:
    with Ledger.open(place, budget=Budget(epsilon=1)) as ledger:
        ledger.charge(pure(0.6), purpose="before the race", **TERMS)
    for signal in signals:
        os.write(signal, b"x")
    counts: list[int] = []
    while len(counts) < len(signals):
        assert select.select([results], [], [], PATIENCE)[0], "deadlock"
        counts += os.read(results, len(signals))
    assert FAILED not in counts
    return sum(counts)


@pytest.mark.keeps_out("A budget charged after the run, lost in a crash, or overspent by a race")
@pytest.mark.slow
def test_sqlite_is_never_overspent_by_32_processes_in_200_rounds(memory_path: Path) -> None:
    places = [str(memory_path / f"{number}.db") for number in range(200)]
    assert run_races(places, 32) == [3] * 200
    for place in places[::50]:
        with Ledger.open(place) as ledger:
            ledger.verify()
            assert ledger.epsilon_spent == pytest.approx(0.975)


def test_postgres_is_never_overspent_by_32_processes(postgres_server: str) -> None:
    places = [f"{postgres_server}?ledger=race-{number}" for number in range(15)]
    assert run_races(places, 32) == [3] * 15
    with Ledger.open(places[0]) as ledger:
        ledger.verify()


def test_32_processes_that_make_the_same_ledger_make_one(memory_path: Path) -> None:
    place = str(memory_path / "made-by-all.db")
    start = FORK.Barrier(32)
    workers = [FORK.Process(target=make_and_charge, args=(place, start)) for _ in range(32)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    ledger = Ledger.open(place)
    assert len(ledger.charges()) == 32
    ledger.verify()


def make_and_charge(place: str, start: Barrier) -> None:
    gc.freeze()
    start.wait(PATIENCE)
    Ledger.open(place, budget=Budget(epsilon=1)).charge(pure(2**-6), purpose="one of 32", **TERMS)
