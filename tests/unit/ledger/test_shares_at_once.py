"""Several shares in one transaction, notes, and reading on from a known entry."""

import pytest

from sfumato.accounting import Budget, Relation, pure
from sfumato.errors import InvalidInput, LedgerTampered
from sfumato.ledger import Head, Ledger


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=4)) as found:
        yield found


def test_all_shares_or_none(ledger):
    with pytest.raises(InvalidInput):
        ledger.allocate_all({"a": 3.0, "b": 2.0})
    assert ledger.state.shares == {}
    assert ledger.head.sequence == 0
    ledger.allocate_all({"a": 3.0, "b": 1.0}, purpose="approved by olga")
    assert list(ledger.state.shares) == ["a", "b"]
    said = [entry.body.get("purpose") for entry in ledger.entries()]
    assert said == [None, "approved by olga", "approved by olga"]
    ledger.verify()


def test_a_note_costs_nothing_and_is_in_the_chain(ledger):
    ledger.note("request 3 declined")
    assert ledger.epsilon_spent == 0
    assert ledger.verify().sequence == 1
    with pytest.raises(InvalidInput):
        ledger.note("two\nlines")


def test_reading_on_from_a_known_entry(ledger):
    known = ledger.head
    for _ in range(3):
        ledger.charge(pure(0.1), purpose="x", relation=Relation.ADD_REMOVE, unit="record")
    assert [entry.sequence for entry in ledger.entries_after(known)] == [1, 2, 3]
    assert list(ledger.entries_after(ledger.head)) == []
    with pytest.raises(LedgerTampered):
        list(ledger.entries_after(Head(sequence=0, hash="0" * 64)))
