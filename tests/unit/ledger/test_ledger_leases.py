"""Leases on every store: who may go on, what stays durable, and that nobody can rewrite either unnoticed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.accounting import Budget, NoEvent, Relation, pure, repeat
from sfumato.errors import InvalidInput, LedgerError, LedgerTampered, Refused
from sfumato.ledger import Lease, Ledger
from sfumato.ledger.chain import canonical
from sfumato.ledger.log import Log

BUDGET = Budget(epsilon=1)
STEP = pure(0.125)
TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}
DIGESTS = [digit * 64 for digit in "0123456789"]


def marked(ledger: Ledger, steps: int = 2) -> object:
    reservation = ledger.reserve(repeat(STEP, 4), purpose="four steps", begun=False, **TERMS)
    reservation.begin()
    reservation.mark(repeat(STEP, steps), steps=steps, digest=DIGESTS[steps])
    return reservation


def test_tokens_count_up_and_only_the_newest_holds(place: str) -> None:
    first = marked(Ledger.open(place, budget=BUDGET))
    holders = [first, *(Ledger.open(place).reservation(first.head) for _ in range(3))]
    assert [holder.lease.token for holder in holders] == [1, 2, 3, 4]
    for old in holders[:-1]:
        with pytest.raises(LedgerError, match="another process has taken the run up"):
            old.mark(repeat(STEP, 3), steps=3, digest=DIGESTS[3])
        with pytest.raises(LedgerError, match="another process has taken the run up"):
            old.settle()
        with pytest.raises(LedgerError, match="another process has taken the run up"):
            old.begin()
    assert holders[-1].marked == 2
    charge = holders[-1].settle(repeat(STEP, 3))
    assert charge.stopped_early
    assert charge.planned == repeat(STEP, 4)
    Ledger.open(place).verify()


def test_a_durable_step_stays_durable(place: str) -> None:
    ledger = Ledger.open(place, budget=BUDGET)
    reservation = marked(ledger)
    for steps, ran in ((1, repeat(STEP, 2)), (2, STEP)):
        with pytest.raises(InvalidInput, match="durable"):
            reservation.mark(ran, steps=steps, digest=DIGESTS[1])
    with pytest.raises(InvalidInput, match="the same steps"):
        reservation.mark(repeat(STEP, 5), steps=5, digest=DIGESTS[1])
    with pytest.raises(InvalidInput, match="SHA-256"):
        reservation.mark(repeat(STEP, 3), steps=3, digest="not a digest")
    with pytest.raises(InvalidInput, match="steps=2"):
        reservation.settle(STEP)
    assert ledger.lease(reservation.head).digest == DIGESTS[2]
    reservation.settle(repeat(STEP, 2))
    ledger.verify()


def test_what_was_decided_on_an_older_lease_is_not_done(place: str) -> None:
    ledger = Ledger.open(place, budget=BUDGET)
    reservation = marked(ledger)
    seen = ledger.lease(reservation.head)
    reservation.mark(repeat(STEP, 3), steps=3, digest=DIGESTS[3])
    with pytest.raises(LedgerError, match="as it was seen"):
        ledger.reservation(reservation.head, seen=seen)
    assert ledger.lease(reservation.head).token == 1


def test_given_back_and_begun_exclude_each_other(place: str) -> None:
    ledger = Ledger.open(place, budget=BUDGET)
    waiting = ledger.reserve(STEP, purpose="waits", begun=False, **TERMS)
    charge = ledger.give_back(waiting.head.sequence)
    assert (charge.event, charge.settled, charge.stopped_early) == (NoEvent(), True, False)
    with pytest.raises(LedgerError, match="given back"):
        waiting.begin()
    begun = ledger.reserve(STEP, purpose="begins", begun=False, **TERMS)
    begun.begin()
    with pytest.raises(Refused, match="never begun"):
        ledger.give_back(begun.head.sequence)
    for entry in (0, waiting.head.sequence, charge.head.sequence):
        with pytest.raises(LedgerError, match="open reservation"):
            ledger.give_back(entry)
    with pytest.raises(InvalidInput, match="entry=99"):
        ledger.give_back(99)
    ledger.verify()


def test_seeded_noise_stays_on_record_whoever_goes_on(place: str) -> None:
    ledger = Ledger.open(place, budget=BUDGET)
    reservation = marked(ledger)
    ledger.reservation(reservation.head, private=False)
    last = ledger.reservation(reservation.head, private=True)
    assert not last.private
    assert not ledger.private
    assert not last.settle().private
    assert not ledger.reserve(STEP, purpose="seeded at the end", **TERMS).settle(private=False).private
    ledger.verify()


def test_a_lease_is_looked_up_and_not_searched_for(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(place, budget=BUDGET)
    reservation = marked(ledger)
    monkeypatch.setattr(Log, "entries", lambda self: pytest.fail("read the whole ledger"))
    reservation.mark(repeat(STEP, 3), steps=3, digest=DIGESTS[3])
    assert ledger.reservation(reservation.head).settle(repeat(STEP, 3)).event == repeat(STEP, 3)


FORGERIES = {
    "token": lambda lease: {**lease, "token": 1},
    "skipped token": lambda lease: {**lease, "token": 7},
    "steps": lambda lease: {**lease, "steps": 1},
    "ran": lambda lease: {**lease, "ran": None},
    "begun": lambda lease: {**lease, "begun": False},
    "private": lambda lease: {**lease, "private": True},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_lease_that_does_not_follow_is_found(tmp_path: Path, name: str) -> None:
    """Written by somebody who recomputes the hashes: the chain is whole, and the story is not."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.reservation(marked(ledger).head, private=False)
        ledger.reservation(ledger.open_reservations()[0].head)
        assert ledger.verify().sequence == 5
    rewrite_last(path, lambda body: {**body, "lease": FORGERIES[name](body["lease"])})
    with pytest.raises(LedgerTampered):
        Ledger.open(path).verify()


@pytest.mark.parametrize(
    "change",
    [
        lambda body: {**body, "planned": None},
        lambda body: {**body, "private": True},
        lambda body: {**body, "lease": {**body["lease"], "token": 1}},
        lambda body: {**body, "lease": {**body["lease"], "steps": 0}},
    ],
)
def test_a_settlement_that_does_not_follow_is_found(tmp_path: Path, change: Callable) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, budget=BUDGET) as ledger:
        taken = ledger.reservation(marked(ledger).head, private=False)
        taken.settle(repeat(STEP, 3))
        ledger.verify()
    rewrite_last(path, change)
    with pytest.raises(LedgerTampered):
        Ledger.open(path).verify()


def rewrite_last(path: Path, change: Callable) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP TRIGGER entries_stay; DROP TRIGGER entries_remain")
        ((sequence, text),) = connection.execute(
            "SELECT sequence, text FROM entries ORDER BY sequence DESC LIMIT 1"
        ).fetchall()
        text = canonical(change(json.loads(text)))
        digest = hashlib.sha256(text).digest()
        connection.execute(
            "UPDATE entries SET text = ?, digest = ? WHERE sequence = ?", (text, digest, sequence)
        )
    connection.close()


def test_a_hidden_entry_about_a_lease_is_found(tmp_path: Path) -> None:
    """The column that finds the newest lease is part of what is checked."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.reservation(marked(ledger).head)
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP TRIGGER entries_stay; DROP TRIGGER entries_remain")
        connection.execute("UPDATE entries SET about = NULL WHERE sequence = 4")
    connection.close()
    with pytest.raises(LedgerTampered, match="moved"):
        Ledger.open(path).verify()


def test_leases_go_to_json_and_back() -> None:
    lease = Lease(token=3, private=False, steps=2, ran=repeat(STEP, 2), digest=DIGESTS[0])
    assert Lease.from_json(json.loads(json.dumps(lease.to_json()))) == lease


def test_a_reservation_is_written_down_before_it_is_durable(place):
    """What is written down is the entry that follows; if writing fails, there is no entry."""
    ledger, written = Ledger.open(place, Budget(epsilon=1)), []
    made = ledger.reserve(pure(0.5), purpose="a run", begun=False, noted=written.append, **TERMS)
    assert [one.head for one in written] == [made.head]
    assert ledger.lease(made.head) == made.lease

    def fail(reservation):
        written.append(reservation)
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        ledger.reserve(pure(0.25), purpose="another", begun=False, noted=fail, **TERMS)
    assert ledger.head == made.head
    assert ledger.epsilon_spent == 0.5
    with pytest.raises(LedgerTampered):
        ledger.lease(written[-1].head)
    ledger.charge(pure(0.25), purpose="a third", **TERMS)
    ledger.verify()
