"""A process that is killed at any moment has never released more than the ledger has on record."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sfumato.accounting import Relation, pure, repeat
from sfumato.ledger import Budget, Ledger

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}

STEP = 2**-10  # ε of one release; exact in binary, so that sums are
BUDGET = Budget(epsilon=64)
Work = Callable[[str, Callable[[], None]], None]


def charge_then_release(place: str, release: Callable[[], None]) -> None:
    """Charges, reservations that run in full, in part, or not at all; for ever."""
    ledger = Ledger.open(place, budget=BUDGET)
    while True:
        ledger.charge(pure(STEP), purpose="one release", **TERMS)
        release()
        for steps in (2, 1, 0):
            reservation = ledger.reserve(repeat(pure(STEP), 2), purpose="two steps", **TERMS)
            for _ in range(steps):
                release()
            reservation.settle(repeat(pure(STEP), steps))


def release_then_charge(place: str, release: Callable[[], None]) -> None:
    """The wrong way round."""
    ledger = Ledger.open(place, budget=BUDGET)
    while True:
        release()
        ledger.charge(pure(STEP), purpose="one release", **TERMS)


def released_before_kill(work: Work, place: str, chance: random.Random) -> int:
    """Forks a worker, kills it a moment after some releases, and returns how many it had made by then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            work(place, lambda: os.write(writing, b"x") and None)
        finally:
            os._exit(1)  # pytest must not go on in here
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        released = len(pipe.read(chance.randrange(5)))
        time.sleep(chance.uniform(0, 0.006))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        return released + len(pipe.read())


def recorded_and_released(work: Work, places: Sequence[str]) -> list[tuple[float, int]]:
    """One kill for each of `places`: what its ledger has on record then, and what was ever released from it."""
    chance, released, results = random.Random(20), Counter[str](), []
    for place in places:
        released[place] += released_before_kill(work, place, chance)
        with Ledger.open(place, budget=BUDGET) as ledger:
            ledger.verify()
            results.append((ledger.epsilon_spent / STEP, released[place]))
    return results


@pytest.mark.keeps_out("A budget charged after the run, lost in a crash, or overspent by a race")
def test_recorded_is_never_less_than_released(memory_path: Path) -> None:
    # Five kills a file, so that its making is hit as well as its growth.
    places = [str(memory_path / f"{kill // 5}.db") for kill in range(100)]
    results = recorded_and_released(charge_then_release, places)
    assert all(recorded >= released for recorded, released in results)
    assert sum(released for _, released in results) > 100


def test_the_wrong_order_is_caught_by_the_same_test(memory_path: Path) -> None:
    results = recorded_and_released(release_then_charge, [str(memory_path / "wrong.db")] * 20)
    assert any(recorded < released for recorded, released in results)


def test_postgres_keeps_what_a_killed_client_charged(postgres_server: str) -> None:
    places = [f"{postgres_server}?ledger=crashes-{kill // 10}" for kill in range(20)]
    results = recorded_and_released(charge_then_release, places)
    assert all(recorded >= released for recorded, released in results)
    assert sum(released for _, released in results) > 20
