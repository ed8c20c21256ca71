"""Clipped sums of per-example gradients, for any model, loss and clipping rule."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.training.clipped_sums import ChunkResult, accumulate
from sfumato.training.clipping import Clipping, Flat
from sfumato.training.compiled import as_written
from sfumato.training.compiler.engine import Engine, engine_for
from sfumato.training.losses import LossFunction, Views
from sfumato.training.public_rows import random_rows


def clipped_gradient_sum(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clip_norm: float | Clipping,
    *,
    units: Tensor | None = None,
    chunk: int | None = None,
) -> dict[str, Tensor]:
    """Σ over units of clip(Σ over the unit's rows of ∇loss), for every trainable parameter by name.

    *Guarantees*: every unit adds at most its clipping bound in norm, whoever else is there; rows whose loss or
    gradient is not finite add zero; model, loss and views see tensors without values and made-up rows only.

    Args:
        model: Any module that `PrivateTrainer` takes.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: (rows, …).
        targets: (rows, …).
        clip_norm: C, ∞ for plain sums, or a value such as `Automatic`.
        units: The index of the person behind each row; each row its own by default.
        chunk: How many rows are worked on at a time; chosen by memory by default.

    Returns:
        {parameter name: sum}.

    Raises:
        UnsupportedModel: If the code is no graph of pure operations, or mixes rows.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> sums = clipped_gradient_sum(model, lambda out, _: out[:, 0], rows, torch.zeros(2), 1.0)
    >>> [round(value, 4) for value in sums["weight"][0].tolist()]
    [0.9, 1.2]
    """
    model = as_written(model)
    clipping = clip_norm if isinstance(clip_norm, Clipping) else Flat(norm=clip_norm)
    rows = count_rows(inputs)
    _check_units(units, rows)
    if rows == 0:
        return {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    engine = _engine(model, loss_fn, inputs, targets)
    size = engine.chunk_rows() if chunk is None else _validate.integer("chunk", chunk, least=1)
    totals: dict[str, Tensor] = {}
    for part in _slices(rows, units, size):
        some, wanted = (pytree.tree_map_only(Tensor, itemgetter(part), each) for each in (inputs, targets))
        found = engine.clipped(some, wanted, clipping, units=None if units is None else units[part])
        accumulate(totals, found.sums)
    return totals


def clip_chunk(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clipping: Clipping,
    *,
    units: Tensor | None = None,
    views: Views | None = None,
) -> ChunkResult:
    """One physical chunk: clipped sums, norms, coefficients, and a bound η of the rounding error.

    Rows are worked on in blocks of public heights, padded with public rows (see `blocks`), so that a unit's
    gradient and coefficient are the same bits whoever else is in the chunk.

    *Clipping and float32.* The coefficient of a unit uses an upper bound of its norm, rounding included: a
    Gram norm gets the slack κu·S², S = Σₚ ‖aₚ‖‖gₚ‖; where that slack is not small (the output gradients
    cancel, or squares overflow) the gradient itself is formed and its norm taken in float64. What remains is
    the rounding of the sum over the chunk, bounded by η (see `Engine.rounding_bound`), so that adding or
    removing one unit moves the computed sums by at most sensitivity · (1 + η).

    Args:
        model: The model.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: (rows, …).
        targets: (rows, …).
        clipping: The clipping rule.
        units: The index of the unit behind each row; each row its own by default.
        views: `views(inputs)` returns K views of each row, (rows, K, …), whose gradients are averaged.

    Returns:
        The sums, and what is known about each unit; private.

    >>> rows = torch.tensor([[3.0, 4.0]])
    >>> result = clip_chunk(nn.Linear(2, 1), lambda out, _: out[:, 0], rows, torch.zeros(1), Flat(norm=1.0))
    >>> result.finite.tolist()
    [True]
    """
    return _engine(model, loss_fn, inputs, targets, views).clipped(inputs, targets, clipping, units=units)


def rounding_bound(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    *,
    units: int,
    rows_per_unit: int = 1,
    views: Views | None = None,
) -> float:
    """η for chunks of up to `units` units with up to `rows_per_unit` rows, from the shapes of given rows alone.

    Args:
        model: The model.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: Rows of the right shape.
        targets: Targets of the right shape.
        units: The most units in a chunk.
        rows_per_unit: The most rows of one unit.
        views: K random views of each row.

    Returns:
        η.

    >>> from sfumato.training import cross_entropy
    >>> rows = torch.rand(4, 2), torch.zeros(4, dtype=torch.long)
    >>> 0 < rounding_bound(nn.Linear(2, 2), cross_entropy, *rows, units=4) < 1e-3
    True
    """
    engine = _engine(model, loss_fn, inputs, targets, views)
    return engine.rounding_bound(units=units, rows_per_unit=rows_per_unit)


def _engine(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, views: Views | None = None
) -> Engine:
    """The engine for rows like these, which it does not see: their shapes and types on made-up rows."""
    made_up = random_rows(inputs, 1), random_rows(targets, 1)
    return engine_for(model, loss_fn, made_up, views=views, data=(inputs, targets))


def count_rows(data: Any) -> int:
    """The number of rows in a tree of tensors.

    >>> count_rows({"tokens": torch.zeros(3, 2)})
    3
    """
    for leaf in pytree.tree_leaves(data):
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    raise InvalidInput("expected inputs that are or hold a tensor with one entry a row, got none")


def _slices(rows: int, units: Tensor | None, chunk: int) -> list[Any]:
    """Parts of at most `chunk` rows (a unit's rows stay together), about equally large."""
    if units is None:
        parts = math.ceil(rows / chunk)
        return [slice(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]
    owner, counts = _tally(units)
    by_count = torch.argsort(counts, stable=True)
    place = torch.empty_like(by_count)
    place[by_count] = (counts[by_count].cumsum(0) - 1) // chunk
    return [(place[owner] == part).nonzero().flatten() for part in sorted(set(place.tolist()))]


def _check_units(units: Tensor | None, rows: int) -> None:
    if units is not None and (units.shape != (rows,) or units.is_floating_point()):
        raise InvalidInput(
            f"expected units to hold a whole number for each of the {rows} rows, got {tuple(units.shape)} of "
            f"{units.dtype}"
        )


def _tally(units: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's unit, numbered from 0, and each unit's number of rows."""
    numbered: Any = torch.unique(units, return_inverse=True, return_counts=True)
    return numbered[1], numbered[2]
