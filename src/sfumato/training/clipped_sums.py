"""Norms and weighted sums of the gradients of a block, from the terms of its parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.training.clipping import Clipping
from sfumato.training.rules.terms import SLACK_SHARE, Materialised, Term, Weights

_NARROW = 1024  # values of a gradient that is summed together with others like it


@dataclass(frozen=True)
class ChunkResult:
    """What one chunk adds.

    `norms` are upper bounds, one for each unit (ordered by unit index) and clipping layer; `finite` is False
    for units whose gradient had NaN or Inf, or that met a value without a result: they contribute exactly zero.
    `rounding` is η: one unit changes `sums` by at most sensitivity · (1 + η). All but η is private.

    Attributes:
        sums: The clipped sum for each parameter, by name.
        norms: Upper bounds of the gradient norms.
        coefficients: What each unit's gradient was multiplied by.
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


def weighted_sums(
    terms: Mapping[str, Term], weights: Mapping[str, Weights], left_out: Tensor, into: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Σ cᵢgᵢ over all units but those left out; `into`: zeros that sums may be written to."""
    if bool(left_out.any()):
        terms = {name: part.without(left_out) for name, part in terms.items()}
    sums = _small_sums(terms, weights)
    for name, part in terms.items():
        if name not in sums:
            sums[name] = part.weighted_sum(weights[name], into.get(name))
    return sums


def _small_sums(terms: Mapping[str, Term], weights: Mapping[str, Weights]) -> dict[str, Tensor]:
    """The sums of biases and the like, all that have the same weights by one product."""
    together: dict[int, dict[str, Tensor]] = {}
    for name, part in terms.items():
        if isinstance(part, Materialised) and part.is_vector and part.gradients.shape[1] <= _NARROW:
            together.setdefault(id(weights[name]), {})[name] = part.gradients
    sums: dict[str, Tensor] = {}
    for some in together.values():
        joined = Materialised(torch.cat(list(some.values()), dim=1)).weighted_sum(weights[next(iter(some))])
        sums.update(zip(some, torch.split(joined, [each.shape[1] for each in some.values()]), strict=True))
    return sums


def squared_norms(
    terms: Mapping[str, Term], layers: Sequence[Sequence[str]], floors: Sequence[float], nobody: Tensor
) -> tuple[Tensor, Tensor]:
    """Squared norms (units, layers), and of which units rounding hides them; `nobody`: zeros (units,)."""
    pairs = {name: part.squared_norms() for name, part in terms.items()}
    like = next(iter(pairs.values()))[0] if pairs else nobody
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
    terms: Mapping[str, Term], layers: Sequence[Sequence[str]], units: Tensor, clipping: Clipping
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms (units, layers) and the clipped sum of units whose norms rounding hides, one by one.

    Each gradient is formed once, by itself. Its norm (in float64, where no square overflows) and what is added
    are taken of the same numbers, and these are the same bits whoever else is there. Formed a second time, in a
    batch of another size, what cancellation leaves of it could be anything. Units that are not finite add
    nothing.
    """
    found: list[Tensor] = []
    sums: dict[str, Tensor] = {}
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


def _exact_norms(gradients: Mapping[str, Tensor], layers: Sequence[Sequence[str]], unit: Tensor) -> Tensor:
    """(layers,): a little more than the norms of one unit."""
    zero = torch.zeros((), dtype=torch.float64, device=unit.device)
    columns = [
        sum((gradients[name].square().sum() for name in names if name in gradients), zero) for names in layers
    ]
    return torch.stack(columns).sqrt() * (1 + 2.0**-20)


def accumulate(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        totals[name] = totals[name].add_(value) if name in totals else value
