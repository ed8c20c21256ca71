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
from sfumato.query.expressions.base import Expression
from sfumato.query.intervals import Noise, reach
from sfumato.query.measures import BoundedSum, Measure, Moments, bounded_sum
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.release import Noisy, NoisyEstimate


class Sum(Function):
    names = ("sum",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.Sum: "sum"}
    examples = ("SUM(x)", "SUM(x * y - 5)", "SUM(b)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        return Aggregate("sum", number_of(node, names, only))

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        assert aggregate.of is not None
        return bounded_sum(aggregate.of, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        if isinstance(measure, BoundedSum):
            return measure.of == aggregate.of
        return isinstance(measure, Moments) and measure.of == aggregate.of and measure.degree > 0

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        measure = source.measure
        if isinstance(measure, BoundedSum):
            return linear(source, [measure.fixed.grid])
        assert isinstance(measure, Moments)
        fixed = measure.fixed
        weights = [fixed.lower / fixed.span + fixed.grid * share for share in MEAN_SHARES[measure.degree]]
        return linear(source, weights + [0.0] * measure.missing)

    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        if isinstance(measure, BoundedSum):
            largest = measure.largest * measure.fixed.grid
            return Error(float(reach([[1.0]], noise)[0]) * measure.fixed.grid, rows * largest, of_a_row=largest)
        assert isinstance(measure, Moments)
        fixed = measure.fixed
        ends = np.linspace(fixed.lower, fixed.upper, measure.degree + 1) / fixed.span
        largest = max(abs(fixed.lower), abs(fixed.upper))
        return Error(float(reach([ends], noise)[0]), rows * largest, of_a_row=largest)
