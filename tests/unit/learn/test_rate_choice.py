"""The learning rate is chosen on drawn digits only, at the noise that the full size will have."""

import pytest

from sfumato import datasets
from sfumato.datasets import Dataset
from sfumato_lab.drawings.strokes import draw
from sfumato_lab.reproduce import private_cnn


def drawn(count):
    images, labels = draw(50, seed=3)  # fewer than declared: nothing is trained on them
    inputs = images[:, None].astype("float32") / 255
    return Dataset(
        inputs=inputs, targets=labels, name="drawn", visibility="public", classes=10, public_size=count
    )


def test_rates_are_compared_on_drawings_at_the_full_size_noise(monkeypatch):
    asked, plans = [], []

    def load(name, split):
        asked.append(name)
        return drawn(60_000 if split == "train" else 10_000)

    def train(model, data, plan, **more):
        plans.append((plan, more["optimization"].learning_rate))
        return type("Result", (), {"model": model})

    monkeypatch.setattr(datasets, "load", load)
    monkeypatch.setattr(private_cnn, "train", train)
    found = private_cnn.tune(rates=(0.5, 1.0))
    assert set(asked) == {"strokes"}
    assert list(found) == [rate for _, rate in plans] == [0.5, 1.0]
    assert all(0 <= accuracy <= 1 for accuracy in found.values())
    full = private_cnn.our_plan(private_cnn.TRIAL)
    for plan, _ in plans:
        assert plan.noise_multiplier / plan.expected_batch == pytest.approx(
            full.noise_multiplier / full.expected_batch
        )
        assert (plan.steps, plan.sample_rate) == (full.steps, full.sample_rate)
        assert plan.expected_batch / plan.sample_rate == pytest.approx(15_000)
