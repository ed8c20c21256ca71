"""`sfumato pate` as a user calls it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from sfumato.accounting import Budget
from sfumato.cli.app import app
from sfumato.ledger import Ledger

NAMES = {"data_independent_epsilon", "data_dependent_epsilon", "source_moments_epsilon"}


def called(*arguments):
    done = CliRunner().invoke(app, ["pate", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def votes(tmp_path):
    path = tmp_path / "votes.npy"
    np.save(path, np.where(np.arange(50)[:, None] < 45, np.arange(20) % 10, 3))
    return path


@pytest.mark.parametrize(
    "options",
    [
        ["--mechanism", "laplace", "--gamma", 0.1],
        ["--mechanism", "gnmax", "--sigma", 20],
        ["--mechanism", "confident", "--threshold", 30, "--sigma-threshold", 30, "--sigma", 20],
        ["--mechanism", "confident", "--threshold", 30, "--sigma-threshold", 30, "--sigma", 20, "--answers", 5],
    ],
)
def test_analyze(votes, options):
    found = json.loads(called("analyze", votes, *options, "--delta", "1e-5", "--json"))
    assert set(found) >= NAMES
    assert 0 <= found["data_dependent_epsilon"] <= found["data_independent_epsilon"]
    assert (found["source_moments_epsilon"] is None) == ("laplace" not in options)


def test_the_source_by_command(tmp_path):
    np.save(tmp_path / "v.npy", np.full((100, 20), 4))
    found = json.loads(
        called("analyze", tmp_path / "v.npy", "--mechanism", "laplace", "--gamma", 0.1, "--json")
    )
    # 20 queries: min over l of 20·½·.2²·(l+1) + ln(1e5)/l, at l = 5.
    assert found["source_moments_epsilon"] == pytest.approx(0.4 * 6 + np.log(1e5) / 5)


def test_analyze_in_words(votes):
    text = called("analyze", votes, "--mechanism", "gnmax", "--sigma", 20)
    assert "not for publication" in text


def test_run_on_the_embedded_data(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=20, delta=1e-5)):
        pass
    options = ["--data", "digits", "--teachers", 20, "--epsilon", 8, "--queries", 20, "--adapt-steps", 0]
    options += ["--epochs", 3, "--folds", 2, "--ledger", tmp_path / "l.db", "--out", tmp_path / "run"]
    answer = json.loads(called(*options, "--json"))
    assert 0.5 < answer["student_accuracy"] <= 1
    assert 7.9 <= answer["epsilon"] <= 8
    assert answer["epsilon_spent"] == pytest.approx(answer["epsilon"], rel=1e-3)
    assert (tmp_path / "run" / "release" / "certificate.json").exists()
