"""A ledger that is made with its first charge: whoever only looks leaves nothing behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sfumato.accounting import Relation, pure
from sfumato.errors import BudgetExceeded, LedgerError
from sfumato.ledger import Budget, Ledger
from sfumato.ledger.store import store_at

BUDGET = Budget(epsilon=1)
TERMS = {"purpose": "a charge", "relation": Relation.ADD_REMOVE, "unit": "record"}


def pending(place: str, budget: Budget = BUDGET, **options: object) -> Ledger:
    return Ledger.open(place, budget, when_charged=True, **options)  # type: ignore[arg-type]


def there(place: str) -> bool:
    return store_at(place).last() is not None


def test_looking_makes_nothing(place: str) -> None:
    with pending(place) as ledger:
        assert (ledger.epsilon_spent, ledger.epsilon_left) == (0, 1)
        assert ledger.charges() == []
        assert ledger.counted_after(pure(0.5), relation=Relation.ADD_REMOVE, unit="record") == pytest.approx(
            0.5, rel=0.01
        )
    assert not there(place)


def test_a_charge_that_does_not_fit_makes_nothing(place: str) -> None:
    with pending(place) as ledger, pytest.raises(BudgetExceeded):
        ledger.charge(pure(2.0), **TERMS)
    assert not there(place)


def test_the_first_charge_makes_it(place: str) -> None:
    with pending(place) as ledger:
        charge = ledger.charge(pure(0.25), **TERMS)
        name = ledger.name
        assert [one.head for one in ledger.charges()] == [charge.head]
    with Ledger.open(place, BUDGET) as found:
        found.verify()
        assert found.epsilon_spent == pytest.approx(0.25)
        assert found.name == name


def test_the_budget_can_change_until_then(place: str) -> None:
    with pending(place):
        pass
    with pending(place, Budget(epsilon=4)) as ledger:
        ledger.charge(pure(3.0), **TERMS)
    with pytest.raises(LedgerError, match="declare the same"):
        pending(place)


def test_one_that_somebody_else_made_meanwhile_is_gone_on_with(place: str) -> None:
    with pending(place) as early, pending(place) as late:
        early.charge(pure(0.5), **TERMS)
        late.charge(pure(0.25), **TERMS)
        assert late.name == early.name
        assert early.epsilon_spent == late.epsilon_spent == pytest.approx(0.75)


def test_one_with_another_budget_that_was_made_meanwhile_is_refused(place: str) -> None:
    with pending(place) as late, Ledger.open(place, Budget(epsilon=4)) as early:
        with pytest.raises(LedgerError, match="epsilon=4"):
            late.charge(pure(0.25), **TERMS)
        assert early.charges() == []


def test_many_first_charges_at_once_all_count(place: str) -> None:
    met, failed = threading.Barrier(4), []

    def spend() -> None:
        try:
            with pending(place) as ledger:
                met.wait(30)
                ledger.charge(pure(0.125), **TERMS)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Ledger.open(place) as ledger:
        ledger.verify()
        assert ledger.epsilon_spent == pytest.approx(0.5)


def test_a_second_ledger_of_a_data_set_is_refused_on_opening(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "one.db", BUDGET, dataset="clinic").close()
    with pytest.raises(LedgerError, match="one data set has one ledger"):
        pending(os.fspath(tmp_path / "two.db"), dataset="clinic")


def test_an_unused_file_with_another_budget_may_be_deleted(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "people.db", BUDGET) as ledger:
        ledger.allocate("ann", 0.5)
    with pytest.raises(LedgerError, match="you may delete the file"):
        Ledger.open(tmp_path / "people.db", Budget(epsilon=4))
    with Ledger.open(tmp_path / "people.db") as ledger:
        ledger.charge(pure(0.1), **TERMS)
    with pytest.raises(LedgerError) as refused:
        Ledger.open(tmp_path / "people.db", Budget(epsilon=4))
    assert "delete" not in str(refused.value)
