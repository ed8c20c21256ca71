"""The CNN from random weights: priced, with more signal over its noise than published settings, learning."""

import math

import pytest

from sfumato import datasets
from sfumato.experiments import end_to_end
from sfumato.experiments.pixels import standardized
from sfumato.training import TrainingPlan


def signal(plan):
    return math.sqrt(plan.steps) * plan.expected_batch / plan.noise_multiplier


def test_the_plan_costs_what_was_asked_for_and_has_more_signal_than_the_published_one():
    ours = end_to_end.plan(epsilon=3.0, delta=1e-5, public_size=60_000)
    assert 2.98 < ours.epsilon(1e-5) <= 3.0
    theirs = TrainingPlan.calibrated(
        epsilon=3.0, delta=1e-5, public_size=60_000, expected_batch=512, epochs=40, clip_norm=0.1
    )
    assert signal(theirs) == pytest.approx(33e3, rel=0.02)
    assert signal(ours) == pytest.approx(39e3, rel=0.02)


def test_it_learns_drawn_digits(monkeypatch):
    """A tenth are right by chance; five standard errors on 300 digits are .09."""
    monkeypatch.setattr(end_to_end, "EPOCHS", 12)
    rows, test = (standardized(datasets.load("strokes", split)) for split in ("train", "test"))
    result = end_to_end.run(rows.take(1200), test.take(300), epsilon=50.0, delta=1e-5)
    assert result.epsilon <= 50
    assert result.test_accuracy > 0.3
