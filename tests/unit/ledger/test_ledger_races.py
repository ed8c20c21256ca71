"""Many processes race for the last of a budget: it is spent to the end, and never beyond."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from sfumato.accounting import pure
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Budget, Ledger

PATIENCE = 60  # seconds; a deadlock breaks the barrier
FORK = multiprocessing.get_context("fork")


def spend_until_refused(place: str) -> int:
    accepted = 0
    with Ledger.open(place) as ledger:
        while True:
            try:
                ledger.charge(pure(0.125), purpose="race")
                accepted += 1
            except BudgetExceeded:
                return accepted


def race(places: list[str], start: Barrier, finish: Barrier, accepted: Any) -> None:
    try:
        for number, place in enumerate(places):
            start.wait(PATIENCE)
            count = spend_until_refused(place)
            with accepted.get_lock():
                accepted[number] += count
            finish.wait(PATIENCE)
    except BaseException:
        start.abort()  # so that nobody waits for this process
        finish.abort()
        raise


def run_races(places: list[str], processes: int) -> list[int]:
    """How many charges were accepted in each race; each ledger has room for three."""
    start, finish = FORK.Barrier(processes + 1), FORK.Barrier(processes + 1)
    accepted = FORK.Array("i", len(places))
    workers = [FORK.Process(target=race, args=(places, start, finish, accepted)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for place in places:
        with Ledger.open(place, budget=Budget(epsilon=1)) as ledger:
            ledger.charge(pure(0.6), purpose="before the race")
        start.wait(PATIENCE)
        finish.wait(PATIENCE)
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    return list(accepted)


@pytest.mark.slow
def test_sqlite_is_never_overspent_by_32_processes_in_200_rounds(tmp_path: Path) -> None:
    places = [str(tmp_path / f"{number}.db") for number in range(200)]
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


def test_32_processes_that_make_the_same_ledger_make_one(tmp_path: Path) -> None:
    place = str(tmp_path / "made-by-all.db")
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
    start.wait(PATIENCE)
    Ledger.open(place, budget=Budget(epsilon=1)).charge(pure(2**-6), purpose="one of 32")
