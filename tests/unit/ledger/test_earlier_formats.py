"""Ledgers of earlier formats go on as they were.

Format 1 had no leases, no data set and a write-ahead log. Up to format 2 the filter counted by fewer orders.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import uuid
from pathlib import Path

import pytest

from sfumato.accounting import Relation, pure, repeat
from sfumato.errors import InvalidInput, LedgerError, Refused
from sfumato.ledger import Head, Ledger, move

# Made by the version before leases: a plan of five steps of which two ran, a mean, a share with a charge, a run
# of four steps that was interrupted after two marks, and a charge with seeded noise.
FIXTURE = Path(__file__).parent / "data" / "format-1.db"
HEAD = Head(sequence=9, hash="de4a7e07a5469ff10a94b763578014127e9b384b907c85ae68c245f72da090e5")
# A Gaussian charge and a pure one, by the version before larger orders.
FORMAT_2 = Path(__file__).parent / "data" / "format-2.db"
TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(FIXTURE, tmp_path / "old.db"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def journal_mode(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        ((mode,),) = connection.execute("PRAGMA journal_mode").fetchall()
    connection.close()
    return str(mode)


def test_it_opens_and_verifies_and_reading_changes_nothing(path: Path) -> None:
    before = digest(path)
    with Ledger.open(path) as ledger:
        assert ledger.verify(head=HEAD) == HEAD
        assert ledger.dataset is None
        assert [charge.settled for charge in ledger.charges()] == [True, True, True, False, True]
        assert not ledger.private
    assert digest(path) == before
    assert journal_mode(path) == "wal"


def test_a_charge_ends_the_write_ahead_log(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(pure(0.01), purpose="by the new version", **TERMS)
        shutil.copy(path, path.with_name("copy.db"))
        assert Ledger.open(path.with_name("copy.db")).head == ledger.verify(head=HEAD)
    assert journal_mode(path) == "delete"


def test_an_interrupted_run_goes_on_under_a_lease(path: Path) -> None:
    with Ledger.open(path) as ledger:
        (waiting,) = ledger.open_reservations()
        assert ledger.lease(waiting.head).steps == 2
        with pytest.raises(Refused, match="stays spent"):
            ledger.give_back(waiting.head.sequence)
        taken = ledger.reservation(waiting.head)
        with pytest.raises(InvalidInput, match="durable mark"):
            taken.settle(pure(0.125))
        taken.mark(repeat(pure(0.125), 3), steps=3, digest="0" * 64)
        again = ledger.reservation(waiting.head)
        with pytest.raises(LedgerError, match="another process"):
            taken.settle()
        again.settle(repeat(pure(0.125), 3))
        ledger.verify(head=HEAD)


def test_it_moves_to_postgres(path: Path, postgres_server: str) -> None:
    with move(path, f"{postgres_server}?ledger={uuid.uuid4()}") as moved:
        assert moved.verify(head=HEAD).sequence == HEAD.sequence + 2


def test_a_table_of_an_older_version_gets_its_column(postgres_server: str, path: Path) -> None:
    """The server's table is shared; the first writer of the new version adds what is missing."""
    import psycopg

    from sfumato.ledger.store_postgres import _SCHEMA

    name = f"old_{uuid.uuid4().hex}"
    older = _SCHEMA.format(schema="public").replace("    about bigint,\n", "")
    older = "\n".join(line for line in older.splitlines() if "CREATE INDEX" not in line)
    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
    place = postgres_server.replace("/postgres", f"/{name}")
    with psycopg.connect(place) as server:
        server.execute(older.encode())
        with sqlite3.connect(path) as file:
            for row in file.execute("SELECT sequence, digest, text, settles FROM entries").fetchall():
                server.execute("INSERT INTO sfumato_ledger VALUES ('default', %s, %s, %s, %s)", row)
        file.close()
    with Ledger.open(place) as ledger:
        assert ledger.verify() == HEAD
        taken = ledger.reservation(ledger.open_reservations()[0].head)
        assert taken.lease.token == 2
        assert ledger.lease(taken.head) == taken.lease
        ledger.verify(head=HEAD)


def test_format_2_counts_as_it_did(tmp_path: Path) -> None:
    """By three orders for ever: the orders of a filter are fixed before its first charge."""
    path = Path(shutil.copy(FORMAT_2, tmp_path / "old.db"))
    with Ledger.open(path) as old, Ledger.open(tmp_path / "new.db", budget=old.budget) as new:
        old.verify()
        assert old.epsilon_spent == pytest.approx(0.686125588117723, rel=1e-6)  # what that version wrote
        for charge in old.charges():
            new.charge(charge.event, purpose=charge.purpose, **TERMS)
        assert new.epsilon_spent < 0.2
        old.charge(pure(0.1), purpose="by the new version", **TERMS)
        assert old.epsilon_spent > 0.7
        old.verify()
        new.verify()
