"""How wrong an answer would be: from the query and the policy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sfumato.query.intervals import discrete_half_width, half_width
from sfumato.query.noise import Price
from sfumato.query.plan import Aggregate, Cells, ClippedSum, Measure, Moments, Query, UnitCount, public_keys
from sfumato.query.policy import Policy
from sfumato.query.release import answers

DEFAULT_SIZE = 1000


@dataclass(frozen=True, kw_only=True)
class ExpectedError:
    """Half the width of a column's 95% interval, if a group has about `rows` rows (None: whatever it has)."""

    column: str
    half_width: float
    in_units_of: str
    rows: float | None


def expected_errors(query: Query, cost: Price, policy: Policy) -> tuple[ExpectedError, ...]:
    """The expected error of each aggregate of a query.

    Counts and sums do not depend on the data. For averages, variances and quantiles it takes the size of a
    group: public_size shared by the public groups, or 1,000 rows. Quantiles are given as a share of the ranks.
    """
    rows = _rows_per_group(query, policy)
    return tuple(
        _expected(output.name, output.value, cost, rows)
        for output in query.outputs
        if isinstance(output.value, Aggregate)
    )


def _rows_per_group(query: Query, policy: Policy) -> float:
    keys = public_keys(query, policy)
    if policy.public_size is None or keys is None:
        return DEFAULT_SIZE
    return policy.public_size / math.prod(len(values) for values in keys)


def _expected(name: str, aggregate: Aggregate, cost: Price, rows: float) -> ExpectedError:
    measure, scale = _source(aggregate, cost)
    if isinstance(measure, Cells):
        error = 100 * _rank_error(measure, aggregate.level, scale) / rows
        return ExpectedError(column=name, half_width=min(100.0, error), in_units_of="percentiles", rows=rows)
    if aggregate.function == "avg" and isinstance(measure, Moments):
        # Largest at the ends of the bounds, least in the middle; stated for the middle.
        shares = np.array([0.5, -0.5]) if measure.degree == 1 else np.array([0.5, 0.0, -0.5])
        error = float(half_width([shares])[0]) * scale * measure.fixed.grid / rows
        reach = measure.fixed.upper - measure.fixed.lower
        return ExpectedError(column=name, half_width=min(error, reach / 2), in_units_of="value", rows=rows)
    if aggregate.function.startswith(("var", "stddev")) and isinstance(measure, Moments):
        return _expected_spread(name, aggregate, measure, scale, rows)
    return ExpectedError(
        column=name, half_width=_width(aggregate, measure, scale), in_units_of="value", rows=None
    )


def _width(aggregate: Aggregate, measure: Measure, scale: float) -> float:
    """Half widths that hold whatever the data is: of counts and sums."""
    one = float(half_width([[1.0]])[0])
    if isinstance(measure, ClippedSum):
        return one * scale * measure.fixed.grid
    if isinstance(measure, UnitCount) or (isinstance(measure, Moments) and measure.degree == 0):
        riding = isinstance(measure, Moments) and measure.missing and aggregate.of is None
        return float(half_width([[1.0, 1.0]])[0]) * scale if riding else float(discrete_half_width(scale))
    assert isinstance(measure, Moments)
    fixed = measure.fixed
    if aggregate.function == "sum":
        ends = np.linspace(fixed.lower, fixed.upper, measure.degree + 1) / fixed.span
        return float(half_width([ends])[0]) * scale
    numbers = measure.degree + 1 + (measure.missing and aggregate.of is None)
    return float(half_width([[1.0] * numbers])[0]) * scale / fixed.span


def _expected_spread(
    name: str, aggregate: Aggregate, measure: Moments, scale: float, rows: float
) -> ExpectedError:
    """For values spread evenly over the bounds: E[z] = ½, E[z²] = ⅓."""
    gradient = np.array([0.0, 0.0, 1.0]) - 1 / 3 - (np.array([0.0, 0.5, 1.0]) - 0.5)
    relative = float(half_width([gradient])[0]) * scale / measure.span / rows
    unit = measure.fixed.upper - measure.fixed.lower
    if aggregate.function.startswith("var"):
        error = min(relative, 0.25) * unit**2
    else:
        error = min(relative / 2 / math.sqrt(1 / 12), 0.5) * unit
    return ExpectedError(column=name, half_width=error, in_units_of="value", rows=rows)


def _rank_error(cells: Cells, level: float, scale: float) -> float:
    children, depth = cells.shape
    nodes = (children - 1) * depth
    return 1.96 * scale * math.sqrt(2 * nodes * ((1 - level) ** 2 + level**2) / 2)


def _source(aggregate: Aggregate, cost: Price) -> tuple[Measure, float]:
    for measure, noise in zip(cost.measures, cost.noises, strict=True):
        if answers(measure, aggregate):
            return measure, noise.scale
    raise TypeError(aggregate.function)
