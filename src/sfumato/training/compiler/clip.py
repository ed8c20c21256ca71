"""The tail: from the operands of a block to clipped sums, the same for every model.

Nothing here runs code of the user's, and the bound η of `rules.rounding` holds for arbitrary finite operands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sfumato.training.clipped_sums import ChunkResult, accumulate, clipped_alone, squared_norms, weighted_sums
from sfumato.training.clipping import Clipping
from sfumato.training.rules.rounding import Use, bounds, chunk_errors
from sfumato.training.rules.terms import Contribution, Weights, term


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
        contributions: For each parameter what its uses add, one entry for each row.
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
    counted = torch.arange(height, device=losses.device) < units
    counted &= losses.isfinite().view(height, rows).all(1)
    if bad is not None:
        counted &= ~bad.view(height, rows).any(1)
    terms = {name: term(used, height) for name, used in contributions.items()}
    nobody = torch.zeros(height, device=losses.device)
    squares, doubtful = squared_norms(terms, layers, clipping.floors(len(layers)), nobody)
    norms, hidden = squares.sqrt(), doubtful & counted
    alone: dict[str, Tensor] = {}
    if bool(hidden.any()):
        exact, alone = clipped_alone(terms, layers, hidden.nonzero().flatten(), clipping)
        norms[hidden] = exact.to(norms)
    adds = (norms < math.inf).all(1) & counted
    coefficients = torch.where(adds[:, None], clipping.coefficients(norms), 0.0)
    each = [Weights(coefficients[:, layer]) for layer in range(len(layers))]
    weights = {name: each[layer] for layer, members in enumerate(layers) for name in members}
    sums = weighted_sums(terms, weights, hidden | ~adds, into)
    accumulate(sums, {name: added.to(sums[name]) for name, added in alone.items()})
    for name, parameter in names.items():
        if name not in sums:
            sums[name] = torch.zeros_like(parameter, requires_grad=False)
    used = [tuple(map(Use.of, each)) for each in contributions.values()]
    norm_error, sum_error = chunk_errors([bounds(use, height * rows, units, rows) for use in used], units)
    return ChunkResult(
        {name: sums[name] for name in names},
        norms[:units],
        coefficients[:units],
        adds[:units],
        losses[: units * rows],
        norm_error + adding_error(len(used)),
        sum_error,
    )


def adding_error(parameters: int) -> float:
    """Of adding the squared norms of so many parameters, in float32: half of it in the norm."""
    return 1.02 * parameters * 2.0**-25  # 1.02: second-order terms
