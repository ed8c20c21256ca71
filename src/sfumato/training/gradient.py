"""The sum of clipped per-example gradients, at the price of ordinary training.

One forward pass, one backward pass to the layers' outputs, and for each layer a rule: norms first, then the
sum weighted by the clipping coefficients. See `rules.terms` for the two ways of having a norm, and
*Clipping and float32* in `clip_chunk` for what is guaranteed.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.training import probe
from sfumato.training.capture import LossFunction, Pass, count_rows, run
from sfumato.training.clipping import Clipping, Flat
from sfumato.training.probe import Survey
from sfumato.training.rules.rounding import chunk_errors, rounding
from sfumato.training.rules.terms import SLACK_SHARE, Contribution, Term, Weights, term
from sfumato.training.rules.workspace import Workspace

_CHUNK_BYTES = 72 << 20  # what a chunk may hold: it should stay in the cache
_DIRECT_BYTES = 64 << 20  # gradients formed at a time for units that need them


@dataclass(frozen=True)
class ChunkResult:
    """What one chunk adds.

    `norms` are upper bounds, one for each unit (ordered by unit index) and clipping layer; `finite` is False
    for units whose gradient had NaN or Inf: they contribute exactly zero. `rounding` is η: one unit changes
    `sums` by at most sensitivity · (1 + η). `norms`, `finite` and `losses` are private.
    """

    sums: dict[str, Tensor]
    norms: Tensor  # (units, layers)
    coefficients: Tensor  # (units, layers)
    finite: Tensor  # (units,)
    losses: Tensor  # (rows,)
    norm_error: float
    sum_error: float

    @property
    def rounding(self) -> float:
        return self.norm_error + self.sum_error


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

    `loss_fn(outputs, targets)` returns one loss for each row. `units[n]` is the index of the person behind
    row n (each row its own by default). `clip_norm` is C, ∞ for plain sums, or a value of
    `training.clipping`; `chunk` the number of rows worked on at a time, chosen by memory and cache otherwise.

    *Guarantees*: every unit adds at most its clipping bound in norm; NaN and Inf add zero; the model, its
    `.grad`s, hooks and buffers are as before, whatever happens.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> sums = clipped_gradient_sum(model, lambda out, _: out[:, 0], rows, torch.zeros(2), 1.0)
    >>> [round(value, 4) for value in sums["weight"][0].tolist()]
    [0.9, 1.2]
    """
    clipping = clip_norm if isinstance(clip_norm, Clipping) else Flat(norm=clip_norm)
    rows = count_rows(inputs)
    _check_units(units, rows)
    if rows == 0:
        return _zeros(model)
    if chunk is None:
        chunk = chunk_rows(probe.survey(model, loss_fn, inputs, targets))
    totals: dict[str, Tensor] = {}
    for part in _slices(rows, units, _validate.integer("chunk", chunk, least=1)):
        part_units = None if units is None else units[part]
        result = clip_chunk(
            model, loss_fn, _take(inputs, part), _take(targets, part), clipping, units=part_units
        )
        _accumulate(totals, result.sums)
    return totals


def clip_chunk(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clipping: Clipping,
    *,
    units: Tensor | None = None,
) -> ChunkResult:
    """One physical chunk: clipped sums, norms, coefficients, and a bound η of the rounding error.

    *Clipping and float32.* The coefficient of a unit uses an upper bound of its norm, rounding included: a
    Gram norm gets the slack κu·S², S = Σₚ ‖aₚ‖‖gₚ‖; where that slack is not small (the output gradients
    cancel, or squares overflow) the gradient itself is formed and its norm taken in float64. What remains is
    the rounding of the sum over the chunk, bounded by η (see `rounding_bound`), so that adding or removing
    one unit moves the computed sums by at most sensitivity · (1 + η).
    """
    rows = count_rows(inputs)
    _check_units(units, rows)
    if rows == 0:
        none = torch.zeros(0, len(clipping.layers(_trainable(model))))
        return ChunkResult(
            _zeros(model), none, none, torch.zeros(0, dtype=torch.bool), torch.zeros(0), 0.0, 0.0
        )
    known = probe.survey(model, loss_fn, inputs, targets)
    if known.channels_last and known.convolution_weights < _elements(inputs):
        inputs = probe.channels_last(inputs)
    if units is None:
        return _clip_rows(model, loss_fn, inputs, targets, clipping, rows)
    return _clip_units(model, loss_fn, inputs, targets, clipping, units)


_workspaces: weakref.WeakKeyDictionary[nn.Module, Workspace] = weakref.WeakKeyDictionary()


def chunk_rows(known: Survey) -> int:
    """Rows of a chunk: what stays in the cache, but enough to pay for walking over all parameters."""
    budget = max(_CHUNK_BYTES, 28 * known.parameters) // 4
    return min(4096, max(32, budget // known.floats_per_row // 32 * 32))


def rounding_bound(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    *,
    units: int,
    rows_per_unit: int = 1,
) -> float:
    """η for chunks of up to `units` units with up to `rows_per_unit` rows shaped like the given ones.

    Depends on shapes alone: the model sees random public rows. A unit's clipped gradient exceeds its bound by
    at most the error of its norm; the computed sum of a chunk differs from the exact one by at most
    units · e · C, with e from `rules.rounding`. Two neighbouring chunks differ by the unit and by both
    errors: η = norm error + 2 · units · e.
    """
    probe.survey(model, loss_fn, inputs, targets)
    rows = 2
    data = probe.random_rows(inputs, rows), probe.random_rows(targets, rows)
    uses = _uses(run(model, loss_fn, *data)).values()
    parts = [rounding(use, rows, units=units, rows_per_unit=rows_per_unit) for use in uses]
    return sum(chunk_errors(parts, units)) + _strata_error(units, rows_per_unit)


def _strata_error(units: int, strata: int) -> float:
    """Of adding the sums of units with one row, two rows, …"""
    return 0.0 if strata == 1 else 2 * units * strata * 2.0**-24


def _clip_units(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, clipping: Clipping, units: Tensor
) -> ChunkResult:
    """Units with equally many rows go together, so that a unit's rows are just more positions."""
    rows = count_rows(inputs)
    if units.shape != (rows,) or units.is_floating_point():
        raise InvalidInput(
            f"expected units to hold one whole number for each of the {rows} rows, got {units!r}"
        )
    owner, counts = _tally(units)
    order = torch.argsort(owner, stable=True)
    results, members = [], []
    for count in sorted(set(counts.tolist())):
        chosen = order[(counts == count)[owner[order]]]
        part = _take(inputs, chosen), _take(targets, chosen)
        members.append((counts == count).nonzero().flatten())
        results.append((chosen, _clip_rows(model, loss_fn, *part, clipping, len(members[-1]))))
    return _joined(results, torch.cat(members))


def _joined(results: Sequence[tuple[Tensor, ChunkResult]], members: Tensor) -> ChunkResult:
    rows, parts = [chosen for chosen, _ in results], [result for _, result in results]
    back = torch.argsort(members)
    sums = {name: torch.stack([part.sums[name] for part in parts]).sum(0) for name in parts[0].sums}
    return ChunkResult(
        sums=sums,
        norms=torch.cat([part.norms for part in parts])[back],
        coefficients=torch.cat([part.coefficients for part in parts])[back],
        finite=torch.cat([part.finite for part in parts])[back],
        losses=torch.cat([part.losses for part in parts])[torch.argsort(torch.cat(rows))],
        norm_error=max(part.norm_error for part in parts),
        sum_error=sum(part.sum_error for part in parts) + _strata_error(len(members), len(parts)),
    )


def _clip_rows(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, clipping: Clipping, units: int
) -> ChunkResult:
    """Rows ordered by unit, equally many for each."""
    passed = run(model, loss_fn, inputs, targets)
    layers = clipping.layers(list(passed.names.values()))
    with _workspaces.setdefault(model, Workspace()).lend():
        uses = _uses(passed)
        terms = {name: term(contributions, units) for name, contributions in uses.items()}
        squares, doubtful = _squared_norms(terms, layers, clipping.floors(len(layers)), units)
        norms = squares.sqrt()
        finite = norms.isfinite().all(1)
        coefficients = torch.where(finite[:, None], clipping.coefficients(norms), 0.0)
        each = [Weights(coefficients[:, layer]) for layer in range(len(layers))]
        weights = {name: each[layer] for layer, names in enumerate(layers) for name in names}
        sums = _weighted_sums(terms, weights, finite, doubtful)
    rows = len(passed.losses)
    parts = [rounding(use, rows, units=units, rows_per_unit=rows // units) for use in uses.values()]
    sums = {name: sums[name] if name in sums else _zero(model, name) for name in weights}
    return ChunkResult(sums, norms, coefficients, finite, passed.losses, *chunk_errors(parts, units))


def _weighted_sums(
    terms: Mapping[str, Term], weights: Mapping[str, Weights], finite: Tensor, doubtful: Tensor
) -> dict[str, Tensor]:
    """Σ cᵢgᵢ; units that are not finite take no part, doubtful ones do with their formed gradients."""
    special = doubtful | ~finite
    if not bool(special.any()):
        return {name: part.weighted_sum(weights[name]) for name, part in terms.items()}
    sums = {name: part.without(special).weighted_sum(weights[name]) for name, part in terms.items()}
    _accumulate(sums, _direct_sums(terms, weights, doubtful & finite))
    return sums


def _uses(passed: Pass) -> dict[str, list[Contribution]]:
    """What the rows add to each parameter that was used, for all its uses."""
    rows = len(passed.losses)
    uses: dict[str, list[Contribution]] = {}
    for call, gradients in zip(passed.calls, passed.gradients, strict=True):
        for parameter, contribution in call.contributions(gradients, rows).items():
            uses.setdefault(passed.names[parameter], []).append(contribution)
    return uses


def _squared_norms(
    terms: Mapping[str, Term], layers: Sequence[Sequence[str]], floors: Sequence[float], units: int
) -> tuple[Tensor, Tensor]:
    """Squared norms (units, layers), and which units needed their gradient formed."""
    pairs = {name: part.squared_norms() for name, part in terms.items()}
    like = next(iter(pairs.values()))[0] if pairs else torch.zeros(units)
    columns = [[pairs[name] for name in names if name in pairs] for names in layers]
    squares = torch.stack([_added([square for square, _ in column], like) for column in columns], 1)
    slacks = torch.stack(
        [_added([slack for _, slack in column if slack is not None], like) for column in columns], 1
    )
    floor = squares.new_tensor(floors).square()
    sure = (slacks <= SLACK_SHARE * torch.maximum(squares, floor)) & squares.isfinite()
    doubtful = ~sure.all(1)
    for some in _portions(terms, doubtful):
        squares[some] = _exact_squares(terms, layers, some).to(squares)
    return squares, doubtful


def _added(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)


def _exact_squares(terms: Mapping[str, Term], layers: Sequence[Sequence[str]], some: Tensor) -> Tensor:
    """Squared norms of formed gradients, in float64, where no float32 square overflows."""
    gradients = {name: part.gradient(some).flatten(1).double() for name, part in terms.items()}
    zero = torch.zeros(len(some), dtype=torch.float64)
    columns = [
        sum((gradients[name].square().sum(1) for name in names if name in gradients), zero) for names in layers
    ]
    return torch.stack(columns, dim=1) * (1 + 2.0**-20)


def _direct_sums(terms: Mapping[str, Term], weights: Mapping[str, Weights], units: Tensor) -> dict[str, Tensor]:
    """Weighted sums over few units whose gradients are formed, in float64."""
    sums: dict[str, Tensor] = {}
    for some in _portions(terms, units):
        for name, part in terms.items():
            gradient = part.gradient(some)
            added = weights[name].values[some].double() @ gradient.flatten(1).double()
            sums[name] = sums.get(name, 0.0) + added.view(gradient.shape[1:])
    return {name: value.to(weights[name].values.dtype) for name, value in sums.items()}


def _portions(terms: Mapping[str, Term], chosen: Tensor) -> Sequence[Tensor]:
    """Indices of the chosen units, in portions whose gradients fit into memory together."""
    units = chosen.nonzero().flatten()
    if not len(units):
        return ()
    size = sum(part.gradient(units[:1]).numel() for part in terms.values())
    return torch.split(units, max(1, _DIRECT_BYTES // (4 * size)))


def _trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: _zero(model, name) for name in _trainable(model)}


def _zero(model: nn.Module, name: str) -> Tensor:
    return torch.zeros_like(model.get_parameter(name), requires_grad=False)


def _accumulate(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        totals[name] = totals[name].add_(value) if name in totals else value


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
        raise InvalidInput(f"expected units to hold a whole number for each of the {rows} rows, got {units!r}")


def _tally(units: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's unit, numbered from 0, and each unit's number of rows."""
    numbered: Any = torch.unique(units, return_inverse=True, return_counts=True)
    return numbered[1], numbered[2]


def _take(data: Any, part: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf[part] if isinstance(leaf, Tensor) and leaf.dim() else leaf, data)


def _elements(inputs: Any) -> int:
    return sum(leaf.numel() for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))
