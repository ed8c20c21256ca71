"""Several shares in one transaction, notes, and reading on from a known entry."""

import pytest

from sfumato.accounting import Budget, Relation, pure
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerTampered
from sfumato.ledger import Charge, ChargeRequest, Head, Ledger


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


def test_a_share_with_an_origin_is_made_once_and_under_another_name_where_its_own_is_taken(ledger):
    ledger.allocate("a", 1.0)
    for _ in range(2):
        ledger.allocate_all({"a": 0.5, "b": 0.5}, origins={"a": "desk:1:x", "b": "desk:1:y"})
    state = ledger.state
    assert state.origins() == {"desk:1:x": "a (2)", "desk:1:y": "b"}
    assert {name: share.epsilon for name, share in state.shares.items()} == {"a": 1.0, "a (2)": 0.5, "b": 0.5}
    with pytest.raises(InvalidInput, match="with its epsilon=0"):
        ledger.allocate_all({"a": 0.75}, origins={"a": "desk:1:x"})
    with pytest.raises(InvalidInput):
        ledger.allocate_all({"c": 0.5, "d": 9.0}, origins={"c": "desk:1:z", "d": "desk:1:w"})
    assert "desk:1:z" not in ledger.state.origins()
    said = [entry.body.get("origin") for entry in ledger.entries()]
    assert said == [None, None, "desk:1:x", "desk:1:y"]
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


def _request(epsilon, *allocations, purpose="x"):
    return ChargeRequest(
        event=pure(epsilon),
        purpose=purpose,
        relation=Relation.ADD_REMOVE,
        unit="record",
        allocations=allocations or (None,),
    )


def test_several_charges_in_one_transaction_are_each_admitted_after_those_before(ledger, monkeypatch):
    ledger.allocate_all({"a": 1.0, "b": 1.0})
    begun = []
    transaction = ledger._store.transaction
    monkeypatch.setattr(ledger._store, "transaction", lambda: begun.append(1) or transaction())
    wanted = [_request(0.75, "a"), _request(0.75, "a"), _request(0.75, "a", "b"), _request(3, "a"), _request(2)]
    found = ledger.charge_each(wanted)
    assert [getattr(one, "allocation", "refused") for one in found] == ["a", "refused", "b", "refused", None]
    assert isinstance(found[1], BudgetExceeded)
    assert len(begun) == 1
    assert ledger.state.spent_by("a") == ledger.state.spent_by("b") == 0.75
    assert [one.head for one in ledger.charges()] == [one.head for one in found if isinstance(one, Charge)]
    ledger.verify()


def test_charges_of_one_transaction_are_all_there_or_none(ledger, monkeypatch):
    """A crash before the end leaves nothing, and what this object remembers of it is worth nothing."""
    append = ledger._store.append

    def fails_at_the_third(row):
        if row.sequence == 3:
            raise KeyboardInterrupt
        append(row)

    monkeypatch.setattr(ledger._store, "append", fails_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        ledger.charge_each([_request(1.0)] * 3)
    assert ledger.epsilon_spent == 0
    assert ledger.head.sequence == 0
    monkeypatch.setattr(ledger._store, "append", append)
    assert len(ledger.charge_each([_request(1.0)] * 5)) == 5
    assert ledger.epsilon_spent == 4
    ledger.verify()


def test_what_another_process_wrote_is_seen(ledger, tmp_path):
    """The newest entry is kept as it was read, as long as it is the newest."""
    assert ledger.epsilon_left == 4
    with Ledger.open(tmp_path / "l.db") as other:
        other.charge_each([_request(1.5), _request(1.5)])
    assert ledger.epsilon_left == 1
    assert isinstance(ledger.charge_each([_request(1.25)])[0], BudgetExceeded)
