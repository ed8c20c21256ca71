"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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
    found = load("fine_tune_text").main(people=240, epsilon=100.0, steps=6, ledger=tmp_path / "hospital.db")
    assert found["epsilon"] <= 100.0
    assert found["after"] > found["before"]
