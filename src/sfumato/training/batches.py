"""The rows of a step, fetched chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import TensorDataset

from sfumato.errors import InvalidInput
from sfumato.training.probe import random_rows
from sfumato.training.rowwise import Views
from sfumato.training.sampling import Indices, Sample

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Inputs and targets of some rows, and which of the chunk's units each row belongs to."""

    inputs: Any
    targets: Any
    units: Tensor | None  # (rows,), or None where each row is a unit of its own
    numbers: Indices  # of the units, in the data


class TrainingData:
    """Rows grouped by the privacy unit they belong to.

    Takes a pair (inputs, targets) of tensors or arrays (inputs may be a tuple or dict of them), anything with
    `.inputs` and `.targets`, or a map-style torch data set of (input, target) pairs. `units` names each row's
    person, of whose rows the first `rows_per_unit` count; without it each row is a unit. `views(inputs)` gives
    K random views of each row, (rows, K, …), which are rows of the same unit.

    `example` is a public item (input, target) that says how items of a map-style data set are made; without it
    the first item is asked, which is a record: `shape_was_read` then says so.

    *Guarantees*: a unit with a row that cannot be read, or that has another shape or type, is left out by
    itself; so is a unit whose rows raised in model or loss, from then on.
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
        self._source = _source(data, example)
        self.shape_was_read = isinstance(self._source, _Items) and example is None
        self.rows = self._source.rows
        if units is not None and rows_per_unit is None:
            raise InvalidInput(
                "expected plan.rows_per_unit with units=...; declare how many rows of one unit may count"
            )
        self._grouping, self.units = _grouping(units, self.rows, rows_per_unit or 1)
        self.views = views
        self.rows_per_unit = rows_per_unit or 1
        self._left_out = np.zeros(self.units, dtype=bool)

    def fetch(self, units: Indices) -> Rows:
        """All rows of the given units, but of those left out."""
        units = units[~self._left_out[units]]
        rows, owner = self._rows_of(units)
        inputs, targets, readable = self._source.take(rows)
        if not readable.all():
            self.leave_out(units[~readable] if owner is None else units[owner.numpy()[~readable]])
            return self.fetch(units)
        return Rows(inputs, targets, owner, units)

    def leave_out(self, units: Indices) -> None:
        """Units whose rows raise: they add nothing, now and later."""
        self._left_out[units] = True

    @cached_property
    def example(self) -> tuple[Any, Any]:
        """Public random rows with the shapes and types of the data."""
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


@dataclass(frozen=True)
class Batch:
    """One step's units; their rows are fetched when the step works on them."""

    step: int
    data: TrainingData
    sample: Sample

    def chunks(self, count: int) -> Iterator[tuple[int, Rows]]:
        """The number of each chunk and its rows; empty chunks are left out."""
        for number, units in enumerate(self.sample.chunks(count)):
            if len(units):
                yield number, self.data.fetch(units)


class _Source(Protocol):
    """Rows by number."""

    rows: int

    @property
    def example(self) -> tuple[Any, Any]:
        """One row (or none, where there are none) whose shapes and types all rows have."""

    def take(self, rows: Indices) -> tuple[Any, Any, Bools]:
        """Inputs, targets, and which rows could be read."""


class _Columns:
    """Tensors with one entry a row."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self._columns = pytree.tree_map(torch.as_tensor, inputs), pytree.tree_map(torch.as_tensor, targets)
        lengths = {len(leaf) for leaf in pytree.tree_leaves(self._columns)}
        if len(lengths) != 1:
            raise InvalidInput("expected inputs and targets of equal length; each row needs one of both")
        self.rows = lengths.pop()

    @property
    def example(self) -> tuple[Any, Any]:
        return self.take(np.arange(min(1, self.rows)))[:2]

    def take(self, rows: Indices) -> tuple[Any, Any, Bools]:
        chosen = torch.from_numpy(rows)
        inputs, targets = pytree.tree_map(lambda column: column[chosen], self._columns)
        return inputs, targets, np.ones(len(rows), dtype=bool)


class _Items:
    """A map-style data set, whose items are read one by one."""

    def __init__(self, items: Any, example: Any) -> None:
        self._items, self._declared = items, example
        self.rows = len(items)

    @cached_property
    def example(self) -> tuple[Any, Any]:
        pair = self._shown_first() if self._declared is None else _tensors(self._declared)
        return pytree.tree_map(lambda leaf: leaf[None], pair)

    def _shown_first(self) -> tuple[Any, Any]:
        try:
            return _tensors(self._items[0])
        except Exception:  # its text may quote the row
            pass
        raise InvalidInput(
            "expected to read the first item of the data set, to see how items are made, and could not; "
            "declare a public one: batches(data, example=(input, target))"
        )

    def take(self, rows: Indices) -> tuple[Any, Any, Bools]:
        read = [self._read(int(row)) for row in rows]
        readable = np.array([pair is not None for pair in read], dtype=bool)
        blank = pytree.tree_map(lambda leaf: torch.zeros_like(leaf[0]), self.example)
        pairs = [blank if pair is None else pair for pair in read]
        if not pairs:
            return *pytree.tree_map(lambda leaf: leaf[:0], self.example), readable
        return *pytree.tree_map(lambda *leaves: torch.stack(leaves), *pairs), readable

    def _read(self, row: int) -> tuple[Any, Any] | None:
        try:
            pair = _tensors(self._items[row])
        except Exception:  # its text may quote the row, so nobody sees it
            return None
        return pair if _shapes(pair) == _shapes(pytree.tree_map(lambda leaf: leaf[0], self.example)) else None


def _tensors(item: Any) -> tuple[Any, Any]:
    inputs, targets = item
    return pytree.tree_map(_tensor, inputs), pytree.tree_map(_tensor, targets)


def _tensor(leaf: Any) -> Tensor:
    """NumPy's and Python's numbers as torch's usual ones: float32, and int64 for whole numbers."""
    tensor = torch.as_tensor(leaf)
    if isinstance(leaf, Tensor):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _shapes(pair: Any) -> Any:
    leaves, tree = pytree.tree_flatten(pair)
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _source(data: Any, example: Any) -> _Source:
    if hasattr(data, "inputs") and hasattr(data, "targets"):
        data = (data.inputs, data.targets)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if _is_columns(data):
        return _Columns(*data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _Items(data, example)
    raise InvalidInput(
        f"expected (inputs, targets) or a map-style data set, got {type(data).__name__}; "
        "streams cannot be Poisson-sampled"
    )


def _is_columns(data: Any) -> bool:
    """A tuple of two is (inputs, targets), even if inputs are one; of a list of tuples each is an example."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return isinstance(data, tuple) or not isinstance(data[0], tuple)


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
