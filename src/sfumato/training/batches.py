"""The rows of a step, fetched chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.errors import InvalidInput
from sfumato.training.losses import Views, random_rows
from sfumato.training.sampling import Indices, Sample
from sfumato.training.sources import source_of
from sfumato.training.workers import Taken


@dataclass(frozen=True)
class Rows:
    """Inputs and targets of some rows, and which of the chunk's units each row belongs to."""

    inputs: Any
    targets: Any
    units: Tensor | None  # (rows,), or None where each row is a unit of its own
    numbers: Indices  # of the units, in the data


@dataclass(frozen=True)
class Asked:
    """Units whose rows are being read; `rows` waits for them."""

    units: Indices
    owner: Tensor | None
    rows: Callable[[], Taken]


class TrainingData:
    """Rows grouped by the privacy unit they belong to.

    Takes a pair (inputs, targets) of tensors or arrays (inputs may be a tuple or dict of them), anything with
    `.inputs` and `.targets`, a map-style data set of pairs (input, target) or of dicts with a field `labels`,
    or a DataLoader of one, whose collate_fn and workers are used, and whose sampling is not.
    `units` names each row's person, of whose rows the first `rows_per_unit` count; without it each row is a
    unit.
    `views(inputs)` gives K random views of each row, (rows, K, …), which are rows of the same unit.

    `example` is a public item (input, target) that says how items of a map-style data set are made; without it
    the first item is asked, which is a record: `shape_was_read` then says so. A collate_fn needs it: items are
    padded to its length, and longer ones left out.

    *Guarantees*: a unit with a row that cannot be read, or that has another shape or type, is left out by
    itself, from then on.
    """

    def __init__(
        self,
        data: Any,
        *,
        units: npt.ArrayLike | None = None,
        rows_per_unit: int | None = None,
        views: Views | None = None,
        example: Any = None,
    ) -> None:
        self._source = source_of(data, example)
        self.shape_was_read = self._source.shape_was_read
        self.rows = self._source.rows
        if units is not None and rows_per_unit is None:
            raise InvalidInput(
                "expected plan.rows_per_unit with units=...; declare how many rows of one unit may count"
            )
        self._grouping, self.units = _grouping(units, self.rows, rows_per_unit or 1)
        self.views = views
        self.rows_per_unit = rows_per_unit or 1
        self._left_out = np.zeros(self.units, dtype=bool)

    @property
    def ahead(self) -> bool:
        """Whether units that are asked for are read while something else is done."""
        return self._source.ahead

    def ask(self, units: Indices) -> Asked:
        """Let all rows of the given units be read, but of those left out."""
        units = units[~self._left_out[units]]
        rows, owner = self._rows_of(units)
        return Asked(units, owner, self._source.ask(rows))

    def receive(self, asked: Asked) -> Rows:
        """What was asked for, but for units that were left out since."""
        units, owner = asked.units, asked.owner
        if self._left_out[units].any():
            return self.receive(self.ask(units))
        inputs, targets, readable = asked.rows()
        if not readable.all():
            self.leave_out(units[~readable] if owner is None else units[owner.numpy()[~readable]])
            return self.receive(self.ask(units))
        return Rows(inputs, targets, owner, units)

    def fetch(self, units: Indices) -> Rows:
        """All rows of the given units, but of those left out."""
        return self.receive(self.ask(units))

    @property
    def read_by_code(self) -> bool:
        """Whether code of the holder's makes the items."""
        return self._source.read_by_code

    @property
    def held(self) -> Any:
        """The tensors that hold the rows; None where items are read one by one."""
        return self._source.held

    def leave_out(self, units: Indices) -> None:
        """Units whose rows cannot be read: they add nothing, now and later."""
        self._left_out[units] = True

    @cached_property
    def example(self) -> tuple[Any, Any]:
        """Made-up rows with the shapes and types of the data; of a private row nothing else is used."""
        inputs, targets = self._source.example
        return random_rows(inputs, 1), random_rows(targets, 1)

    def _rows_of(self, units: Indices) -> tuple[Indices, Tensor | None]:
        """Their rows in the data, and which of the units each row belongs to."""
        if self._grouping is None:
            return units, None
        order, starts, counts = self._grouping
        rows = [order[starts[unit] : starts[unit] + counts[unit]] for unit in units]
        owner = torch.from_numpy(np.repeat(np.arange(len(units)), counts[units]))
        return np.concatenate(rows or [order[:0]]), owner


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's units, to be handed to the `step` of the trainer that drew them.

    It tells what was drawn, and is good for that step alone: the step works on the trainer's own record.
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
        self._asked: dict[int, Asked] = {}  # chunks that are being read
        self._asked_for = 0  # so many chunks

    @property
    def read_already(self) -> bool:
        """Whether its rows are being read, or are there."""
        return bool(self._asked)

    def read_ahead(self, count: int) -> None:
        """Let the rows of all chunks be read, if somebody can do that meanwhile."""
        if self.data.ahead and self._asked_for != count:
            self._asked, self._asked_for = dict(self._ask(count)), count

    def chunks(self, count: int) -> Iterator[tuple[int, Rows]]:
        """The number of each chunk and its rows; empty chunks are left out."""
        self.read_ahead(count)
        for number, asked in list(self._asked.items()) or self._ask(count):
            yield number, self.data.receive(asked)

    def _ask(self, count: int) -> Iterator[tuple[int, Asked]]:
        for number, units in enumerate(self.sample.chunks(count)):
            if len(units):
                yield number, self.data.ask(units)


def require_batch(batch: Any) -> None:
    """Refuse rows that somebody else chose: the price is that of the trainer's own sampling."""
    if not isinstance(batch, Batch):
        raise InvalidInput(
            f"expected a batch of trainer.batches(data), got {type(batch).__name__}; hand the data or its "
            "DataLoader to trainer.batches, which samples itself"
        )


def _grouping(
    units: npt.ArrayLike | None, rows: int, most: int
) -> tuple[tuple[Indices, Indices, Indices] | None, int]:
    """Row numbers ordered by unit, where each unit's begin and how many count; and the number of units."""
    if units is None:
        return None, rows
    names = np.asarray(units)
    if names.shape != (rows,):
        raise InvalidInput("expected units to name one unit for each row; check its length")
    _, codes, counts = np.unique(names, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable").astype(np.int64)
    starts = np.cumsum(counts) - counts
    return (order, starts.astype(np.int64), np.minimum(counts, most).astype(np.int64)), len(counts)
