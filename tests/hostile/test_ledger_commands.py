"""What the command line says of a ledger is true: of one that is gone, moved, or has a witness already."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from importlib.metadata import version

import pytest

from sfumato import TrainingPlan
from sfumato.accounting import Budget, GaussianEvent, Relation, pure
from sfumato.cli import app
from sfumato.errors import InvalidInput
from sfumato.ledger import Ledger, PrivateKey, move

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `sfumato …`: the exit code, what it printed, and what it said on standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["sfumato", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            app.main()
        printed = capsys.readouterr()
        return stopped.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def place(tmp_path):
    with Ledger.create(tmp_path / "people.db", Budget(epsilon=3, delta=1e-5)) as ledger:
        ledger.charge(pure(0.1), purpose="a count", **TERMS)
    return tmp_path / "people.db"


# Witnesses


def test_a_later_witness_takes_the_place_of_an_older_one(command, place, tmp_path):
    out = tmp_path / "head.json"
    assert command("ledger", "head", place, "--out", out)[0] == 0
    with Ledger.open(place) as ledger:
        newest = ledger.charge(pure(0.1), purpose="another", **TERMS).head
    assert command("ledger", "head", place, "--out", out)[0] == 0
    assert json.loads(out.read_text())["sequence"] == newest.sequence


@pytest.mark.parametrize("kind", ["other ledger", "rolled back", "unsigned", "other key", "notes"])
def test_a_witness_is_not_overwritten(command, place, tmp_path, kind):
    """It is the only trace of a roll-back: no command may wipe it."""
    out, old = tmp_path / "head.json", place.read_bytes()
    for name in ("holder", "stranger"):
        PrivateKey.create(tmp_path / name)
    sign = ("--sign", tmp_path / "holder")
    if kind == "rolled back":
        with Ledger.open(place) as ledger:
            ledger.charge(pure(0.1), purpose="forgotten", **TERMS)
    assert command("ledger", "head", place, *sign, "--out", out)[0] == 0
    if kind == "rolled back":
        place.write_bytes(old)
    if kind == "other ledger":
        place = tmp_path / "other.db"
        Ledger.create(place, Budget(epsilon=3, delta=1e-5)).close()
    if kind == "notes":
        out.write_text('{"my": "notes"}')
    kept = out.read_bytes()
    key = {"unsigned": (), "other key": ("--sign", tmp_path / "stranger")}.get(kind, sign)
    code, _, error = command("ledger", "head", place, *key, "--out", out)
    assert code in (1, 2)
    assert error.count("\n") == 1
    assert out.read_bytes() == kept


# Places


def test_a_ledger_is_not_moved_onto_itself(command, place, tmp_path):
    (tmp_path / "alias.db").symlink_to(place)
    before = place.read_bytes()
    for target in (place, tmp_path / "." / "people.db", tmp_path / "alias.db"):
        code, _, error = command("ledger", "move", place, target)
        assert code == 2
        assert "another place" in error
    assert place.read_bytes() == before


def test_a_moved_ledger_says_so(command, place, tmp_path):
    move(place, tmp_path / "new.db").close()
    for word in ("show", "verify"):
        assert str(tmp_path / "new.db") in "".join(command("ledger", word, place)[1].split("\n"))
        assert json.loads(command("ledger", word, place, "--json")[1])["moved_to"] == str(tmp_path / "new.db")
        assert json.loads(command("ledger", word, tmp_path / "new.db", "--json")[1])["moved_to"] is None


def test_a_ledger_that_is_not_there_is_made_by_a_command(command, tmp_path):
    code, _, error = command("ledger", "show", tmp_path / "no.db")
    assert code == 1
    assert "sfumato ledger create" in error
    assert "Ledger.open" not in error


# Sums


def test_the_statement_says_why_spent_and_left_do_not_add_up(command, place):
    assert "do not add up" not in command("ledger", "show", place)[1]
    with Ledger.open(place) as ledger:
        ledger.charge(GaussianEvent(4.0), purpose="a sum", **TERMS)
        assert abs(ledger.epsilon_spent + ledger.epsilon_left - 3) > 0.005
    assert "do not add up to the budget" in " ".join(command("ledger", "show", place)[1].split())


# Forged entries


@pytest.mark.parametrize("json_", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"purpose":', '"purpose":"a count","purpose":'),
        ('"units":[', '"units":[0'),
        ('"event":{', '"event": {'),
    ],
)
def test_an_entry_that_no_ledger_wrote_is_not_shown(command, place, old, new, json_):
    """Whoever can write the file can also hash."""
    with Ledger.open(place) as ledger:
        ledger.charge(pure(0.1), purpose="another", **TERMS)
        first, second = list(ledger._store.rows())[1:]
    text = first.text.replace(old.encode(), new.encode(), 1)
    digest = hashlib.sha256(text).digest()
    follows = second.text.replace(first.digest.hex().encode(), digest.hex().encode())
    with sqlite3.connect(place) as connection:
        for name in [
            row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='trigger'")
        ]:
            connection.execute(f"DROP TRIGGER {name}")
        for number, written in ((1, text), (2, follows)):
            values = (hashlib.sha256(written).digest(), written, number)
            connection.execute("UPDATE entries SET digest = ?, text = ? WHERE sequence = ?", values)
    code, printed, error = command("ledger", "show", place, *json_)
    assert code == 1
    assert printed == ""
    assert "ledger entry 1 is not written as a ledger writes: it was forged" in error


# The rest


@pytest.mark.parametrize("charges", [True, False])
def test_an_interrupt_says_what_is_charged(command, place, monkeypatch, charges):
    def interrupted(*_, **__):
        if charges:
            Ledger.open(place).reserve(pure(0.1), purpose="x", **TERMS)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "spent_here", False)
    monkeypatch.setattr(Ledger, "snapshot", interrupted)
    code, _, error = command("ledger", "show", place)
    assert code == 1
    assert ("stays charged" in error) == charges
    assert ("nothing was charged" in error) != charges


def test_the_version_is_told(command):
    assert command("--version") == (0, f"sfumato {version('sfumato')}\n", "")


def test_a_plan_at_delta_zero_is_refused_in_a_sentence():
    with pytest.raises(InvalidInput, match="expected delta > 0, got delta=0"):
        TrainingPlan.calibrated(epsilon=1, delta=0, public_size=100, expected_batch=10, epochs=1)


@pytest.mark.parametrize("words", [("verify",), ("show",), ("show", "--json"), ("export",)])
def test_no_entry_drives_a_terminal(command, place, words):
    """Behind hashes that fit, and first of all in what is printed."""
    with sqlite3.connect(place) as connection:
        for name in ("entries_stay", "entries_remain"):
            connection.execute(f"DROP TRIGGER IF EXISTS {name}")
        (text,) = connection.execute("SELECT text FROM entries WHERE sequence = 1").fetchone()
        forged = bytes(text).replace(b'"purpose":"', b'"purpose":"\\u001b]0;owned\\u0007')
        assert forged != bytes(text)
        digest = hashlib.sha256(forged).digest()
        connection.execute("UPDATE entries SET text = ?, digest = ? WHERE sequence = 1", (forged, digest))
    connection.close()
    code, out, error = command("ledger", words[0], place, *words[1:])
    assert code == (0 if words == ("export",) else 1)
    assert not {"\x1b", "\x07"} & set(out + error)
    if code:
        assert "holds hidden or control characters" in error
