"""One data set has one ledger, where ledgers lie side by side, whoever makes them and when."""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sfumato.errors import InvalidInput, LedgerError, LittleProtection
from sfumato.ledger import Budget, Ledger, log
from sfumato.ledger.chain import Row, loose_body
from sfumato.ledger.log import known_as
from sfumato.ledger.store import Store, store_at

BUDGET = Budget(epsilon=1, delta=1e-5)
SECOND = "one data set has one ledger"


@pytest.mark.parametrize("make", [Ledger.open, Ledger.create])
def test_a_delta_that_protects_nobody_is_told_of(make, tmp_path, recwarn) -> None:
    weak = "this budget promises practically no protection: expected delta < 1 / 200000 people, got delta=1e-05"
    make(tmp_path / "a.db", BUDGET, people=90_000).close()
    make(tmp_path / "b.db", BUDGET).close()  # nobody said how many there are
    assert not recwarn.list
    with pytest.warns(LittleProtection, match=weak) as told:
        make(tmp_path / "c.db", BUDGET, people=200_000).close()
    assert told[0].filename == __file__  # where the budget was given


def beside(place: str) -> str:
    return f"{place}-2"


def make_both_at_once(places: list[str], dataset: str) -> list[str]:
    said: list[str] = []

    def make(place: str) -> None:
        try:
            Ledger.create(place, BUDGET, dataset=dataset).close()
            said.append("made")
        except LedgerError as error:
            said.append(str(error))

    threads = [threading.Thread(target=make, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(said)


def test_of_two_that_are_created_at_one_moment_one_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, met = log.refuse_second, threading.Barrier(2)

    def look_and_wait(store: Store, dataset: str | None, own: Row | None) -> None:
        looked(store, dataset, own)
        with suppress(threading.BrokenBarrierError):
            met.wait(0.5)  # both have looked before either creates, unless one waits for the other

    monkeypatch.setattr(log, "refuse_second", look_and_wait)
    refused, made = make_both_at_once([place, beside(place)], f"people-{uuid.uuid4()}")
    assert made == "made"
    assert SECOND in refused


def test_who_was_about_to_create_and_failed_lets_the_next_one_in(place: str) -> None:
    dataset = f"people-{uuid.uuid4()}"
    with pytest.raises(RuntimeError, match="died"), store_at(place).creating(dataset):
        raise RuntimeError("died")
    Ledger.create(place, BUDGET, dataset=dataset).close()
    with pytest.raises(LedgerError, match=SECOND):
        Ledger.create(beside(place), BUDGET, dataset=dataset)
    assert Ledger.open(place, BUDGET, dataset=dataset).epsilon_left == 1


def test_creating_leaves_nothing_but_the_ledger(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "a.db", BUDGET, dataset="people").close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_a_killed_creator_holds_no_lock(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            store_at(str(tmp_path / "a.db")).creating("people").__enter__()
            os._exit(9)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    Ledger.create(tmp_path / "b.db", BUDGET, dataset="people").close()


@pytest.mark.parametrize(
    ("first", "second"), [(".a.db", "b.db"), ("a.db", ".b.db"), ("a", "b"), ("a.db", "b.ledger")]
)
def test_a_ledger_is_seen_whatever_its_name(tmp_path: Path, first: str, second: str) -> None:
    Ledger.create(tmp_path / first, BUDGET, dataset="people").close()
    with pytest.raises(LedgerError, match=SECOND):
        Ledger.create(tmp_path / second, BUDGET, dataset="people")


def test_a_ledger_is_seen_while_it_is_written_to(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "a.db", BUDGET, dataset="people").close()
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as busy:
        busy.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match=SECOND):
            Ledger.create(tmp_path / "b.db", BUDGET, dataset="people")
        busy.execute("ROLLBACK")


def test_what_a_dead_creator_wrote_without_a_name_is_no_ledger(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.link = lambda *_: os._exit(9)
            Ledger.create(tmp_path / "a.db", BUDGET, dataset="people")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list(tmp_path.iterdir())
    Ledger.create(tmp_path / "a.db", BUDGET, dataset="people").close()


@pytest.mark.keeps_out(
    "A second ledger for one data set, by an id that looks the same, a file's name or a move"
)
@pytest.mark.parametrize("name", [f".x.{'0' * 32}", ".ledger-a", ".people.db.staged"])
def test_no_name_hides_a_ledger(tmp_path: Path, name: str) -> None:
    Ledger.create(tmp_path / name, BUDGET, dataset="people").close()
    with pytest.raises(LedgerError, match=SECOND):
        Ledger.create(tmp_path / "b.db", BUDGET, dataset="people")


ALIKE = [
    ("caf\u00e9-2026", "cafe\u0301-2026"),
    ("clinic 2026", "clinic  2026"),
    ("clinic 2026", "clinic\u00a02026"),
    ("clinic 2026", "clinic\u30002026"),
    ("clinic", "Clinic"),
    ("stra\u00dfe", "STRASSE"),
    ("K-1", "\u212a-1"),
    ("clinic", "\uff43linic"),
]


@pytest.mark.keeps_out(
    "A second ledger for one data set, by an id that looks the same, a file's name or a move"
)
@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_ids_that_look_alike_are_one_data_set(place: str, one: str, other: str) -> None:
    named = f"{uuid.uuid4()} "
    Ledger.create(place, BUDGET, dataset=named + one).close()
    with pytest.raises(LedgerError, match=SECOND):
        Ledger.create(beside(place), BUDGET, dataset=named + other)
    with Ledger.open(place, dataset=named + other) as ledger:
        assert ledger.dataset == named + one


@pytest.mark.parametrize(
    "hidden", ["\u200b", "\u200d", "\u200c", "\u3164", "\u034f", "\ufe0f", "\u115f", "\uffa0", "\u00ad", "\n"]
)
def test_no_id_has_a_character_that_is_not_seen(tmp_path: Path, hidden: str) -> None:
    with pytest.raises(InvalidInput, match="dataset"):
        Ledger.create(tmp_path / "b.db", BUDGET, dataset=f"clin{hidden}ic")
    assert not (tmp_path / "b.db").exists()
    assert known_as(f"clin{hidden}ic") == "clinic" or hidden == "\n"


@pytest.mark.parametrize(
    "text", ["[1]", "null", "nothing", "{", b"\xff\xfe", None, 7, "[" * 100_000, '{"dataset": ["people"]}']
)
def test_another_file_of_sqlite_in_the_folder_is_passed_over(tmp_path: Path, text: object) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE entries (sequence INTEGER, digest BLOB, text BLOB, settles INTEGER)")
        other.execute("INSERT INTO entries VALUES (0, x'00', ?, NULL)", (text,))
        other.commit()
    Ledger.create(tmp_path / "a.db", BUDGET, dataset="people").close()


def test_an_odd_first_row_names_no_data_set() -> None:
    assert loose_body(Row(0, b"", b"[1]", None)) == {}


@pytest.mark.parametrize("dataset", ["people ", " people", " people "])
def test_ids_with_spaces_around_them_are_refused(place: str, dataset: str) -> None:
    with pytest.raises(InvalidInput, match="without spaces around it"):
        Ledger.create(place, BUDGET, dataset=dataset)
