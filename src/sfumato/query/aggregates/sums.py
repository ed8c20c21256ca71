"""SUM(x)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.averages import MEAN_SHARES
from sfumato.query.aggregates.base import Error, Function, linear, number_of
from sfumato.query.expressions import Condition
from sfumato.query.intervals import half_width
from sfumato.query.measures import ClippedSum, Measure, Moments, clipped_sum
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.release import Estimate, Noisy


class Sum(Function):
    names = ("sum",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.Sum: "sum"}
    examples = ("SUM(x)", "SUM(x * y - 5)", "SUM(b)")

    def parse(self, node: Expr, names: Names, only: Condition | None) -> Aggregate:
        return Aggregate("sum", number_of(node, names, only))

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        assert aggregate.of is not None
        return clipped_sum(aggregate.of, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        if isinstance(measure, ClippedSum):
            return measure.of == aggregate.of
        return isinstance(measure, Moments) and measure.of == aggregate.of and measure.degree > 0

    def estimate(self, aggregate: Aggregate, source: Noisy) -> Estimate:
        measure = source.measure
        if isinstance(measure, ClippedSum):
            return linear(source, [measure.fixed.grid])
        assert isinstance(measure, Moments)
        fixed = measure.fixed
        weights = [fixed.lower / fixed.span + fixed.grid * share for share in MEAN_SHARES[measure.degree]]
        return linear(source, weights + [0.0] * measure.missing)

    def expected(self, aggregate: Aggregate, measure: Measure, scale: float, rows: float) -> Error:
        if isinstance(measure, ClippedSum):
            return Error(float(half_width([[1.0]])[0]) * scale * measure.fixed.grid)
        assert isinstance(measure, Moments)
        fixed = measure.fixed
        ends = np.linspace(fixed.lower, fixed.upper, measure.degree + 1) / fixed.span
        return Error(float(half_width([ends])[0]) * scale)
