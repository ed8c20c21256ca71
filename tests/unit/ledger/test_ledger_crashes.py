"""A process that is killed at any moment has never released more than the ledger has on record."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.accounting import pure, repeat
from sfumato.ledger import Budget, Ledger

STEP = 2**-10  # ε of one release; exact in binary, so that sums are
BUDGET = Budget(epsilon=64)


def charge_then_release(place: str, release: Callable[[], None]) -> None:
    """Charges, reservations that run in full, in part, or not at all; for ever."""
    ledger = Ledger.open(place, budget=BUDGET)
    while True:
        ledger.charge(pure(STEP), purpose="one release")
        release()
        for steps in (2, 1, 0):
            reservation = ledger.reserve(repeat(pure(STEP), 2), purpose="two steps")
            for _ in range(steps):
                release()
            reservation.settle(repeat(pure(STEP), steps))


def release_then_charge(place: str, release: Callable[[], None]) -> None:
    """The wrong way round."""
    ledger = Ledger.open(place, budget=BUDGET)
    while True:
        release()
        ledger.charge(pure(STEP), purpose="one release")


def released_before_kill(work: Callable[[str, Callable[[], None]], None], place: str, seconds: float) -> int:
    """Forks a worker, kills it, and returns how many releases it had made by then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            work(place, lambda: os.write(writing, b"x") and None)
        finally:
            os._exit(1)  # pytest must not go on in here
    os.close(writing)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with os.fdopen(reading, "rb") as pipe:
        return len(pipe.read())


@pytest.mark.parametrize("kills", [200])
def test_recorded_is_never_less_than_released(tmp_path: Path, kills: int) -> None:
    chance = random.Random(20)
    total = 0
    for kill in range(kills):
        if kill % 10 == 0:  # a new file now and then, so that its making is hit too
            place, released = str(tmp_path / f"{kill}.db"), 0
        released += released_before_kill(charge_then_release, place, chance.uniform(0.002, 0.035))
        total += released
        check_recorded(place, released)
    assert total > kills  # the workers were not all killed before they did anything


def check_recorded(place: str, released: int) -> None:
    if released == 0 and not os.path.exists(place):
        return
    ledger = Ledger.open(place, budget=BUDGET)
    ledger.verify()
    recorded = ledger.epsilon_spent / STEP
    # At most the charge or the two reserved steps in flight at each kill are on record without a release.
    assert recorded >= released
    ledger.close()


def test_the_wrong_order_is_caught_by_the_same_test(tmp_path: Path) -> None:
    chance = random.Random(20)
    place, released = str(tmp_path / "wrong.db"), 0
    with pytest.raises(AssertionError):
        for _ in range(200):
            released += released_before_kill(release_then_charge, place, chance.uniform(0.002, 0.035))
            check_recorded(place, released)


def test_postgres_keeps_what_a_killed_client_charged(postgres_server: str) -> None:
    chance = random.Random(20)
    place, released = f"{postgres_server}?ledger=crashes", 0
    for _ in range(20):
        released += released_before_kill(charge_then_release, place, chance.uniform(0.02, 0.08))
        check_recorded_on_server(place, released)
    assert released > 20


def check_recorded_on_server(place: str, released: int) -> None:
    ledger = Ledger.open(place, budget=BUDGET)
    assert ledger.epsilon_spent / STEP >= released
    ledger.verify()
    ledger.close()
