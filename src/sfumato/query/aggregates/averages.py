"""AVG(x)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.base import Error, Function, number_of
from sfumato.query.expressions.base import Expression
from sfumato.query.intervals import Floats, Noise, ratio_interval, reach
from sfumato.query.measures import Measure, Moments, moments
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.release import Noisy, NoisyEstimate

MEAN_SHARES = {1: np.array([0.0, 1.0]), 2: np.array([0.0, 0.5, 1.0])}


class Average(Function):
    names = ("avg",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.Avg: "avg"}
    examples = ("AVG(x)", "AVG(CASE WHEN b THEN x ELSE -y / 4 END)", "AVG(b)", "AVG(y) FILTER (WHERE x > 7)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        return Aggregate("avg", number_of(node, names, only))

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        return moments(aggregate.of, 1, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        return isinstance(measure, Moments) and measure.of == aggregate.of and measure.degree > 0

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        measure = source.measure
        assert isinstance(measure, Moments)
        shares = MEAN_SHARES[measure.degree]
        parts = source.parts[:, : len(shares)].astype(float)
        total = parts.sum(axis=1)
        low, high = ratio_interval(parts, shares, source.noise)
        unknown = (low == 0.0) & (high == 1.0)  # noise could hide the whole group: say the middle
        ratio = np.where(unknown, 0.5, parts @ shares / np.where(unknown, 1.0, total))
        return NoisyEstimate(*(_unscaled(measure, item) for item in (ratio, low, high)))

    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        """Largest at the ends of the bounds, least in the middle; stated for the middle."""
        assert isinstance(measure, Moments)
        shares = np.array([0.5, -0.5]) if measure.degree == 1 else np.array([0.5, 0.0, -0.5])
        error = float(reach([shares], noise)[0]) * measure.fixed.grid / rows
        half = (measure.fixed.upper - measure.fixed.lower) / 2
        return Error(min(error, half), half, sized=True)


def _unscaled(measure: Moments, ratio: Floats) -> Floats:
    fixed = measure.fixed
    return np.clip(fixed.lower + ratio * fixed.span * fixed.grid, fixed.lower, fixed.upper)
