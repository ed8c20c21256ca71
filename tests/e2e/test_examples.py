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
    found = load("fine_tune_text").main(people=120, epsilon=100.0, steps=3, ledger=ledger)
    assert 99 < found["epsilon"] <= 100.0
    assert {0 <= found[when] <= 1 for when in ("before", "after")} == {True}  # three steps need not teach
    assert Ledger.open(ledger).epsilon_spent == pytest.approx(found["epsilon"], rel=0.05)
