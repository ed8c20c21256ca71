"""Replay: the same run on neighbouring data sets with frozen randomness.

All that is public must be equal, and what the mechanism is handed may differ by the declared sensitivity.
"""

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.randomness import SecretStream
from sfumato.training import Flat, PrivateTrainer, TrainingPlan, cross_entropy
from sfumato.training.engine import Engine

ROWS = 40
PLAN = TrainingPlan(sample_rate=0.4, expected_batch=16, steps=3, noise_multiplier=1.0, clip_norm=0.3)


class FrozenStream:
    """One uniform for each *record* and step, whoever else is there, and zero noise that is recorded."""

    private = False

    def __init__(self, names):
        self.names = names
        self.steps = 0
        self.handed = []

    def uniform(self, size):
        self.steps += 1
        draws = SecretStream(test_seed=self.steps).uniform(ROWS + 1)
        return draws[self.names[:size]]

    def integers(self, high, size):
        return np.arange(size) % high

    def rounded_normal(self, scale, size):
        return np.full(size, 7, dtype=np.int64)


def replay(data, names):
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)))
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), lr=0.0), PLAN, sampler=FrozenStream(names)
    )
    handed = []
    for batch in trainer.batches(data):
        trainer.step(batch, cross_entropy)
        handed.append(torch.cat([p.grad.flatten() for p in trainer.parameters.values()]) * PLAN.expected_batch)
    return trainer, torch.stack(handed).double()


@pytest.mark.keeps_out("Data set size leaking through the rate or the expected batch")
@pytest.mark.parametrize("seed", range(25))
def test_neighbours_differ_by_the_sensitivity_and_in_nothing_else(seed):
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** float(torch.randint(-3, 4, (1,), generator=generator))
    inputs = torch.randn(ROWS, 6, generator=generator) * scale
    targets = torch.randint(0, 3, (ROWS,), generator=generator)
    names = np.arange(ROWS)
    gone = int(torch.randint(0, ROWS, (1,), generator=generator))
    left = names != gone
    whole, with_record = replay((inputs, targets), names)
    less, without = replay((inputs[left], targets[left]), names[left])
    distances = (with_record - without).norm(dim=1)
    assert float(distances.max()) <= PLAN.clip_norm * (1 + whole.eta) * (1 + 1e-6)
    assert whole.eta == less.eta
    assert whole.steps_done == less.steps_done
    one, other = (trainer.certificate(delta=1e-5).to_json() for trainer in (whole, less))
    assert one == other  # the number of rows shows nowhere


@pytest.mark.keeps_out("The clipped copy discarded")
def test_an_unclipped_step_would_be_seen(monkeypatch):
    """The same comparison finds a clip that does nothing."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 6, generator=generator) * 100
    targets = torch.randint(0, 3, (ROWS,), generator=generator)
    honest = Engine.clipped

    def unclipped(self, rows, labels, clipping, **more):
        return honest(self, rows, labels, Flat(norm=float("inf")), **more)

    monkeypatch.setattr(Engine, "clipped", unclipped)
    _, whole = replay((inputs, targets), np.arange(ROWS))
    worst = 0.0
    for gone in range(ROWS):
        left = np.arange(ROWS) != gone
        _, less = replay((inputs[left], targets[left]), np.arange(ROWS)[left])
        worst = max(worst, float((whole - less).norm(dim=1).max()))
        if worst > 2 * PLAN.clip_norm:
            break
    assert worst > 2 * PLAN.clip_norm
