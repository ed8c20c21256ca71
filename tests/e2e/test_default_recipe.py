"""`sfumato train` with no model named: the recipe, on known data and on the user's own images."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sfumato.datasets import fetch
from sfumato.errors import DataUnavailable
from sfumato_lab.drawings import strokes

FLOOR = 0.972
"""Five runs of the command below gave 97.98, 97.77, 97.88, 97.81 and 97.66%: mean 97.82, standard deviation
0.12. A sound run falls five deviations below the mean, under 97.2, with a chance of about 3e-7, if such runs
are normally distributed. Steps that were not shortened for the smaller size gave 93 to 94."""


@pytest.mark.slow
def test_the_default_recipe_keeps_its_accuracy_on_a_part_of_mnist(sfumato_json, tmp_path):
    try:
        fetch("mnist")
    except DataUnavailable as error:
        pytest.skip(str(error))
    words = ("train", "--data", "mnist", "--train-size", 6000, "--epsilon", 2, "--out", tmp_path / "run")
    answer = sfumato_json(*words)
    assert answer["test_accuracy"] >= FLOOR
    assert 1.98 <= answer["epsilon"] <= 2
    certificate = tmp_path / "run" / "release" / "certificate.json"
    assert sfumato_json("verify", certificate)["pld"] == pytest.approx(answer["epsilon"])
    assert any(
        "public prior 'strokes-wide'" in caveat["text"]
        for caveat in json.loads(certificate.read_text())["caveats"]
    )


@pytest.fixture
def own(tmp_path):
    """Two kinds of digits, larger than the recipe's images, in colour."""
    images, labels = strokes.draw(600, seed=3)
    chosen = labels < 2
    colour = np.repeat(images[chosen].repeat(2, 1).repeat(2, 2)[..., np.newaxis], 3, axis=3)
    np.savez(tmp_path / "strokes.npz", images=colour, labels=labels[chosen])
    return tmp_path / "strokes.npz"


def test_own_images_of_any_size_are_trained_on_and_asked_what_may_be_known(sfumato, sfumato_json, own):
    words = ("train", "--data", own, "--epsilon", 8, "--epochs", 10)
    code, _, error = sfumato(*words)
    assert code == 2
    assert "--public-size and --classes" in error
    declared = (*words, "--public-size", 120, "--classes", 2)
    assert sfumato_json(*declared)["test_accuracy"] is None  # nothing public to measure on
    assert sfumato_json(*declared, "--test-data", own)["test_accuracy"] > 0.9  # noughts and ones


def test_a_search_for_settings_from_the_command_line(sfumato, sfumato_json, own, tmp_path):
    ledger = tmp_path / "own.db"
    sfumato_json("ledger", "create", ledger, "--epsilon", 8, "--delta", 1e-5)
    words = ("tune", "--data", own, "--public-size", 120, "--classes", 2, "--trials", 2, "--ledger", ledger)
    answer = sfumato_json(*words, "--epsilon", 8, "--out", tmp_path / "run")
    assert answer["epsilon"] <= answer["epsilon_spent"] <= 8
    assert answer["learning_rate"] in (2, 8, 32)
    certificate = tmp_path / "run" / "release" / "certificate.json"
    assert sfumato_json("verify", certificate)["rdp"] == pytest.approx(answer["epsilon"])
    code, _, error = sfumato(*words, "--epsilon", 8, "--out", tmp_path / "again")
    assert code == 3
    assert "epsilon_left" in error
    assert sfumato(*words, "--epsilon", 8, "--out", tmp_path / "third", "--clip-norms", "a,b")[0] == 2


def test_a_dry_run_of_the_recipe_spends_nothing(sfumato_json, own):
    words = ("train", "--data", own, "--public-size", 120, "--classes", 2, "--epsilon", 1, "--dry-run")
    assert sfumato_json(*words)["epsilon"] <= 1
