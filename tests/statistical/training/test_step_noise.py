"""The noise that reaches the weights: its scale in every layer, its independence, its grid.

Scales are compared on n = 262,144 draws: the standard deviation of a normal sample's is σ/√2n = .14% of σ, so a
tolerance of .7% is five of them and a 2% mutant lies fourteen away. Correlations of n independent pairs have
standard deviation 1/√n, tested at |z| ≤ 6 (2e-9 a check).
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.randomness import SecretStream
from sfumato.training import PrivateTrainer, TrainingPlan

WIDTH = 512
PLAN = TrainingPlan(sample_rate=0.5, expected_batch=4, steps=1, noise_multiplier=1.3, clip_norm=0.5)


def noise_of_steps(plan=PLAN, sampler=None):
    """Gradients of steps on no rows at all: noise alone. One (layer → values) table for each step."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, sampler=sampler)
    tables = []
    for batch in trainer.batches((torch.zeros(0, WIDTH), torch.zeros(0))):
        trainer.step(batch, lambda outputs, targets: outputs.sum(1))
        tables.append(
            {name: p.grad.flatten().double() * plan.expected_batch for name, p in trainer.parameters.items()}
        )
    return trainer, tables


def correlation(one, other):
    return float((one * other).mean() / (one.std() * other.std()))


def test_scale_in_every_layer():
    trainer, (table,) = noise_of_steps()
    expected = PLAN.noise_multiplier * PLAN.clip_norm * (1 + trainer.eta)
    for values in table.values():
        assert float(values.std()) == pytest.approx(expected, rel=0.007)
        assert abs(float(values.mean())) < 6 * expected / math.sqrt(len(values))


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_mutant_of_two_percent_is_rejected(factor):
    trainer, (table,) = noise_of_steps(replace(PLAN, noise_multiplier=PLAN.noise_multiplier * factor))
    expected = PLAN.noise_multiplier * PLAN.clip_norm * (1 + trainer.eta)
    assert any(float(values.std()) != pytest.approx(expected, rel=0.007) for values in table.values())


def test_independent_across_steps_and_layers():
    _, tables = noise_of_steps(replace(PLAN, steps=2))
    values = [layer for table in tables for layer in table.values()]
    limit = 6 / math.sqrt(len(values[0]))
    for i, one in enumerate(values):
        for other in values[:i]:
            assert abs(correlation(one, other)) < limit


def test_independent_across_runs_unless_seeded():
    (_, (one,)), (_, (other,)) = noise_of_steps(), noise_of_steps()
    limit = 6 / math.sqrt(WIDTH**2)
    assert abs(correlation(one["0.weight"], other["0.weight"])) < limit
    (_, (first,)), (_, (again,)) = (noise_of_steps(sampler=SecretStream(test_seed=5)) for _ in range(2))
    assert correlation(first["0.weight"], again["0.weight"]) > 0.999  # repeated noise is what the test sees


@pytest.mark.keeps_out("Floating-point noise whose low bits tell")
def test_on_the_grid():
    """Every coordinate is a whole number of grid steps (as far as float32 holds one)."""
    _, (table,) = noise_of_steps()
    grid = 2.0 ** math.floor(math.log2(2.0**-10 * PLAN.clip_norm / math.sqrt(2 * WIDTH**2)))
    for values in table.values():
        steps = values[values.abs() < grid * 2**22] / grid
        assert len(steps) > 1000
        assert torch.equal(steps, steps.round())
