"""Names of classes, categories and files, chosen by whoever wrote them, on a terminal and in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from typer.testing import CliRunner

from sfumato import models
from sfumato.accounting import GaussianEvent
from sfumato.cli import app as program
from sfumato.cli import show
from sfumato.display import csv_bytes, visible, visible_json
from sfumato.ledger import Certificate
from sfumato.released import MODEL, ModelCard, Released
from sfumato.storage import CERTIFICATE, RunFolder, json_bytes

CLEARS = "\x1b[2J\x1b]0;owned\x07"  # the screen, and the window's title
TRICKS = (CLEARS, "\x9b2J", "a\rb", "a\nb", "a\u202egnp.exe", "\u2028", "\x00")
hostile = st.text(st.characters() | st.sampled_from("\x1b\x9b\r\n\u202e\x07=+-@'"), max_size=20)


def has_controls(text: str) -> bool:
    return any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in text)


@pytest.fixture
def run(tmp_path):
    """A finished run whose classes have hostile names."""
    folder = RunFolder.make(tmp_path / "run")
    names = (CLEARS, "=cmd|' /C calc'!A0", "@SUM(1)")
    card = ModelCard(architecture="mlp", classes=names, shape=(1, 8, 8))
    module = models.build("mlp", classes=3, side=8, seed=1)
    folder.write(MODEL, Released(module=module, card=card).to_bytes())
    Certificate.of(GaussianEvent(4.0), purpose="a model", delta=1e-5).write(folder.release / CERTIFICATE)
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random((30, 8, 8)))
    return folder.path


@pytest.mark.keeps_out("A name from a file that rewrites the terminal, or is a formula in a spreadsheet")
def test_no_name_of_a_class_moves_the_terminal(run, tmp_path):
    arguments = ["predict", str(run), str(tmp_path / "in.npy")]
    shown = CliRunner().invoke(program.app, arguments)
    assert shown.exit_code == 0, shown.output
    assert not has_controls(shown.output)
    whole = CliRunner().invoke(program.app, [*arguments, "--probabilities", "--json"])
    assert not has_controls(whole.output)
    assert json.loads(whole.output)["classes"][0] == CLEARS, "JSON keeps the name itself"


@pytest.mark.keeps_out("A name from a file that rewrites the terminal, or is a formula in a spreadsheet")
def test_no_cell_of_the_answers_is_a_formula(run, tmp_path):
    out = tmp_path / "answers.csv"
    asked = ["predict", str(run), str(tmp_path / "in.npy"), "--out", str(out), "--probabilities"]
    assert CliRunner().invoke(program.app, asked).exit_code == 0
    content = out.read_text()
    assert not has_controls(content)
    cells = [cell for row in csv.reader(io.StringIO(content)) for cell in row]
    assert not [cell for cell in cells if cell[:1] in "=+@" and cell]


@given(value=hostile)
def test_no_text_becomes_a_formula_or_a_control(value):
    content = csv_bytes([[value, "-3.5", -3.5]]).decode()
    (row,) = csv.reader(io.StringIO(content))
    assert row[1:] == ["-3.5", "-3.5"], "numbers stay numbers"
    assert not has_controls(content)
    assert row[0][:1] not in ("=", "@", "\t") or not row[0]


@given(value=hostile)
def test_json_on_a_terminal_says_the_same(value):
    text = visible_json(json.dumps({"name": value}, ensure_ascii=False))
    assert json.loads(text) == {"name": value}
    assert not has_controls(text)


def test_json_in_files_holds_no_controls():
    content = json_bytes({"name": "a\x9b\u202eb"}).decode()
    assert not has_controls(content)
    assert "\u202e" not in content
    assert json.loads(content) == {"name": "a\x9b\u202eb"}


@pytest.mark.keeps_out("A name from a file that rewrites the terminal, or is a formula in a spreadsheet")
@pytest.mark.parametrize("name", TRICKS)
def test_whatever_is_printed_is_text(name):
    """By way of every kind of thing that commands print."""
    console = show._Console(file=io.StringIO(), force_terminal=True, color_system=None)
    table = Table("name")
    table.add_row(name)
    for printed in (name, table):
        console.print(printed, markup=False)
    show_output = console.file.getvalue().replace("\n", "")
    assert "owned" not in show_output or "\\x1b]0;owned" in show_output
    assert not has_controls(show_output)


@pytest.mark.parametrize("name", TRICKS)
def test_an_error_that_quotes_a_name_is_one_line(name, capsys):
    with pytest.raises(SystemExit):
        program._stop(f"expected a class, got {name}", 2)
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert not has_controls(text.removesuffix("\n"))


def test_ordinary_names_stay_as_they_are():
    for name in ("Delft", "Škoda", "東京", "👩\u200d🔬", "a b", "50 %", "−5 °C"):
        assert visible(name) == name
        assert csv_bytes([[name]]).decode() == name + "\n"
