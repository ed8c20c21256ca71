"""The CNN from random weights: priced, with less noise than published settings have, and learning."""

from sfumato import datasets
from sfumato.training import Optimization
from sfumato_lab.reproduce import end_to_end
from sfumato_lab.reproduce.pixels import standardized


def test_the_plan_costs_what_was_asked_for_and_has_less_noise_than_published():
    """Published: 1.23, for an ε of 3 by an early conversion of Rényi divergences."""
    plan = end_to_end.plan(epsilon=3.0, delta=1e-5, public_size=60_000)
    assert 2.98 < plan.epsilon(1e-5) <= 3.0
    assert plan.noise_multiplier < 1.23


def test_it_learns_drawn_digits(monkeypatch):
    """A tenth are right by chance; five standard errors on 300 digits are .09."""
    monkeypatch.setattr(end_to_end, "OPTIMIZATION", Optimization(learning_rate=2.0, momentum=0.9))
    monkeypatch.setattr(end_to_end, "EPOCHS", 12)
    drawn = standardized(datasets.load("strokes", "test"))
    result = end_to_end.run(drawn.take(400), drawn.take(300, start=400), epsilon=50.0, delta=1e-5)
    assert result.epsilon <= 50
    assert result.test_accuracy > 0.3
