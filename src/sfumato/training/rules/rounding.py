"""What float32 does to norms and sums, from shapes alone.

Every bound grows with the number of units and of rows a unit has, so that a bound for the declared maximum
holds for every chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from sfumato.training.rules.terms import (
    SLACK_SHARE,
    UNITS_PER_SUM,
    Contribution,
    Factors,
    Fold,
    Lookups,
    Shape,
    is_small,
    pairs_per_product,
    prefers_gram,
    products_per_block,
    slack_factor,
)


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
        return longest + _wide(products, unit) + 2
    block = products_per_block(products)
    return longest + block + math.ceil(products / block) + 2


def _wide(additions: int, unit: float) -> float:
    """Additions in float64, and the conversion back, as so many roundings of the terms' own type."""
    return additions * 2.0**-53 / unit + 1
