"""How a unit's gradient is bounded before it is summed: values, not subclasses.

Each variant turns norms (an upper bound for every unit and layer) into coefficients, and states the
sensitivity: by how much, in L2 norm, one unit can change the sum of coefficient · gradient.

>>> import torch
>>> Flat(norm=1.0).coefficients(torch.tensor([[0.5], [4.0]])).flatten().tolist()
[1.0, 0.24999994039535522]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.training.terms import (
    SLACK_SHARE,
    UNITS_PER_SUM,
    Contribution,
    Factors,
    Fold,
    Lookups,
    Rows,
    Shape,
    Term,
    Weights,
    depth_by_eights,
    is_small,
    pairs_per_product,
    prefers_gram,
    products_per_block,
    slack_factor,
    term,
)

SMALLEST_NORM = 1e-10  # far above the underflow of float32 in a gradient's squares
_SHRINK = 1.0 - 2.0**-22  # covers the rounding of a division and a multiplication in float32


def _clip_norm(value: float) -> float:
    """A bound ≥ 1e-10, or ∞ for no bound."""
    if isinstance(value, float) and math.isinf(value) and value > 0:
        return value
    number = _validate.positive("norm", value, remedy="the clipping norm bounds each unit's gradient")
    if number < SMALLEST_NORM:
        raise InvalidInput(f"expected norm >= {SMALLEST_NORM}, got norm={value!r}; rescale the loss instead")
    return number


def _bounded(norms: Tensor, bounds: Tensor) -> Tensor:
    """min(1, bound / norm), rounded so that coefficient · norm ≤ bound."""
    return (bounds / norms * _SHRINK).clamp(max=1.0)


def modules_of(names: Sequence[str]) -> list[list[str]]:
    """Parameter names grouped by the module that owns them: weight and bias are one layer.

    >>> modules_of(["conv.weight", "conv.bias", "head.weight"])
    [['conv.weight', 'conv.bias'], ['head.weight']]
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return list(layers.values())


@dataclass(frozen=True, kw_only=True)
class Flat:
    """g · min(1, C/‖g‖) over all parameters together (Abadi et al. 2016, algorithm 1).

    *Guarantees*: norm ≤ C for every unit; `norm=inf` leaves the gradient as it is.

    Args:
        norm: C; ∞ for plain sums.

    >>> import torch
    >>> kept = Flat(norm=1.0).coefficients(torch.tensor([[4.0], [0.5]]))
    >>> [round(value, 4) for value in kept.flatten().tolist()]
    [0.25, 1.0]
    """

    norm: float

    def __post_init__(self) -> None:
        _clip_norm(self.norm)

    @property
    def sensitivity(self) -> float:
        return self.norm

    def layers(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)]

    def floors(self, layers: int) -> list[float]:
        return [self.norm]

    def coefficients(self, norms: Tensor) -> Tensor:
        return _bounded(norms, norms.new_tensor(self.norm))


@dataclass(frozen=True, kw_only=True)
class PerLayer:
    """Each layer's part clipped on its own: g_l · min(1, C_l/‖g_l‖) (McMahan et al. 2018, section 4).

    *Guarantees*: ‖whole gradient‖ ≤ √Σ C_l².

    Args:
        norm: The total bound C, split equally: C_l = C/√L.
        norms: The C_l themselves, in the order of the layers.

    >>> PerLayer(norms=(1.0, 2.0)).norms
    (1.0, 2.0)
    """

    norm: float | None = None
    norms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.norm is None) == (not self.norms):
            raise InvalidInput(
                f"expected either norm or norms, got norm={self.norm!r}, norms={self.norms!r}; "
                "norm is a total to be split equally, norms has one bound for each layer"
            )
        for norm in self.norms or (self.norm,):
            _clip_norm(norm)  # type: ignore[arg-type]

    @property
    def sensitivity(self) -> float:
        return self.norm if self.norm is not None else math.hypot(*self.norms)

    def layers(self, names: Sequence[str]) -> list[list[str]]:
        return modules_of(names)

    def floors(self, layers: int) -> list[float]:
        if self.norm is not None:
            return [self.norm / math.sqrt(layers)] * layers
        if len(self.norms) != layers:
            raise InvalidInput(
                f"expected norms to have one bound for each of the {layers} layers, got norms={self.norms!r}"
            )
        return list(self.norms)

    def coefficients(self, norms: Tensor) -> Tensor:
        return _bounded(norms, norms.new_tensor(self.floors(norms.shape[1])))


@dataclass(frozen=True, kw_only=True)
class Automatic:
    """g · C/(‖g‖ + γ): every unit weighs about the same (Bu et al. 2023, AUTO-S).

    *Guarantees*: norm ≤ C for every unit.

    Args:
        norm: C.
        gamma: γ, which keeps units of tiny gradients from being scaled up without end.

    >>> import torch
    >>> round(Automatic(norm=1.0).coefficients(torch.tensor([[0.99]])).item(), 4)
    1.0
    """

    norm: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        if not math.isfinite(_clip_norm(self.norm)):
            raise InvalidInput(
                f"expected norm to be finite, got norm={self.norm!r}; use Flat to leave gradients"
            )
        _validate.positive("gamma", self.gamma, remedy="gamma keeps small gradients from being blown up")
        if self.gamma < SMALLEST_NORM:
            raise InvalidInput(f"expected gamma >= {SMALLEST_NORM}, got gamma={self.gamma!r}; 0.01 is usual")

    @property
    def sensitivity(self) -> float:
        return self.norm

    def layers(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)]

    def floors(self, layers: int) -> list[float]:
        return [self.gamma]

    def coefficients(self, norms: Tensor) -> Tensor:
        return self.norm / (norms + self.gamma) * _SHRINK


Clipping: TypeAlias = Flat | PerLayer | Automatic


def clipped(
    contributions: Mapping[str, Sequence[Contribution]],
    losses: Tensor,
    bad: Tensor | None,
    clipping: Clipping,
    *,
    names: Mapping[str, Tensor],
    units: int,
    height: int,
    into: Mapping[str, Tensor],
) -> ChunkResult:
    """The clipped sum of a block of `height` units, of which the first `units` are real and the others padding.

    *Guarantees*: a unit whose loss, operands or norm are not finite, or of which a row is marked, adds exactly
    zero: its operands are replaced by zeros before any product. Every other adds at most its clipping bound.

    Args:
        contributions: The uses of each parameter, one entry for each row.
        losses: (rows,).
        bad: (rows,): rows that met a value without a result.
        clipping: The clipping rule.
        names: The trainable parameters.
        units: The real units.
        height: All units.
        into: Zeros that the sums may be written to.
    """
    rows = len(losses) // height
    layers = clipping.layers(list(names))
    together = joined(contributions, layers)
    groups = [[key for key in together if key[0] in layer] for layer in map(set, layers)]
    counted = torch.arange(height, device=losses.device) < units
    counted &= losses.isfinite().view(height, rows).all(1)
    if bad is not None:
        counted &= ~bad.view(height, rows).any(1)
    terms = {key: term(used, height) for key, used in together.items()}
    none = torch.zeros(height, device=losses.device)
    squares, doubtful = squared_norms(terms, groups, clipping.floors(len(layers)), none)
    norms, hidden = squares.sqrt(), doubtful & counted
    alone: dict[Names, Tensor] = {}
    if bool(hidden.any()):
        exact, alone = clipped_alone(terms, groups, hidden.nonzero().flatten(), clipping)
        norms[hidden] = exact.to(norms)
    adds = (norms < math.inf).all(1) & counted
    coefficients = torch.where(adds[:, None], clipping.coefficients(norms), 0.0)
    each = [Weights(coefficients[:units, layer]) for layer in range(len(layers))]
    weights = {key: each[layer] for layer, members in enumerate(groups) for key in members}
    if units < height:
        terms = {key: part.first(units) for key, part in terms.items()}
    total = weighted_sums(terms, weights, (hidden | ~adds)[:units], into)
    accumulate(total, {key: added.to(total[key]) for key, added in alone.items()})
    sums = _taken_apart(total, names)
    for name, parameter in names.items():
        if name not in sums:
            sums[name] = torch.zeros_like(parameter, requires_grad=False)
    used = [tuple(map(Use.of, each)) for each in together.values()]
    norm_error, sum_error = chunk_errors([bounds(use, height * rows, units, rows) for use in used], units)
    return ChunkResult(
        {name: sums[name] for name in names},
        norms[:units],
        coefficients[:units],
        adds[:units],
        losses[: units * rows],
        norm_error + adding_error(len(contributions)),
        sum_error,
    )


def adding_error(parameters: int) -> float:
    """Of adding the squared norms of so many parameters, in float32: half of it in the norm."""
    return 1.02 * parameters * 2.0**-25  # 1.02: second-order terms


_NARROW = 1024  # values of gradients of biases and the like that lie side by side
Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class ChunkResult:
    """The clipped sums of one chunk.

    `norms` are upper bounds, one for each unit (ordered by unit index) and clipping layer; `finite` is False
    for units whose gradient had NaN or Inf, or that met a value without a result: they contribute exactly zero.
    `rounding` is η: one unit changes `sums` by at most sensitivity · (1 + η). All but η is private.

    Attributes:
        sums: The clipped sum for each parameter, by name.
        norms: Upper bounds of the gradient norms.
        coefficients: The factor of each unit's gradient.
        finite: False for units that contribute nothing.
        losses: The loss of each row.
        norm_error: Bound of the rounding error of a norm.
        sum_error: Bound of the rounding error of the sums.
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


def joined(
    contributions: Mapping[str, Sequence[Contribution]], layers: Sequence[Sequence[str]]
) -> dict[Names, Sequence[Contribution]]:
    """The same, with gradients of biases and the like side by side, as long as they are one layer's."""
    found: dict[Names, Sequence[Contribution]] = {}
    for layer in layers:
        side_by_side: dict[str, Tensor] = {}
        for name in [each for each in layer if each in contributions]:
            used = contributions[name]
            if len(used) > 1 or not isinstance(used[0], Rows) or used[0].gradients.dim() != 2:
                found[name,] = used
                continue
            gradients = used[0].gradients
            if sum(each.shape[1] for each in side_by_side.values()) + gradients.shape[1] > _NARROW:
                found |= _of_one(side_by_side)
                side_by_side = {}
            side_by_side[name] = gradients
        found |= _of_one(side_by_side)
    return found


def _of_one(gradients: Mapping[str, Tensor]) -> dict[Names, Sequence[Contribution]]:
    parts = list(gradients.values())
    return {tuple(gradients): [Rows(parts[0] if len(parts) == 1 else torch.cat(parts, 1))]} if parts else {}


def _taken_apart(sums: Mapping[Names, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {names[0]: total for names, total in sums.items() if len(names) == 1}
    for names, total in sums.items():
        if len(names) > 1:
            found.update(zip(names, torch.split(total, [len(like[name]) for name in names]), strict=True))
    return found


def weighted_sums(
    terms: Mapping[Names, Term], weights: Mapping[Names, Weights], left_out: Tensor, into: Mapping[str, Tensor]
) -> dict[Names, Tensor]:
    """Σ cᵢgᵢ over all units but those left out; `into`: zeros that sums may be written to."""
    if bool(left_out.any()):
        terms = {key: part.without(left_out) for key, part in terms.items()}
    return {key: part.weighted_sum(weights[key], into.get(key[0])) for key, part in terms.items()}


def squared_norms(
    terms: Mapping[Names, Term], layers: Sequence[Sequence[Names]], floors: Sequence[float], none: Tensor
) -> tuple[Tensor, Tensor]:
    """Squared norms (units, layers), and of which units rounding hides them; `none`: zeros (units,)."""
    pairs = {name: part.squared_norms() for name, part in terms.items()}
    like = next(iter(pairs.values()))[0] if pairs else none
    columns = [[pairs[name] for name in names if name in pairs] for names in layers]
    squares = _side_by_side([_added([square for square, _ in column], like) for column in columns])
    slacks = _side_by_side(
        [_added([slack for _, slack in column if slack is not None], like) for column in columns]
    )
    floor = squares.new_tensor([floor * floor for floor in floors])
    sure = (slacks <= SLACK_SHARE * torch.maximum(squares, floor)) & (squares < math.inf)
    return squares, ~sure.all(1)


def _side_by_side(columns: Sequence[Tensor]) -> Tensor:
    return columns[0].unsqueeze(1) if len(columns) == 1 else torch.stack(list(columns), 1)


def _added(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """One after the other: a sum over a dimension would round by the place of a unit."""
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)


def clipped_alone(
    terms: Mapping[Names, Term], layers: Sequence[Sequence[Names]], units: Tensor, clipping: Clipping
) -> tuple[Tensor, dict[Names, Tensor]]:
    """Norms (units, layers) and the clipped sum of units whose norms rounding hides, one by one.

    Each gradient is formed once, by itself. Its norm (in float64, where no square overflows) and its summand
    come from the same numbers, the same bits in any company. Formed a second time, in a batch of another size,
    the remainder of a cancellation could be any number. Units that are not finite add
    nothing.
    """
    found: list[Tensor] = []
    sums: dict[Names, Tensor] = {}
    for unit in torch.split(units, 1):
        gradients = {name: part.gradient(unit)[0].double() for name, part in terms.items()}
        norms = _exact_norms(gradients, layers, unit)
        found.append(norms.float())
        if not bool(found[-1].isfinite().all()):
            continue
        coefficients = clipping.coefficients(norms[None])[0]
        for layer, names in enumerate(layers):
            own = {name: gradients[name] * coefficients[layer] for name in names if name in gradients}
            accumulate(sums, own)
    return torch.stack(found), sums


def _exact_norms(gradients: Mapping[Names, Tensor], layers: Sequence[Sequence[Names]], unit: Tensor) -> Tensor:
    """(layers,): a little more than the norms of one unit."""
    zero = torch.zeros((), dtype=torch.float64, device=unit.device)
    columns = [
        sum((gradients[name].square().sum() for name in names if name in gradients), zero) for names in layers
    ]
    return torch.stack(columns).sqrt() * (1 + 2.0**-20)


def accumulate(totals: dict[Any, Tensor], more: Mapping[Any, Tensor]) -> None:
    for name, value in more.items():
        totals[name] = totals[name].add_(value) if name in totals else value


@dataclass(frozen=True)
class Rounding:
    """Relative error bounds of one parameter's term.

    `norm` is the error of a norm. The error of a weighted sum Σ cᵢgᵢ is at most `formed` + `product` times
    Σ cᵢ‖gᵢ‖: `formed` for sums of formed gradients, `product` for Gram terms, where S = Σₚ ‖aₚ‖‖gₚ‖ may
    exceed the norm by √(share/κu) before the gradient is formed instead.
    """

    norm: float
    formed: float
    product: float = 0.0


class Use(NamedTuple):
    """A contribution without its values."""

    kind: type
    inputs: Shape  # of factors the inputs, of lookups the indices
    gradients: Shape
    unit: float  # roundoff
    fold: Fold | None

    @classmethod
    def of(cls, contribution: Contribution) -> Use:
        gradients = contribution.gradients
        unit = _unit(gradients.dtype)
        if isinstance(contribution, Factors):
            return cls(Factors, tuple(contribution.inputs.shape), gradients.shape, unit, contribution.fold)
        indices = contribution.indices.shape if isinstance(contribution, Lookups) else ()
        return cls(type(contribution), indices, gradients.shape, unit, None)


@lru_cache
def _unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def rounding(contributions: Sequence[Contribution], rows: int, *, units: int, rows_per_unit: int) -> Rounding:
    """The bounds of `term(contributions, …)` for up to `units` units of up to `rows_per_unit` rows."""
    return bounds(tuple(map(Use.of, contributions)), rows, units, rows_per_unit)


@lru_cache(maxsize=1 << 14)
def bounds(uses: Sequence[Use], rows: int, units: int, rows_per_unit: int) -> Rounding:
    """The same of contributions without their values."""
    if all(use.kind is Factors and use.fold == uses[0].fold for use in uses):
        return _of_factors(uses, rows, units, rows_per_unit)
    parts = [_of(use, rows, units, rows_per_unit) for use in uses]
    joined = _formed_depth(units, uses[0].unit) * uses[0].unit if len(uses) > 1 else 0.0  # uses are added first
    return Rounding(
        norm=max(part.norm for part in parts),
        formed=max(joined, *(part.formed for part in parts)),
        product=max(part.product for part in parts),
    )


def chunk_errors(parts: Sequence[Rounding], units: int) -> tuple[float, float]:
    """Error of the norms, and of the difference between the sums of two neighbouring chunks."""
    if not parts:
        return 0.0, 0.0
    error = max(part.formed for part in parts) + max(part.product for part in parts)
    return 1.02 * max(part.norm for part in parts), 1.02 * 2 * units * error  # 1.02: second-order terms


def _of(use: Use, rows: int, units: int, rows_per_unit: int) -> Rounding:
    if use.kind is Factors:
        return _of_factors([use], rows, units, rows_per_unit)
    if use.kind is Lookups:
        lookups = math.prod(use.inputs) // rows * rows_per_unit
        return Rounding(
            norm=(use.gradients[-1] + lookups + 4) * use.unit / 2,
            formed=(_wide(units, use.unit) + 2) * use.unit,
        )
    return Rounding(
        norm=(sum(use.gradients[1:]) + 4) * use.unit / 2, formed=_formed_depth(units, use.unit) * use.unit
    )


def _of_factors(uses: Sequence[Use], rows: int, units: int, rows_per_unit: int) -> Rounding:
    _, groups, _, width = uses[0].inputs
    height, unit = uses[0].gradients[3], uses[0].unit
    positions = sum(use.inputs[2] * use.inputs[0] // rows for use in uses)  # of one row
    choices = [k * positions for k in range(1, rows_per_unit + 1)]
    gram = [p for p in choices if prefers_gram(p, width, height)]
    slack = slack_factor(groups, 1, width, height, unit)
    shape = groups, width, height
    norm, formed, product = (sum(shape) + 8) * unit / 2, _formed_depth(units, unit) * unit, 0.0
    if 1 in gram:
        norm, formed = max(norm, slack / 2), max(formed, _product_depth(units, 1, shape, unit) * unit)
    if max(gram, default=1) > 1:
        norm = SLACK_SHARE / 2
        product = _product_depth(units, max(gram), shape, unit) * unit * math.sqrt(SLACK_SHARE / slack)
    return Rounding(norm, formed, product)


def _formed_depth(units: int, unit: float) -> float:
    """Roundings behind an element of a sum of formed gradients."""
    return min(units, UNITS_PER_SUM) + _wide(math.ceil(units / UNITS_PER_SUM), unit) + 2


def _product_depth(units: int, positions: int, shape: tuple[int, int, int], unit: float) -> float:
    """Roundings behind an element of a Gram term's sum: in its product, its block, and over the blocks."""
    pairs = pairs_per_product(*shape)
    products = math.ceil(units / max(1, pairs // positions))
    longest = min(units * positions, max(pairs, positions))
    if is_small(*shape):
        return longest + depth_by_eights(products) + _wide(products, unit) + 2
    block = products_per_block(products)
    return longest + block + math.ceil(products / block) + 2


def _wide(additions: int, unit: float) -> float:
    """Additions in float64, and the conversion back, as so many roundings of the terms' own type."""
    return additions * 2.0**-53 / unit + 1
