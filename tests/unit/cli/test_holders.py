"""`sfumato holders`: signing and checking a study, and a rehearsal of one."""

import json

import pytest
from typer.testing import CliRunner

from sfumato.cli.app import app
from sfumato.holders import tasks
from sfumato.learn import Recipe

STUDY = """
[study]
name = "digits"
data = "digits"
classes = 10
public_size = 1400
largest_share = 0.4
unit = "record"
epsilon = 1.0
delta = 1e-5
dropped = 0
colluding = 1
spare = 0
[holders]
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=1)
    monkeypatch.setattr(tasks, "recipe_for", lambda name: small)


def asked(*words):
    return CliRunner().invoke(app, ["holders", *map(str, words)])


def test_a_study_is_signed_and_checked(tmp_path):
    lines = []
    for name in ("a", "b", "c"):
        assert CliRunner().invoke(app, ["key", "create", str(tmp_path / name)]).exit_code == 0
        lines.append(f'{name} = "{(tmp_path / f"{name}.pub").read_text().splitlines()[1]}"')
    place = tmp_path / "study.toml"
    place.write_text(STUDY + "\n".join(lines))
    for name in ("a", "b", "c"):
        done = asked("sign", place, "--key", tmp_path / name, "--out", tmp_path / f"{name}.json", "--json")
        assert done.exit_code == 0
    files = [word for name in ("a", "b", "c") for word in ("--signatures", tmp_path / f"{name}.json")]
    ledger = tmp_path / "mine.db"
    made = ["ledger", "create", str(ledger), "--epsilon", "1", "--delta", "1e-5"]
    assert CliRunner().invoke(app, made).exit_code == 0
    answer = json.loads(asked("check", place, *files, "--ledger", ledger, "--json").stdout)
    assert answer["signed"] is True
    assert answer["epsilon"]["coalition"] <= 1
    assert answer["threshold"] == 3
    assert answer["epsilon_left"] == pytest.approx(1)  # nothing was charged
    shown = asked("check", place)
    assert "ε against" in shown.stdout
    assert asked("check", place, *files[:4]).exit_code != 0  # one signature is missing


def test_a_rehearsal_answers_in_json():
    done = asked("simulate", "--holders", 3, "--data", "digits", "--epsilon", 1, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert set(answer["epsilon"]) == {"recipient", "holder", "coordinator", "coalition"}
    assert 0 <= answer["test_accuracy"] <= 1
    assert max(answer["epsilon"].values()) <= 1
