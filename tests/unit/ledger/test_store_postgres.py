from __future__ import annotations

import sys

import pytest

from sfumato.accounting import Relation, pure
from sfumato.errors import LedgerError, MissingExtra
from sfumato.ledger import Budget, Ledger
from sfumato.ledger.chain import Row
from sfumato.ledger.store_postgres import PostgresStore

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"sfumato\[postgres\]"):
        Ledger.open("postgresql://nowhere/db", budget=Budget(epsilon=1))


def test_a_server_that_is_not_there_is_a_ledger_error_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(LedgerError, match="cannot be used") as error:
        Ledger.open("postgresql://ann:secret@127.0.0.1:1/db", budget=Budget(epsilon=1))
    assert "secret" not in str(error.value)


def test_ledgers_of_one_data_base_are_told_apart(postgres_server: str) -> None:
    one = Ledger.open(f"{postgres_server}?ledger=one", budget=Budget(epsilon=1))
    other = Ledger.open(f"{postgres_server}?connect_timeout=5&ledger=other", budget=Budget(epsilon=2))
    assert (one.budget.epsilon, other.budget.epsilon) == (1, 2)
    assert PostgresStore(postgres_server).place.endswith("(ledger 'default')")


def test_a_lost_connection_is_made_anew_but_never_inside_a_transaction(postgres_server: str) -> None:
    import psycopg

    ledger = Ledger.open(f"{postgres_server}?ledger=lost", budget=Budget(epsilon=1))

    def cut() -> None:
        number = ledger._store._connection.info.backend_pid
        with psycopg.connect(postgres_server) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [number])

    cut()
    with pytest.raises(LedgerError, match="cannot be used"):
        ledger.charge(pure(0.25), purpose="lost", **TERMS)
    ledger.charge(pure(0.25), purpose="found", **TERMS)

    def append_after_the_lock_is_gone() -> None:
        with ledger._store.transaction():
            cut()
            ledger._store.append(Row(2, b"", b"", None))

    with pytest.raises(LedgerError):
        append_after_the_lock_is_gone()
    assert [charge.purpose for charge in ledger.charges()] == ["found"]
