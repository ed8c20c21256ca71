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
from sfumato.training.plan import TrainingPlan
from sfumato.training.rowwise import cross_entropy
from sfumato.training.run import Optimization
from sfumato.training.trainer import PrivateTrainer


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    seconds: float
    megabytes: float


def estimate(model: nn.Module, plan: TrainingPlan, shape: tuple[int, ...], *, classes: int) -> CostEstimate:
    """Two steps on random rows of the given shape, on a copy of the model; the second is timed."""
    generator = randomness.public_torch_generator(0)
    rows = int(plan.expected_batch)
    inputs = torch.rand((rows, *shape), generator=generator)
    targets = torch.randint(0, classes, (rows,), generator=generator)
    trial = copy.deepcopy(model)
    short = replace(plan, steps=2, sample_rate=1.0, noise_phases=((1.0, 1.0),))
    trainer = PrivateTrainer(trial, Optimization().build(trial), short)
    seconds = 0.0
    for batch in trainer.batches((inputs, targets)):
        started = time.perf_counter()
        trainer.step(batch, cross_entropy)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = peak / (1024 if sys.platform.startswith("linux") else 1024**2)
    return CostEstimate(seconds=seconds * plan.steps, megabytes=megabytes)
