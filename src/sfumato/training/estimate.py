"""How long a plan will take and how much memory, measured on random rows before anything is spent."""

from __future__ import annotations

import copy
import resource
import sys
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from sfumato import randomness
from sfumato.training.losses import Views, cross_entropy
from sfumato.training.optimization import Optimization
from sfumato.training.plan import RECORD, TrainingPlan
from sfumato.training.trainer import PrivateTrainer


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The time and memory that a run is expected to take.

    Attributes:
        seconds: For all steps.
        megabytes: At most, for gradients and activations.
    """

    seconds: float
    megabytes: float


def estimate(
    model: nn.Module,
    plan: TrainingPlan,
    shape: tuple[int, ...],
    *,
    classes: int,
    views: Views | None = None,
) -> CostEstimate:
    """Estimate time and memory from two steps on random rows, on a copy of the model.

    Args:
        model: The model.
        plan: The plan.
        shape: The shape of one row.
        classes: How many classes there are.
        views: K random views of each row.

    Returns:
        The estimate.

    >>> plan = TrainingPlan(sample_rate=0.5, expected_batch=4, steps=2, noise_multiplier=1.0)
    >>> estimate(nn.Linear(2, 2), plan, (2,), classes=2).seconds > 0
    True
    """
    generator = randomness.public_torch_generator(0)
    rows = int(plan.expected_batch)
    inputs = torch.rand((rows, *shape), generator=generator)
    targets = torch.randint(0, classes, (rows,), generator=generator)
    units = None if plan.unit == RECORD else range(rows)
    trial = copy.deepcopy(model)
    short = replace(plan, steps=2, sample_rate=1.0, noise_phases=((1.0, 1.0),))
    trainer = PrivateTrainer(trial, Optimization().build(trial), short)
    seconds = 0.0
    for batch in trainer.batches((inputs, targets), units=units, views=views):
        started = time.perf_counter()
        trainer.step(batch, cross_entropy)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = peak / (1024 if sys.platform.startswith("linux") else 1024**2)
    return CostEstimate(seconds=seconds * plan.steps, megabytes=megabytes)
