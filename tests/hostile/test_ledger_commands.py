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
from sfumato.cli import app, query
from sfumato.errors import InvalidInput, LedgerError
from sfumato.ledger import Ledger, PrivateKey, move
from sfumato.ledger.ledger import SpentHere

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


@pytest.mark.keeps_out("A witness of a roll-back that a command overwrites")
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


@pytest.mark.keeps_out("A ledger that does not say that it went on elsewhere")
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


def test_the_statement_names_what_is_neither_spent_nor_left(command, place):
    assert "save together" not in command("ledger", "show", place)[1]
    with Ledger.open(place) as ledger:
        ledger.charge(GaussianEvent(4.0), purpose="a sum", **TERMS)
        assert abs(ledger.epsilon_spent + ledger.epsilon_left - 3) > 0.005
    assert "that charges save together: ε = 3 in all" in " ".join(command("ledger", "show", place)[1].split())


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


NOTHING = "nothing was charged: give the same command again"
AGAIN = "what was charged stays charged, and the same command again is charged again"
GOES_ON = "what was reserved stays charged, and the same command goes on from there"


def written_down(ledger):
    return ledger.reserve(pure(0.1), purpose="x", **TERMS, noted=lambda reservation: None)


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        (lambda ledger: ledger.charges(), NOTHING),
        (lambda ledger: ledger.charge(pure(0.1), purpose="x", **TERMS), AGAIN),
        (lambda ledger: ledger.reserve(pure(0.1), purpose="x", **TERMS), AGAIN),  # nobody knows of it
        (written_down, GOES_ON),
        (lambda ledger: ledger.reservation(written_down(ledger).head), GOES_ON),
        (lambda ledger: written_down(ledger).settle(), AGAIN),
    ],
)
def test_an_interrupt_says_what_is_charged(command, place, monkeypatch, does, sentence):
    def interrupted(*_, **__):
        does(Ledger.open(place))
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "spent_here", SpentHere())
    monkeypatch.setattr(Ledger, "snapshot", interrupted)
    code, _, error = command("ledger", "show", place)
    assert (code, error) == (130, f"sfumato: interrupted; {sentence}\n")


def test_an_answer_that_is_kept_can_be_shown_again(command, tmp_path, monkeypatch):
    """Interrupted when it was paid for and written down, and before it was shown."""
    (tmp_path / "people.csv").write_text("age\n1\n2\n3\n")
    (tmp_path / "people.toml").write_text(
        '[table]\nsource = "people.csv"\nversion = "1"\npublic_size = 3\n[budget]\nepsilon = 1\n'
        'ledger = "people.db"\n[columns.age]\ntype = "integer"\nlower = 0\nupper = 120\n'
    )
    monkeypatch.chdir(tmp_path)
    words = ("query", "people.toml", "SELECT COUNT(*) FROM people", "--epsilon", "0.25")
    with monkeypatch.context() as patched:
        patched.setattr(query, "_show_answer", raise_interrupt)
        code, _, error = command(*words)
    assert code == 130
    assert "the same command with --again shows it at no cost" in error
    assert command(*words, "--again")[0] == 0
    with Ledger.open("people.db") as ledger:
        assert ledger.epsilon_spent == 0.25


def raise_interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("opinion", "--set", "noise_multiplier=1", "--set", "sample_rate=0.01", "--set", "steps=10", "--set",
          "delta=1e-5", "--set", "poisson_sampling=true"), "--set unit=patient"),
        (("train", "--data", "digits", "--model", "mlp", "--epsilon", "1", "--epochs", "1", "--out", "run"),
         "--unit patient"),
    ],
)  # fmt: skip
def test_another_unit_is_told_by_an_option_that_the_command_has(command, tmp_path, monkeypatch, words, remedy):
    monkeypatch.chdir(tmp_path)
    Ledger.create("clinic.db", Budget(epsilon=3, delta=1e-5, unit="patient")).close()
    code, _, error = command(*words, "--ledger", "clinic.db")
    assert code == 1
    assert f"if one row is one patient, say so ({remedy}); if not" in error
    code, _, error = command(*words, *remedy.split(), "--ledger", "clinic.db")
    assert "expected unit" not in error


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


# Ledgers that were changed


def rewrite(place, sequence, old, new, *, seal=False):
    """Change an entry in the file, as whoever has the file can; `seal` writes the hash that fits, too."""
    with sqlite3.connect(place) as connection:
        connection.execute("DROP TRIGGER IF EXISTS entries_stay")
        connection.execute("DROP TRIGGER IF EXISTS entries_remain")
        (text,) = connection.execute("SELECT text FROM entries WHERE sequence = ?", (sequence,)).fetchone()
        changed = bytes(text).replace(old, new)
        assert changed != bytes(text)
        connection.execute("UPDATE entries SET text = ? WHERE sequence = ?", (changed, sequence))
        if seal:
            digest = hashlib.sha256(changed).digest()
            connection.execute("UPDATE entries SET digest = ? WHERE sequence = ?", (digest, sequence))
    connection.close()


@pytest.fixture
def several(place):
    with Ledger.open(place) as ledger:
        for number in range(2, 6):
            ledger.charge(pure(0.1), purpose=f"count {number}", **TERMS)
    return place


@pytest.mark.parametrize("words", [("verify",), ("show",), ("show", "--json")])
def test_every_entry_at_fault_is_named_with_what_it_says_now(command, several, words):
    rewrite(several, 2, b"count 2", b"party 2")
    rewrite(several, 5, b"count 5", b"party 5")
    code, _, error = command("ledger", words[0], several, *words[1:])
    assert code == 1
    assert "2 of 6 entries at fault" in error
    for entry in (2, 5):
        assert f"ledger entry {entry} does not have the hash it was written with" in error
        assert f"entry {entry} now says 'party {entry}', 20" in error
    assert "count 3" not in error
    assert "restore the original from a copy" in error


def test_a_first_entry_at_fault_is_explained_too(command, several):
    rewrite(several, 0, b'"epsilon":3', b'"epsilon":9')
    assert "1 of 6 entries at fault" in command("ledger", "verify", several)[2]


def test_an_entry_that_was_sealed_again_shows_in_the_next(command, several):
    rewrite(several, 2, b"count 2", b"party 2", seal=True)
    error = command("ledger", "verify", several)[2]
    assert "ledger entry 3 does not follow entry 2" in error


def test_an_entry_that_was_taken_out_is_named(command, several):
    with sqlite3.connect(several) as connection:
        connection.execute("DROP TRIGGER entries_remain")
        connection.execute("DELETE FROM entries WHERE sequence = 2")
    connection.close()
    assert "ledger entry 2 is missing" in command("ledger", "verify", several)[2]


# Certificates of another ledger


@pytest.mark.parametrize("dataset", [None, "clinic-2026"])
def test_a_certificate_of_another_ledger_may_be_what_is_wrong(command, place, tmp_path, dataset):
    with Ledger.create(tmp_path / "other.db", Budget(epsilon=3, delta=1e-5), dataset=dataset) as other:
        for number in range(4):
            charge = other.charge(pure(0.1), purpose=f"count {number}", **TERMS)
        other.certificate(charge).write(tmp_path / "c.json")
    error = command("ledger", "verify", place, "--certificate", tmp_path / "c.json")[2]
    expected = "that entry is of another ledger" if dataset is None else "the certificate is of another ledger"
    assert expected in error


# Exports


@pytest.fixture
def export(command, several, tmp_path):
    path = tmp_path / "export.json"
    path.write_text(command("ledger", "export", several)[1])
    return path


def test_an_export_is_read_and_checked_as_the_ledger_is(command, several, export):
    said = json.loads(command("ledger", "verify", export, "--json")[1])
    with Ledger.open(several) as ledger:
        assert said["head"] == ledger.head.to_json()
        assert said["exported"] is True
        spent = ledger.epsilon_spent
    assert json.loads(command("ledger", "show", export, "--json")[1])["epsilon_spent"] == spent
    assert "This is an export" in command("ledger", "show", export)[1]


def test_a_changed_export_is_found(command, export):
    export.write_text(export.read_text().replace("count 3", "party 3"))
    code, _, error = command("ledger", "verify", export)
    assert code == 1
    assert "ledger entry 3 does not have the hash" in error


def test_an_export_that_was_cut_off_is_found(command, export):
    data = json.loads(export.read_text())
    export.write_text(json.dumps({**data, "entries": data["entries"][:-1]}))
    assert "not the head that it names" in command("ledger", "verify", export)[2]


def test_an_export_cannot_be_charged(export):
    with Ledger.open(export) as ledger, pytest.raises(LedgerError, match="an export"):
        ledger.charge(pure(0.1), purpose="a count", **TERMS)


@pytest.mark.parametrize("text", ["{", "{}", '{"entries": [], "budget": {}, "head": {}}', '{"entries": 3}'])
def test_other_json_is_no_ledger(command, tmp_path, text):
    (tmp_path / "odd.json").write_text(text)
    code, _, error = command("ledger", "verify", tmp_path / "odd.json")
    assert code == 1
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "entry", [3, {}, {"hash": 3}, {"hash": "zz", "sequence": 0}, {"hash": "00", "sequence": True}]
)
def test_odd_entries_of_an_export_are_a_sentence(command, export, entry):
    data = json.loads(export.read_text())
    data["entries"][2] = entry
    export.write_text(json.dumps(data))
    code, _, error = command("ledger", "verify", export)
    assert code == 1
    assert "entry 2 of the export is not written as a ledger writes" in error


# One kind of file in the place of another


def test_a_statement_is_called_one(command, place, tmp_path):
    PrivateKey.create(tmp_path / "holder")
    statement = tmp_path / "s.json"
    assert command("statement", "make", place, "--out", statement, "--key", tmp_path / "holder")[0] == 0
    for words in (("verify", statement), ("key", "sign", statement, "--key", tmp_path / "holder")):
        code, _, error = command(*words)
        assert code
        assert "expected a certificate, got a statement; check it with: sfumato statement check" in error
    error = command("ledger", "verify", place, "--witness", statement)[2]
    assert "expected a witness of a ledger, got a statement" in error
    assert "got a statement" in command("ledger", "show", statement)[2]


def test_a_certificate_is_no_statement(command, place, tmp_path):
    with Ledger.open(place) as ledger:
        ledger.certificate(ledger.charges()[0]).write(tmp_path / "c.json")
    error = command("statement", "check", tmp_path / "c.json")[2]
    assert "expected a statement, got a certificate; check it with: sfumato verify" in error


@pytest.mark.parametrize("ending", ["json", "html"])
def test_a_statement_is_not_overwritten(command, place, tmp_path, ending):
    out = tmp_path / f"s.{ending}"
    assert command("statement", "make", place, "--out", out)[0] == 0
    before = out.read_bytes()
    code, _, error = command("statement", "make", place, "--out", out, "--holder", "Another")
    assert (code, out.read_bytes()) == (2, before)
    assert "expected no file at" in error


def test_whose_word_a_witness_is_stands_beside_the_verdict(command, place, tmp_path):
    key = PrivateKey.create(tmp_path / "holder")
    command("ledger", "head", place, "--out", tmp_path / "plain.json")
    command("ledger", "head", place, "--out", tmp_path / "signed.json", "--sign", tmp_path / "holder")
    said = " ".join(command("ledger", "verify", place, "--witness", tmp_path / "plain.json")[1].split())
    assert "The witness is not signed: whoever had the file could change it." in said
    said = " ".join(command("ledger", "verify", place, "--witness", tmp_path / "signed.json")[1].split())
    assert f"The witness is signed by the key {key.public.id}; whose that is was not checked" in said
    asked = ("ledger", "verify", place, "--witness", tmp_path / "signed.json", "--key", tmp_path / "holder.pub")
    assert "not checked" not in command(*asked)[1]
    assert json.loads(command(*asked, "--json")[1])["signers"] == {"witness": key.public.id}


def test_a_ledger_that_is_not_there_may_be_a_wrong_path(command, tmp_path):
    assert "check the path, or make one with" in command("ledger", "verify", tmp_path / "nothere.db")[2]
