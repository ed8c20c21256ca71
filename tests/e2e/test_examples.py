"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from sfumato.ledger import Ledger

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_fine_tuning_text(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    ledger = tmp_path / "hospital.db"
    found = load("fine_tune_text").main(people=120, epsilon=100.0, steps=3, epochs=1, ledger=ledger)
    assert 99 < found["epsilon"] <= 100.0
    assert {0 <= found[when] <= 1 for when in ("before", "after")} == {True}  # so few steps need not teach
    assert Ledger.open(ledger).epsilon_spent == pytest.approx(found["epsilon"], rel=0.05)


def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    ledger = tmp_path / "digits.db"
    found = load("with_lightning").main(epsilon=50.0, epochs=2, ledger=ledger)
    assert 49 < found["epsilon"] <= 50.0
    assert found["accuracy"] > 0.3  # of ten classes
    assert Ledger.open(ledger).epsilon_spent == pytest.approx(found["epsilon"], rel=0.05)


def test_the_trainer_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    ledger = tmp_path / "sentences.db"
    found = load("with_hugging_face_trainer").main(
        people=160, epsilon=100.0, epochs=0.5, workers=1, ledger=ledger
    )
    assert 99 < found["epsilon"] <= 100.0
    assert found["steps"] == 4
    assert 0 <= found["accuracy"] <= 1  # so few steps need not teach
    assert Ledger.open(ledger).epsilon_spent == pytest.approx(found["epsilon"], rel=0.05)
