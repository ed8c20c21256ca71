"""The sum of clipped per-example gradients, at the price of ordinary training.

One forward pass, one backward pass to the layers' outputs, and for each layer a rule: norms first, then the
sum weighted by the clipping coefficients. See `rules.terms` for the two ways of having a norm, and
*Clipping and float32* in `clip_chunk` for what is guaranteed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.training import probe
from sfumato.training.capture import count_rows
from sfumato.training.clipped_sums import accumulate, uses
from sfumato.training.clipping import Clipping, Flat
from sfumato.training.compiled import as_written
from sfumato.training.devices import device_of, moved
from sfumato.training.precision import plain_float32
from sfumato.training.probe import Survey
from sfumato.training.rowwise import LossFunction, Views
from sfumato.training.rules.rounding import chunk_errors, rounding
from sfumato.training.task import ChunkResult, Task, blocks_of, prepared, take, zero

_JOINED = 4  # sums of blocks that are added in float32
_CHUNK_BYTES = (
    160 << 20
)  # what a chunk may hold: small, but enough that the price of a step is that of its rows


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

    *Guarantees*: every unit adds at most its clipping bound in norm, whoever else is there; NaN, Inf and rows
    that raise add zero; the model, its `.grad`s, hooks and buffers are as before, whatever happens.

    Args:
        model: Any module without batch normalisation.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row. It is shown one row at a time.
        inputs: (rows, …).
        targets: (rows, …).
        clip_norm: C, ∞ for plain sums, or a value such as `Automatic`.
        units: The index of the person behind each row; each row its own by default.
        chunk: How many rows are worked on at a time; chosen by memory and cache by default.

    Returns:
        {parameter name: sum}.

    Raises:
        UnsupportedModel: If gradients of single rows cannot be told apart.

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
        return _zeros(model)
    known = probe.survey(model, loss_fn, *take((inputs, targets), slice(1)))
    size = chunk_rows(known) if chunk is None else _validate.integer("chunk", chunk, least=1)
    totals: dict[str, Tensor] = {}
    task = prepared(model, loss_fn, None, known).task(loss_fn, None)
    for part in _slices(rows, units, size):
        part_units = None if units is None else units[part]
        result = clip_rows(task, take(inputs, part), take(targets, part), clipping, units=part_units)
        accumulate(totals, result.sums)
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
    known: Survey | None = None,
) -> ChunkResult:
    """One physical chunk: clipped sums, norms, coefficients, and a bound η of the rounding error.

    Rows are worked on in blocks of public heights, padded with public rows (see `blocks`), so that a unit's
    gradient and coefficient are the same bits whoever else is in the chunk. `views(inputs)` returns K views of
    each row, (rows, K, …), whose gradients are averaged; like `loss_fn` it is shown one row at a time.

    *Clipping and float32.* The coefficient of a unit uses an upper bound of its norm, rounding included: a
    Gram norm gets the slack κu·S², S = Σₚ ‖aₚ‖‖gₚ‖; where that slack is not small (the output gradients
    cancel, or squares overflow) the gradient itself is formed and its norm taken in float64. What remains is
    the rounding of the sum over the chunk, bounded by η (see `rounding_bound`), so that adding or removing
    one unit moves the computed sums by at most sensitivity · (1 + η).

    Args:
        model: The model.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: (rows, …).
        targets: (rows, …).
        clipping: The clipping rule.
        units: The index of the unit behind each row; each row its own by default.
        views: K random views of each row.
        known: What `survey` found out; looked up by default.

    Returns:
        The sums, and what is known about each unit; private.

    >>> rows = torch.tensor([[3.0, 4.0]])
    >>> result = clip_chunk(nn.Linear(2, 1), lambda out, _: out[:, 0], rows, torch.zeros(1), Flat(norm=1.0))
    >>> result.finite.tolist()
    [True]
    """
    rows = count_rows(inputs)
    _check_units(units, rows)
    if rows == 0:
        return _nothing(model, clipping)
    known = known or probe.survey(model, loss_fn, inputs, targets, views=views)
    task = prepared(model, loss_fn, views, known).task(loss_fn, views)
    return clip_rows(task, inputs, targets, clipping, units=units)


def clip_rows(
    task: Task,
    inputs: Any,
    targets: Any,
    clipping: Clipping,
    *,
    units: Tensor | None = None,
    into: Mapping[str, Tensor] | None = None,
) -> ChunkResult:
    """`clip_chunk` for a task that was prepared; `into`: zeros that sums may be written to, by parameter."""
    rows = count_rows(inputs)
    _check_units(units, rows)
    if rows == 0:
        return _nothing(task.model, clipping)
    inputs, targets = moved((inputs, targets), task.device)
    with plain_float32():
        if units is None:
            return _joined(_parts(task, clipping, inputs, targets, rows, 1, into or {}))
        strata = _strata(units)
        parts = (
            part
            for some in strata
            for part in _parts(
                task, clipping, take(inputs, some.rows), take(targets, some.rows), *some.shape, {}
            )
        )
        return _reordered(_joined(parts), strata)


def _parts(
    task: Task,
    clipping: Clipping,
    inputs: Any,
    targets: Any,
    units: int,
    rows_per_unit: int,
    into: Mapping[str, Tensor],
) -> Iterator[ChunkResult]:
    for block in blocks_of(task, inputs, targets, units, rows_per_unit):
        yield from block.clipped(clipping, into)
        into = {}


def chunk_rows(known: Survey) -> int:
    """Rows of a chunk: few enough for its memory, enough to pay for a pass and for walking over all parameters.

    Args:
        known: What `survey` found out.

    Returns:
        The number of rows.

    >>> from sfumato.training import cross_entropy, survey
    >>> found = survey(nn.Linear(2, 2), cross_entropy, torch.rand(4, 2), torch.zeros(4, dtype=torch.long))
    >>> chunk_rows(found) >= 1
    True
    """
    budget = max(_CHUNK_BYTES, 28 * known.parameters) // 4
    return min(4096, max(32, budget // known.floats_per_row // 32 * 32))


def prepare_blocks(
    model: nn.Module,
    loss_fn: LossFunction,
    known: Survey,
    expected: float,
    *,
    spread: float = 0.0,
    views: Views | None = None,
) -> None:
    """Try the blocks of as many units of one row as are expected, before any is needed; others as they come.

    `spread`: how far numbers of units usually lie from that. Heights that are tried together are compared with
    one reference.
    """
    if known.alone:
        return
    sizes = [max(1, round(size)) for size in (expected, expected + spread, expected - spread)]
    with plain_float32():
        prepared(model, loss_fn, views, known).task(loss_fn, views).try_heights(sizes)


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
    """η for chunks of up to `units` units with up to `rows_per_unit` rows shaped like the given ones.

    Depends on shapes alone: the model sees random public rows. A unit's clipped gradient exceeds its bound by
    at most the error of its norm; the computed sum of a chunk differs from the exact one by at most
    units · e · C, with e from `rules.rounding`. Two neighbouring chunks differ by the unit and by both
    errors: η = norm error + 2 · units · e. Other units' gradients and coefficients are the same bits in both.

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
    known = probe.survey(model, loss_fn, inputs, targets, views=views)
    task = prepared(model, loss_fn, views, known).task(loss_fn, views)
    with plain_float32():
        passed = task.run(*task.public([0, 1], 1))
    seen = len(passed.losses)
    parts = [
        rounding(use, seen, units=units, rows_per_unit=rows_per_unit * seen // 2)
        for use in uses(passed).values()
    ]
    return sum(chunk_errors(parts, units)) + _joining_error(units)


def _joining_error(units: int) -> float:
    """Of adding the sums of blocks, a few in float32 and these in float64, for both of two neighbours.

    The sums of all blocks have norm at most units · C; each is rounded in _JOINED - 1 additions at most, and
    once more at the end.
    """
    return 1.02 * 2 * units * _JOINED * 2.0**-24  # 1.02: second-order terms


class _Stratum(NamedTuple):
    """Units with equally many rows: their numbers (units,), and their rows, unit by unit."""

    members: Tensor
    rows: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Units, and rows of each."""
        return len(self.members), len(self.rows) // len(self.members)


def _strata(units: Tensor) -> list[_Stratum]:
    """Units with equally many rows go together: a unit's rows are then just more positions."""
    owner, counts = _tally(units)
    order = torch.argsort(owner, stable=True)
    return [
        _Stratum((counts == count).nonzero().flatten(), order[(counts == count)[owner[order]]])
        for count in sorted(set(counts.tolist()))
    ]


def _joined(parts: Iterable[ChunkResult]) -> ChunkResult:
    """What blocks add up to, one after the other; no more than a few sums are held at a time."""
    seen: list[ChunkResult] = []
    sums: dict[str, Tensor] = {}  # of the last few
    totals: dict[str, Tensor] = {}  # of those before, in float64
    for part in parts:
        if len(seen) % _JOINED == 0 and seen:
            _add_wide(totals, sums)
            sums = {}
        accumulate(sums, part.sums)
        seen.append(replace(part, sums={}))
    if totals:
        _add_wide(totals, sums)
        sums = {name: total.to(sums[name].dtype) for name, total in totals.items()}
    if len(seen) == 1:
        joining = _joining_error(len(seen[0].norms))
        return replace(seen[0], sums=sums, sum_error=seen[0].sum_error + joining)
    norms = torch.cat([part.norms for part in seen])
    return ChunkResult(
        sums=sums,
        norms=norms,
        coefficients=torch.cat([part.coefficients for part in seen]),
        finite=torch.cat([part.finite for part in seen]),
        raised=torch.cat([part.raised for part in seen]),
        losses=torch.cat([part.losses for part in seen]),
        norm_error=max(part.norm_error for part in seen),
        sum_error=sum(part.sum_error for part in seen) + _joining_error(len(norms)),
    )


def _add_wide(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    accumulate(totals, more if totals else {name: value.double() for name, value in more.items()})


def _reordered(result: ChunkResult, strata: Sequence[_Stratum]) -> ChunkResult:
    """The same with units and rows in the order of the chunk."""
    units = torch.argsort(torch.cat([stratum.members for stratum in strata]))
    rows = torch.argsort(torch.cat([stratum.rows for stratum in strata]))
    return replace(
        result,
        norms=result.norms[units],
        coefficients=result.coefficients[units],
        finite=result.finite[units],
        raised=result.raised[units],
        losses=result.losses[rows],
    )


def _trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _nothing(model: nn.Module, clipping: Clipping) -> ChunkResult:
    none = torch.zeros(0, len(clipping.layers(_trainable(model))), device=device_of(model))
    nobody = torch.zeros(0, dtype=torch.bool, device=none.device)
    return ChunkResult(_zeros(model), none, none, nobody, nobody, none.flatten(), 0.0, 0.0)


def _zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: zero(model, name) for name in _trainable(model)}


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
