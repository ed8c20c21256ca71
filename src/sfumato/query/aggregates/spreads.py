"""VARIANCE, STDDEV and their population forms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.averages import MEAN_SHARES
from sfumato.query.aggregates.base import Error, Function, number_of
from sfumato.query.expressions.base import Expression
from sfumato.query.intervals import Noise, reach
from sfumato.query.measures import Measure, Moments, moments
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.release import Noisy, NoisyEstimate

_SQUARE_SHARES = np.array([0.0, 0.0, 1.0])


class Spread(Function):
    names = ("var", "var_pop", "stddev", "stddev_pop")
    nodes: ClassVar[Mapping[type[Expr], str]] = {
        exp.Variance: "var",
        exp.VariancePop: "var_pop",
        exp.Stddev: "stddev",
        exp.StddevSamp: "stddev",
        exp.StddevPop: "stddev_pop",
    }
    examples = ("VARIANCE(x)", "VAR_POP(y)", "STDDEV(y)", "STDDEV_POP(x)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        return Aggregate(self.nodes[type(node)], number_of(node, names, only))

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        return moments(aggregate.of, 2, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        return isinstance(measure, Moments) and measure.of == aggregate.of and measure.degree == 2

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        found = _variance(aggregate, source)
        if aggregate.function.startswith("var"):
            return found
        return NoisyEstimate(np.sqrt(found.values), np.sqrt(found.low), np.sqrt(found.high))

    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        """For values spread evenly over the bounds: E[z] = ½, E[z²] = ⅓."""
        assert isinstance(measure, Moments)
        gradient = np.array([0.0, 0.0, 1.0]) - 1 / 3 - (np.array([0.0, 0.5, 1.0]) - 0.5)
        relative = float(reach([gradient], noise)[0]) / measure.span / rows
        unit = measure.fixed.upper - measure.fixed.lower
        if aggregate.function.startswith("var"):
            return Error(min(relative, 0.25) * unit**2, 0.25 * unit**2, sized=True)
        return Error(min(relative / 2 / math.sqrt(1 / 12), 0.5) * unit, 0.5 * unit, sized=True)


def _variance(aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
    """E[z²] − E[z]² with first-order error propagation; of a sample unless the function says population."""
    measure = source.measure
    assert isinstance(measure, Moments)
    shares, squares = MEAN_SHARES[2], _SQUARE_SHARES
    parts = source.parts[:, :3].astype(float)
    total = parts.sum(axis=1)
    clear = total > 4 * reach([[1.0, 1.0, 1.0]], source.noise)[0]
    safe = np.where(total > 0, total, 1.0)
    mean, square = parts @ shares / safe, parts @ squares / safe
    gradient = (squares - square[:, None]) - 2 * mean[:, None] * (shares - mean[:, None])
    width = reach(gradient / safe[:, None], source.noise)
    spread = np.where(clear, square - mean**2, 0.125)
    low, high = np.where(clear, spread - width, 0.0), np.where(clear, spread + width, 0.25)
    people = np.maximum(total / measure.span, 2.0)
    sample = 1.0 if aggregate.function.endswith("_pop") else people / (people - 1)
    unit = (measure.fixed.span * measure.fixed.grid) ** 2 * sample
    return NoisyEstimate(*(np.clip(item, 0.0, 0.25) * unit for item in (spread, low, high)))
