"""The units of all steps of a plan, one step after the other, by the plan's way of sampling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy.typing as npt

from sfumato.errors import Refused
from sfumato.randomness import Sampler
from sfumato.training.order import FixedOrder
from sfumato.training.plan import TrainingPlan
from sfumato.training.sampling import Sample, poisson_sample, shuffled_samples


def drawn(
    plan: TrainingPlan, units: int, sampler: Sampler, *, start: int, names: npt.ArrayLike | None = None
) -> Iterator[tuple[int, Sample]]:
    """The number of each step from `start` on, and its sample of so many units.

    `names` are those of the units, by which a fixed order goes.
    """
    if plan.sampling == "shuffle":
        yield from _shuffled(plan, units, sampler, start)
    elif plan.sampling == "cyclic":
        order = FixedOrder.of(units, plan.steps_an_epoch, names=names)
        for step in range(start, plan.steps):
            yield step, order.sample(step)
    else:
        for step in range(start, plan.steps):
            yield step, poisson_sample(units, plan.sample_rate, sampler)


def _shuffled(plan: TrainingPlan, units: int, sampler: Sampler, start: int) -> Iterator[tuple[int, Sample]]:
    batches = plan.steps_an_epoch
    if start % batches:
        raise Refused("expected shuffled training to resume at the start of an epoch; use Poisson sampling")
    for first in range(start, plan.steps, batches):
        for step, sample in enumerate(shuffled_samples(units, batches, sampler), first):
            if step < plan.steps:
                yield step, sample
