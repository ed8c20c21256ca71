"""The rows of a step, fetched chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput
from sfumato.training.sampling import Indices, Sample

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
Views: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Rows:
    """Inputs and targets of some rows, and which of the chunk's units each row belongs to."""

    inputs: Any
    targets: Any
    units: Tensor | None  # (rows,), or None where each row is a unit of its own
    weight: float = 1.0

    def weighted(self, loss_fn: LossFunction) -> LossFunction:
        """The loss with each of K views counting 1/K, so that their gradients are averaged."""
        if self.weight == 1:
            return loss_fn
        return lambda outputs, targets: loss_fn(outputs, targets) * self.weight


class TrainingData:
    """Rows grouped by the privacy unit they belong to.

    Takes a pair (inputs, targets) of tensors or arrays (inputs may be a tuple or dict of them), anything with
    `.inputs` and `.targets`, or a map-style torch data set of (input, target) pairs. `units` names each row's
    person, of whose rows the first `rows_per_unit` count; without it each row is a unit. `views(inputs)` gives
    K random views of each row, (rows, K, …), which are rows of the same unit.
    """

    def __init__(
        self,
        data: Any,
        *,
        units: npt.ArrayLike | None = None,
        rows_per_unit: int | None = None,
        views: Views | None = None,
    ) -> None:
        self._inputs, self._targets, self._items, self.rows = _columns(data)
        if units is not None and rows_per_unit is None:
            raise InvalidInput(
                "expected plan.rows_per_unit with units=...; declare how many rows of one unit may count"
            )
        self._grouping, self.units = _grouping(units, self.rows, rows_per_unit or 1)
        self._views = views
        self.rows_per_unit = rows_per_unit or 1

    def fetch(self, units: Indices) -> Rows:
        """All rows of the given units."""
        if self._grouping is None:
            return self._with_views(Rows(*self._take(units), None), len(units))
        order, starts, counts = self._grouping
        rows = np.concatenate(
            [order[starts[unit] : starts[unit] + counts[unit]] for unit in units] or [order[:0]]
        )
        owner = torch.from_numpy(np.repeat(np.arange(len(units)), counts[units]))
        return self._with_views(Rows(*self._take(rows), owner), len(units))

    def example(self) -> Rows:
        """A row whose shapes and types tell how a model is run; its values are never used."""
        return self._with_views(Rows(*self._take(np.arange(min(1, self.rows))), None), 1)

    def _with_views(self, rows: Rows, units: int) -> Rows:
        if self._views is None:
            return rows
        views = self._views(rows.inputs)  # (rows, K, …)
        count = pytree.tree_leaves(views)[0].shape[1]
        owner = torch.arange(pytree.tree_leaves(views)[0].shape[0]) if rows.units is None else rows.units
        return Rows(
            pytree.tree_map(lambda leaf: leaf.flatten(0, 1), views),
            pytree.tree_map(lambda leaf: leaf.repeat_interleave(count, 0), rows.targets),
            owner.repeat_interleave(count),
            weight=1 / count,
        )

    def _take(self, rows: Indices) -> tuple[Any, Any]:
        if self._items is None:
            chosen = torch.from_numpy(rows)
            return (
                pytree.tree_map(lambda column: column[chosen], self._inputs),
                pytree.tree_map(lambda column: column[chosen], self._targets),
            )
        pairs = [self._items[int(row)] for row in rows]
        inputs, targets = ([torch.as_tensor(pair[column]) for pair in pairs] for column in (0, 1))
        return torch.stack(inputs), torch.stack(targets)


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


def _columns(data: Any) -> tuple[Any, Any, Any, int]:
    if hasattr(data, "inputs") and hasattr(data, "targets"):
        data = (data.inputs, data.targets)
    if _is_columns(data):
        inputs, targets = (pytree.tree_map(torch.as_tensor, column) for column in data)
        lengths = {len(leaf) for leaf in pytree.tree_leaves((inputs, targets))}
        if len(lengths) != 1:
            raise InvalidInput("expected inputs and targets of equal length; each row needs one of both")
        return inputs, targets, None, lengths.pop()
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return None, None, data, len(data)
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
