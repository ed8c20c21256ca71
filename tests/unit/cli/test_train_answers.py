"""What `sfumato train` prints of a run."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from sfumato.accounting import Budget
from sfumato.cli.app import app
from sfumato.ledger import Ledger


@pytest.fixture
def words(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (60, 28, 28), dtype=np.uint8), rng.integers(0, 10, 60)
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    data = ["--data", str(tmp_path / "own.npz"), "--public-size", "60", "--classes", "10"]
    return ["train", *data, "--model", "mlp", "--epsilon", "1", "--epochs", "1"]


def test_what_was_not_measured_is_said_in_words(words):
    told = " ".join(CliRunner().invoke(app, words).stdout.split())
    assert "test accuracy not measured; give public images as --test-data" in told
    assert "None" not in told


def test_programs_read_null(words):
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["test_accuracy"] is None


def test_a_dry_run_says_what_would_be_left(words, tmp_path):
    place = str(tmp_path / "people.db")
    Ledger.create(place, Budget(epsilon=3, delta=1e-5)).close()
    asked = [*words, "--dry-run", "--ledger", place]
    told = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert told["epsilon_left"] == 3
    assert 0 < told["epsilon_left_after"] < 3
    said = " ".join(CliRunner().invoke(app, asked).stdout.split())
    assert f"It fits. Nothing was spent; ε left 3, and {told['epsilon_left_after']:.4g} after it." in said
    assert "epsilon left" not in said  # the sentence says it
