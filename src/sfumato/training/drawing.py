"""The units of each step of a plan, by the plan's way of sampling, and the record of what was drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.errors import Refused
from sfumato.randomness import Sampler
from sfumato.training.batches import Batch, StepUnits, TrainingData, require_batch
from sfumato.training.order import FixedOrder
from sfumato.training.ownership import Ownership
from sfumato.training.plan import TrainingPlan
from sfumato.training.sampling import Sample, poisson_sample, shuffled_samples
from sfumato.training.sources import held_in


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


@dataclass(frozen=True, eq=False)
class Drawable:
    """Rows that units are drawn from, by the objects that hold them, and whose each row is."""

    held: list[Any]
    names: npt.NDArray[Any] | None

    @classmethod
    def of(cls, data: Any, names: npt.ArrayLike | None) -> Drawable:
        return cls(held_in(data), None if names is None else np.asarray(names).copy())

    def is_same(self, other: Drawable) -> bool:
        """Whether numbers of units mean the same units in both."""
        if (self.names is None) != (other.names is None) or len(self.held) != len(other.held):
            return False
        same = all(map(_alike, self.held, other.held))
        return same and (self.names is None or np.array_equal(self.names, np.asarray(other.names)))


def _alike(one: Any, other: Any) -> bool:
    """The same object, or arrays of the same rows in the same order."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) is Tensor and one.dtype == other.dtype and torch.equal(one, other)


class Draws:
    """The record of what a trainer drew: the units of each step, and the batch that stands for them.

    *Guarantees*: a step's units are drawn once. Who begins to iterate again gets new batches of what was shown
    already, and those before are void: nobody can choose among draws, or have a unit twice in a pass. `take`
    gives what was drawn to the one batch that stands for it, once; a copy of a batch, a changed one or that of
    another trainer stands for nothing. What a batch tells is a copy, so that nothing done to it reaches a step.
    """

    def __init__(self, plan: TrainingPlan, sampler: Sampler) -> None:
        self._plan, self._sampler = plan, sampler
        self._drawable: Drawable | None = None
        self._samples: Iterator[tuple[int, Sample]] = iter(())
        self._draw_from: Callable[[int], Iterator[tuple[int, Sample]]] = lambda step: iter(())
        self._waiting: dict[int, Sample] = {}  # drawn, and not taken
        self._shown = 0  # steps of which somebody has seen the units
        self._issued: dict[int, tuple[Batch, StepUnits]] = {}  # by the newest iterator

    @property
    def began(self) -> bool:
        """Whether anybody has seen units of a step."""
        return self._shown > 0

    @property
    def waiting(self) -> list[int]:
        """The steps whose units are drawn and not taken."""
        return sorted(self._waiting)

    def goes_on(self, drawable: Drawable, *, start: int) -> bool:
        """Whether numbers of units mean what they did; where they must and do not, it is refused.

        Raises:
            Refused: If units of other rows were shown and not taken, or a fixed order goes by other rows.
        """
        if self._drawable is None:
            return False
        if self._drawable.is_same(drawable):
            return True
        fixed = self._plan.sampling == "cyclic" and (self._drawable.names is None or drawable.names is None)
        if self._shown > start or (fixed and start):
            raise Refused(
                f"expected the rows of which units were drawn before, got others at step {start}; a step's "
                "units are drawn once: hand over the same arrays or data set, or make a new trainer"
            )
        return False

    def batches(
        self,
        drawable: Drawable,
        source: TrainingData,
        owned: Ownership,
        *,
        start: int,
        chunks: Callable[[], int],
    ) -> Iterator[Batch]:
        """The batches of all steps from `start` on; of some sources, each is read while one before is used.

        `chunks` says how many a step is worked on in, once that is known; 0 before.
        """
        if not self.goes_on(drawable, start=start):
            self._draw_from = partial(self._owned_samples, owned, source.units, drawable.names)
            self._samples, self._waiting, self._drawable = iter(()), {}, drawable
        issued = self._issued = {}
        for step in range(start, self._plan.steps):
            if issued is not self._issued:
                raise Refused(
                    "expected the newest iterator over batches, got one from before; trainer.batches was "
                    "called again, which ends those before: a step's units are drawn once"
                )
            batch, _ = self._issue(step, source)
            if source.ahead and chunks() and step + 1 < self._plan.steps:
                self._issue(step + 1, source)[1].read_ahead(chunks())
            self._shown = max(self._shown, step + 1)
            yield batch

    def find(self, batch: Batch, step: int) -> StepUnits:
        """What was drawn for a step, if this is the batch that stands for it.

        Raises:
            Refused: If it is not.
        """
        require_batch(batch)
        standing, units = self._issued.get(step, (None, None))
        if units is None or standing is not batch:
            raise Refused(
                f"expected the batch of step {step} that this trainer drew, got one of step {batch.step}, of "
                "another trainer or from before trainer.batches was called again; a batch is used once, in its "
                "turn, by the trainer that drew it"
            )
        return units

    def take(self, batch: Batch, step: int) -> StepUnits:
        """The same, once."""
        units = self.find(batch, step)
        del self._issued[step], self._waiting[step]
        return units

    def _issue(self, step: int, source: TrainingData) -> tuple[Batch, StepUnits]:
        if step not in self._issued:
            sample = self._sample(step)
            self._issued[step] = Batch(step, source, sample.copy()), StepUnits(source, sample)
        return self._issued[step]

    def _sample(self, step: int) -> Sample:
        if step not in self._waiting:
            found = next(self._samples, None)
            if found is None:  # nothing was drawn yet, or an interrupt ended a draw that nobody saw
                self._samples = self._draw_from(step)
                found = next(self._samples)
            self._waiting.update([found])
        return self._waiting[step]

    def _owned_samples(
        self, owned: Ownership, units: int, names: npt.ArrayLike | None, start: int
    ) -> Iterator[tuple[int, Sample]]:
        for step, sample in drawn(self._plan, units, self._sampler, start=start, names=names):
            yield step, owned.of(sample)
