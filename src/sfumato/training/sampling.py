"""Units of each step: independent coins from the secret stream, shuffled passes, or a fixed public order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _validate
from sfumato.errors import InvalidInput, Refused
from sfumato.randomness import Sampler
from sfumato.training.data import Indices, Rows, TrainingData, held_in, name_digests, names_of
from sfumato.training.plan import TrainingPlan

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """The units of one step, each with a place in [0, 1) that says which chunk it is worked on in."""

    units: Indices
    places: Floats

    def copy(self) -> Sample:
        return Sample(self.units.copy(), self.places.copy())

    def of(self, mine: Mask | None) -> Sample:
        """Return the units that are True in `mine`, or all."""
        if mine is None:
            return self
        own = mine[self.units]
        return Sample(self.units[own], self.places[own])

    def chunks(self, count: int) -> list[Indices]:
        """Deal the units into `count` chunks by their places.

        A unit's chunk depends on its own draw alone, so that adding or removing a unit changes the rounding of
        one chunk only.
        """
        if count == 1:
            return [self.units]
        chunk = (self.places * count).astype(np.int64)
        order = np.argsort(chunk, kind="stable")
        return np.split(self.units[order], np.searchsorted(chunk[order], np.arange(1, count)))


def poisson_sample(units: int, sample_rate: float, sampler: Sampler) -> Sample:
    """Take each unit on its own with probability q (Abadi et al. 2016, §3.1); the sample may be empty.

    One uniform draw u for each unit says both: it is in if u < q, and then its place is u/q, uniform again.

    >>> from sfumato.randomness import SecretStream
    >>> poisson_sample(1000, 1.0, SecretStream()).units.size
    1000
    """
    rate = _validate.probability("sample_rate", sample_rate)
    draws = sampler.uniform(_validate.integer("units", units))
    chosen = np.flatnonzero(draws < rate)
    return Sample(chosen, np.minimum(draws[chosen] / rate, np.nextafter(1.0, 0.0)))


def shuffled_samples(units: int, batches: int, sampler: Sampler) -> list[Sample]:
    """Deal all units, in a random order, into near-equal batches."""
    order = np.argsort(sampler.uniform(units), kind="stable")
    return [Sample(part, np.arange(part.size) / max(1, part.size)) for part in np.array_split(order, batches)]


@dataclass(frozen=True, eq=False)
class FixedOrder:
    """The block of each unit, and its place in [0, 1) within that; step t works on block t mod `blocks`.

    *Guarantees*: a unit takes part in one step of each pass, always `blocks` steps apart, and which one it is
    depends on its own place among the rows, or on its own name, alone. Nothing of it is secret.
    """

    block: Indices
    places: Floats
    blocks: int

    @classmethod
    def of(cls, units: int, blocks: int, *, names: npt.ArrayLike | None = None) -> FixedOrder:
        """Deal rows by their number, like cards; units with names by a hash of the name.

        Named units have no place of their own: the numbers of all others change with the name of one.

        >>> FixedOrder.of(5, 2).sample(3).units.tolist()
        [1, 3]
        """
        _validate.integer("blocks", blocks, least=1)
        if names is not None:
            words = np.ascontiguousarray(name_digests(names_of(names), b"")).view(np.uint64)
            chosen = (words[:, 0] % np.uint64(blocks)).astype(np.int64)
            return cls(chosen, (words[:, 1] >> np.uint64(11)).astype(np.float64) * 2.0**-53, blocks)
        rows = np.arange(units, dtype=np.int64)
        return cls(rows % blocks, (rows // blocks) / max(1, -(-units // blocks)), blocks)

    def sample(self, step: int) -> Sample:
        units = np.flatnonzero(self.block == step % self.blocks)
        return Sample(units, self.places[units])


def drawn(
    plan: TrainingPlan, units: int, sampler: Sampler, *, start: int, names: npt.ArrayLike | None = None
) -> Iterator[Sample]:
    """Draw the samples of the steps from `start` on; a fixed order goes by the `names` of units."""
    batches = plan.steps_an_epoch
    if plan.sampling == "shuffle":
        if start % batches:
            raise Refused("expected shuffled training to resume at the start of an epoch; use Poisson sampling")
        while True:
            yield from shuffled_samples(units, batches, sampler)
    if plan.sampling == "cyclic":
        order = FixedOrder.of(units, batches, names=names)
        for step in range(start, plan.steps):
            yield order.sample(step)
    while True:
        yield poisson_sample(units, plan.sample_rate, sampler)


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's units, to be handed to the `step` of the trainer that drew them.

    It shows the draw, and is good for that step alone: the step works on the trainer's own record.
    """

    step: int
    data: TrainingData
    sample: Sample

    def __iter__(self) -> NoReturn:
        raise InvalidInput(
            "expected a batch to be handed to its trainer as it is, got one to be unpacked; rows are read "
            "inside the step: for batch in trainer.batches(data): trainer.step(batch, loss_fn)"
        )


class StepUnits:
    """The units of a step; their rows are fetched when the step works on them."""

    def __init__(self, data: TrainingData, sample: Sample) -> None:
        self.data, self.sample = data, sample
        self._asked: dict[int, Callable[[], Rows]] = {}  # chunks that are being read
        self._asked_for = 0  # so many chunks

    def read_ahead(self, count: int) -> None:
        """Let workers read the rows of all chunks, if there are any."""
        if self.data.ahead and self._asked_for != count:
            self._asked, self._asked_for = dict(self._ask(count)), count

    def chunks(self, count: int) -> Iterator[tuple[int, Rows]]:
        """Yield the number of each chunk and its rows; empty chunks are left out."""
        self.read_ahead(count)
        for number, asked in list(self._asked.items()) or self._ask(count):
            yield number, asked()

    def _ask(self, count: int) -> Iterator[tuple[int, Callable[[], Rows]]]:
        for number, units in enumerate(self.sample.chunks(count)):
            if len(units):
                yield number, self.data.ask(units)


@dataclass(frozen=True, eq=False)
class Drawable:
    """Rows that units are drawn from: the objects that hold them, and the name of each row's unit."""

    held: list[Any]
    names: npt.NDArray[Any] | None

    @classmethod
    def of(cls, data: Any, names: npt.ArrayLike | None) -> Drawable:
        return cls(held_in(data), None if names is None else np.asarray(names).copy())

    def is_same(self, other: Drawable) -> bool:
        """Whether numbers of units mean the same units in both."""
        if (self.names is None) != (other.names is None) or len(self.held) != len(other.held):
            return False
        return all(map(_alike, [*self.held, self.names], [*other.held, other.names]))


def _alike(one: Any, other: Any) -> bool:
    """Whether both are one object, or arrays of the same rows in the same order."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one is other or (one.dtype == other.dtype and np.array_equal(one, other))
    alike = type(one) is type(other) is Tensor and one.dtype == other.dtype
    return one is other or (alike and torch.equal(one, other))


class Draws:
    """The record of a trainer's draws: the units of each step, and the batch that stands for them.

    *Guarantees*: a step's units are drawn once. A second iterator gets new batches of the draws that were shown
    already, and those before are void: no caller can choose among draws, or have a unit twice in a pass. `take`
    gives a draw to the one batch that stands for it, once; a copy of a batch, a changed one or that of another
    trainer stands for nothing. A batch tells a copy of the draw, so that nothing done to it reaches a step.
    """

    def __init__(self, plan: TrainingPlan, sampler: Sampler) -> None:
        self._plan, self._sampler = plan, sampler
        self._drawable: Drawable | None = None
        self._samples: Iterator[Sample] = iter(())
        self._draw_from: Callable[[int], Iterator[Sample]] = lambda step: iter(())
        self._waiting: dict[int, Sample] = {}  # drawn, and not taken
        self._shown = 0  # steps whose units were shown
        self._issued: dict[int, tuple[Batch, StepUnits]] = {}  # by the newest iterator

    @property
    def began(self) -> bool:
        """Whether units of a step were shown."""
        return self._shown > 0

    @property
    def waiting(self) -> list[int]:
        """The steps whose units are drawn and not taken."""
        return sorted(self._waiting)

    def goes_on(self, drawable: Drawable, *, start: int) -> bool:
        """Whether numbers of units mean the same units as before; where they must and do not, it is refused.

        Raises:
            Refused: If units of other rows were shown and not taken, or a fixed order goes by other rows.
        """
        if self._drawable is None or self._drawable.is_same(drawable):
            return self._drawable is not None
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
        mine: Mask | None,
        *,
        start: int,
        chunks: Callable[[], int],
    ) -> Iterator[Batch]:
        """Yield the batches of all steps from `start` on; workers read each while the one before is used.

        `mine` says which units this process works on. `chunks` says in how many chunks a step is worked on, 0
        before that is known.
        """
        if not self.goes_on(drawable, start=start):
            self._draw_from = lambda step: (
                sample.of(mine)
                for sample in drawn(self._plan, source.units, self._sampler, start=step, names=drawable.names)
            )
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
        """Return the draw of a step, if this is the batch that stands for it.

        Raises:
            InvalidInput: If it is no batch.
            Refused: If it is another.
        """
        if not isinstance(batch, Batch):  # the price is that of the trainer's own sampling
            raise InvalidInput(
                f"expected a batch of trainer.batches(data), got {type(batch).__name__}; hand the data or its "
                "DataLoader to trainer.batches, which samples itself"
            )
        standing, units = self._issued.get(step, (None, None))
        if units is None or standing is not batch:
            raise Refused(
                f"expected the batch of step {step} that this trainer drew, got one of step {batch.step}, of "
                "another trainer or from before trainer.batches was called again; a batch is used once, in its "
                "turn, by the trainer that drew it"
            )
        return units

    def take(self, batch: Batch, step: int) -> StepUnits:
        """Return the draw of a step, once."""
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
            if found is None:  # nothing was drawn yet, or an interrupt ended a draw that was not shown
                self._samples = self._draw_from(step)
                found = next(self._samples)
            self._waiting[step] = found
        return self._waiting[step]
