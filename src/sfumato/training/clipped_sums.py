"""Norms and weighted sums of the gradients of a block, from the terms of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sfumato.training.capture import Part, Pass
from sfumato.training.rules.terms import SLACK_SHARE, Contribution, Materialised, Term, Weights, formed_values

_DIRECT_BYTES = 16 << 20  # gradients formed at a time for units that need them; six times that in float64
PORTION = 8  # units whose gradients are formed at a time
_NARROW = 1024  # values of a gradient that is summed together with others like it
_FORMED_BYTES = 256 << 20  # gradients formed from factors and kept until their norms are known


def weighted_sums(
    terms: Mapping[str, Term],
    weights: Mapping[str, Weights],
    finite: Tensor,
    doubtful: Tensor,
    into: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Σ cᵢgᵢ; units that are not finite take no part, doubtful ones do with their formed gradients.

    `into`: zeros that sums may be written to.
    """
    special = doubtful | ~finite
    cleared = terms
    if bool(special.any()):
        cleared = {name: part.without(special) for name, part in terms.items()}
    sums = _small_sums(cleared, weights)
    for name, part in cleared.items():
        if name not in sums:
            sums[name] = part.weighted_sum(weights[name], into.get(name))
    if cleared is not terms:
        accumulate(sums, _direct_sums(terms, weights, doubtful & finite))
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


def uses(passed: Pass, part: Part | None = None) -> dict[str, list[Contribution]]:
    """What the rows of a part, or all, add to each parameter that was used, for all its uses."""
    rows = len(passed.losses)
    if part is not None and part.stop - part.start == part.of:
        part = None
    uses: dict[str, list[Contribution]] = {}
    for call, gradients in passed.by_call():
        for parameter, contribution in call.contributions(gradients, rows, part).items():
            uses.setdefault(passed.names[parameter], []).append(contribution)
    return uses


def parts_of(passed: Pass, height: int, sizes: dict[int, int]) -> list[Part]:
    """The units of a block in parts whose gradients are formed together; by shapes alone.

    `sizes`: those known so far, by the rows of a unit.
    """
    rows = len(passed.losses) // height
    if rows not in sizes:
        formed = 4 * sum(map(formed_values, uses(passed, Part(0, 1, height)).values()))
        sizes[rows] = max(PORTION, _FORMED_BYTES // max(1, formed) // PORTION * PORTION)
    starts = range(0, height, sizes[rows])
    return [Part(start, min(start + sizes[rows], height), height) for start in starts]


def squared_norms(
    terms: Mapping[str, Term], layers: Sequence[Sequence[str]], floors: Sequence[float], nobody: Tensor
) -> tuple[Tensor, Tensor]:
    """Squared norms (units, layers), and which units needed their gradient formed; `nobody`: zeros (units,)."""
    pairs = {name: part.squared_norms() for name, part in terms.items()}
    like = next(iter(pairs.values()))[0] if pairs else nobody
    columns = [[pairs[name] for name in names if name in pairs] for names in layers]
    squares = torch.stack([_added([square for square, _ in column], like) for column in columns], 1)
    slacks = torch.stack(
        [_added([slack for _, slack in column if slack is not None], like) for column in columns], 1
    )
    floor = squares.new_tensor(floors).square()
    sure = (slacks <= SLACK_SHARE * torch.maximum(squares, floor)) & squares.isfinite()
    doubtful = ~sure.all(1)
    for some in portions(terms, doubtful):
        squares[some] = exact_squares(terms, layers, some).to(squares)
    return squares, doubtful


def _added(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    if len(parts) > 2:
        return torch.stack(list(parts)).sum(0)
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)


def exact_squares(terms: Mapping[str, Term], layers: Sequence[Sequence[str]], some: Tensor) -> Tensor:
    """Squared norms of formed gradients, in float64, where no float32 square overflows."""
    gradients = {name: part.gradient(some).flatten(1).double() for name, part in terms.items()}
    zero = torch.zeros(len(some), dtype=torch.float64, device=some.device)
    columns = [
        sum((gradients[name].square().sum(1) for name in names if name in gradients), zero) for names in layers
    ]
    return torch.stack(columns, dim=1) * (1 + 2.0**-20)


def _direct_sums(terms: Mapping[str, Term], weights: Mapping[str, Weights], units: Tensor) -> dict[str, Tensor]:
    """Weighted sums over few units whose gradients are formed, in float64."""
    sums: dict[str, Tensor] = {}
    for some in torch.split(units.nonzero().flatten(), PORTION):
        for name, part in terms.items():
            gradient = part.gradient(some)
            added = weights[name].values[some].double() @ gradient.flatten(1).double()
            sums[name] = sums.get(name, 0.0) + added.view(gradient.shape[1:])
    return {name: value.to(weights[name].values.dtype) for name, value in sums.items()}


def portions(terms: Mapping[str, Term], chosen: Tensor, *, values: int | None = None) -> Sequence[Tensor]:
    """Indices of the chosen units in portions of one size, the last one filled up with the first index.

    The size depends on shapes alone, so that a unit's formed gradient is the same bits whoever else was chosen.
    `values`: in the gradient of one unit, where `terms` are not all of them.
    """
    if not bool(chosen.any()):
        return ()
    units = chosen.nonzero().flatten()
    if values is None:
        values = sum(part.gradient(units[:1]).numel() for part in terms.values())
    portion = max(1, min(PORTION, _DIRECT_BYTES // (4 * values)))
    missing = -len(units) % portion
    return torch.split(torch.cat([units, units[:1].expand(missing)]), portion)


def accumulate(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        totals[name] = totals[name].add_(value) if name in totals else value
