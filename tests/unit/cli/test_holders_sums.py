"""`sfumato holders vote`, `average`, `attack`, and a rehearsal that is kept for the report."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from sfumato import holders
from sfumato.cli.app import app
from sfumato.holders import rehearsals, tasks
from sfumato.holders.rehearsals import vote_study
from sfumato.holders.sums import new_keys, public_keys
from sfumato.learn import Recipe
from sfumato.runs import SeveralHolders, read_run


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=1)
    for module in (tasks, rehearsals):
        monkeypatch.setattr(module, "recipe_for", lambda name: small)


def asked(*words):
    done = CliRunner().invoke(app, ["holders", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_average():
    words = ("average", "--data", "digits", "--epsilon", 8, "--clients", 6, "--cohort", 3, "--rounds", 2)
    answer = json.loads(asked(*words, "--no-masks", "--json"))
    assert answer["unit"] == "client"
    assert answer["rounds_of_a_client"] == 1
    assert max(answer["epsilon"].values()) <= 8


def test_attack():
    answer = json.loads(asked("attack", "--canaries", 2000, "--pairs", 1, "--json"))
    assert 0 <= answer["lower_bound"] <= answer["claimed_epsilon"]
    assert "lower bound" in asked("attack", "--canaries", 100, "--pairs", 1)


@pytest.mark.parametrize("mechanism", ["gnmax", "confident"])
def test_vote(monkeypatch, mechanism):
    """The command hands its options on; a whole vote has a test of its own."""

    def voted(private, public, *, parties, terms, settings, epsilon, delta, masked):
        assert (terms.mechanism, terms.queries, terms.holders_per_unit) == (mechanism, 6, 2)
        agreed = vote_study(
            terms, parties, public_keys(new_keys(5)), name="x", unit="record", epsilon=epsilon, delta=delta
        )
        return SimpleNamespace(
            student_accuracy=0.9,
            start_accuracy=0.8,
            label_accuracy=1.0,
            labels=np.array([1, -1]),
            study=agreed,
            seconds=0.0,
        )

    monkeypatch.setattr(holders, "simulate_votes", voted)
    words = (
        "vote",
        "--data",
        "digits",
        "--epsilon",
        2,
        "--holders",
        5,
        "--queries",
        6,
        "--holders-per-unit",
        2,
    )
    answer = json.loads(asked(*words, "--mechanism", mechanism, "--json"))
    assert answer["answered"] == 1
    assert answer["teachers"] == 10


def test_a_kept_rehearsal_is_drawn(tmp_path):
    words = ("simulate", "--holders", 3, "--data", "digits", "--epsilon", 1, "--out", tmp_path / "several")
    asked(*words)
    result = read_run(tmp_path / "several").result
    assert isinstance(result, SeveralHolders)
    assert result.recipient == result.coordinator == result.coalition < result.holder <= 1  # nobody colludes
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path / "several"), "--out", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "Several holders, one model" in text
    assert text.count("data:image/png") == 3
    assert "The coordinator with colluding holders" in text
