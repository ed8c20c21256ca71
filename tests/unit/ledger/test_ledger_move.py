"""A ledger goes from one store to another with its chain, and is open in one place at most."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from sfumato.accounting import Budget, Relation, pure, repeat
from sfumato.errors import LedgerError, LedgerTampered
from sfumato.ledger import Ledger, move
from sfumato.ledger.store_sqlite import SqliteStore

BUDGET = Budget(epsilon=1, delta=1e-6)
TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}


def filled(place: str, dataset: str = "people") -> Ledger:
    ledger = Ledger.create(place, BUDGET, dataset=dataset)
    ledger.charge(pure(0.125), purpose="a count", **TERMS)
    ledger.reserve(repeat(pure(0.0625), 2), purpose="two steps", **TERMS)
    ledger.allocate("research", 0.25)
    return ledger


def test_there_and_back_with_every_hash(tmp_path: Path, postgres_server: str) -> None:
    file, server = str(tmp_path / "people.db"), f"{postgres_server}?ledger={uuid.uuid4()}"
    with filled(file) as ledger:
        hashes = [entry.hash for entry in ledger.entries()]
        certificate = ledger.certificate(ledger.charges()[0])
        reservation = ledger.reservation(ledger.open_reservations()[0].head)
    with move(file, server) as there:
        assert [entry.hash for entry in there.entries()][: len(hashes)] == hashes
        assert (there.dataset, there.budget, there.name) == ("people", BUDGET, ledger.name)
        there.reservation(reservation.head).settle()
        there.charge(pure(0.125), purpose="on the server", allocation="research", **TERMS)
        spent, head = there.epsilon_spent, there.head
        there.verify(certificate=certificate)
    with pytest.raises(LedgerError, match="moved to"):
        Ledger.open(file).charge(pure(0.1), purpose="here still", **TERMS)
    with move(server, file) as back:
        assert back.verify(certificate=certificate, head=head).sequence == head.sequence + 2
        assert back.epsilon_spent == spent
        back.charge(pure(0.0625), purpose="at home again", **TERMS)
    with pytest.raises(LedgerError, match="moved to"):
        Ledger.open(server).charge(pure(0.1), purpose="there still", **TERMS)


def test_a_move_that_died_is_finished_by_the_same_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    filled(source).close()
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "create", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            move(source, target)
    with pytest.raises(LedgerError, match="moved to"):
        Ledger.open(source).charge(pure(0.1), purpose="nobody has it", **TERMS)
    with pytest.raises(LedgerError, match=r"b\.db"):
        move(source, tmp_path / "c.db")
    with move(source, target) as there:
        head = there.charge(pure(0.125), purpose="there", **TERMS).head
    with move(source, target) as again:  # nothing is left to do
        assert again.head == head


def test_a_place_that_cannot_take_it_leaves_the_ledger_open(tmp_path: Path) -> None:
    source = str(tmp_path / "a.db")
    ledger = filled(source)
    other = Ledger.create(tmp_path / "other.db", BUDGET)
    for wrong in (tmp_path / "other.db", tmp_path / "no" / "folder.db"):
        with pytest.raises(LedgerError, match=r"expected no ledger|cannot be made"):
            move(source, wrong)
    ledger.charge(pure(0.0625), purpose="goes on", **TERMS)
    other.charge(pure(0.0625), purpose="goes on", **TERMS)
    for book in (ledger, other):
        book.verify()


def test_an_older_copy_is_not_moved_over_a_newer_ledger(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    filled(str(source)).close()
    copy = source.read_bytes()
    with move(source, target) as there:
        there.charge(pure(0.0625), purpose="there", **TERMS)
    source.write_bytes(copy)
    with pytest.raises(LedgerError, match="newer one"):
        move(source, target)


def test_a_damaged_ledger_is_not_moved(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    filled(str(path)).close()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"a count", b"a Count"))
    with pytest.raises(LedgerTampered):
        move(path, tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


def test_two_ledgers_for_one_data_set_meet_in_one_data_base(postgres_server: str) -> None:
    name = f"people-{uuid.uuid4()}"
    Ledger.create(f"{postgres_server}?ledger=one-{name}", BUDGET, dataset=name)
    with pytest.raises(LedgerError, match="one data set has one ledger"):
        Ledger.create(f"{postgres_server}?ledger=two-{name}", BUDGET, dataset=name)


@pytest.mark.keeps_out(
    "A second ledger for one data set, by an id that looks the same, a file's name or a move"
)
def test_a_ledger_does_not_move_beside_another_for_its_data_set(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    filled(str(tmp_path / "a" / "one.db"), "Clinic").close()
    filled(str(tmp_path / "b" / "two.db"), "clinic").close()
    with pytest.raises(LedgerError, match="one data set has one ledger"):
        move(tmp_path / "b" / "two.db", tmp_path / "a" / "two.db")
    assert not (tmp_path / "a" / "two.db").exists()
    with Ledger.open(tmp_path / "b" / "two.db") as ledger:  # it was not closed
        ledger.charge(pure(0.0625), purpose="here still", **TERMS)
    with move(tmp_path / "b" / "two.db", tmp_path / "b" / "three.db") as moved:  # beside itself it may lie
        assert moved.dataset == "clinic"


def test_nobody_makes_a_ledger_while_one_for_its_data_set_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    filled(str(tmp_path / "b" / "two.db")).close()
    create, said = SqliteStore.create, []

    def slow(self, rows):
        if self.place.endswith("two.db"):
            other = threading.Thread(target=make)
            other.start()
            other.join(0.5)
            assert not said, "it waits"
            found = create(self, rows)
            waiting.append(other)
            return found
        return create(self, rows)

    def make() -> None:
        try:
            Ledger.create(tmp_path / "a" / "one.db", BUDGET, dataset="people").close()
            said.append("made")
        except LedgerError as error:
            said.append(str(error))

    waiting: list[threading.Thread] = []
    monkeypatch.setattr(SqliteStore, "create", slow)
    move(tmp_path / "b" / "two.db", tmp_path / "a" / "two.db").close()
    waiting[0].join()
    assert "one data set has one ledger" in said[0]
