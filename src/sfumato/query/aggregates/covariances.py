"""COVAR_POP and COVAR_SAMP; correlations and slopes are computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.base import Error, Function, restricted
from sfumato.query.expressions.base import Expression
from sfumato.query.expressions.numbers import number
from sfumato.query.intervals import Noise, reach
from sfumato.query.measures import Measure, Products, products
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.reading import parts
from sfumato.query.release import Noisy, NoisyEstimate

# Of the four numbers (1−x)(1−y), x(1−y), (1−x)y and xy.
_X, _Y, _XY = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0, 1.0])


class Covariance(Function):
    names = ("covar_pop", "covar")
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.CovarPop: "covar_pop", exp.CovarSamp: "covar"}
    examples = ("COVAR_POP(x, y)", "COVAR_SAMP(y, x + 1)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        of, other = (number(item, names) for item in parts(node, "this", "expression"))
        return Aggregate(self.nodes[type(node)], restricted(of, only), other=other)

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        assert aggregate.of is not None
        assert aggregate.other is not None
        return products(aggregate.of, aggregate.other, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        same = (aggregate.of, aggregate.other)
        return isinstance(measure, Products) and (measure.of, measure.other) == same

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        """E[xy] − E[x]E[y] with first-order error propagation; it lies within ±¼ of the ranges' product."""
        measure = source.measure
        assert isinstance(measure, Products)
        parts = source.parts.astype(float)
        total = parts.sum(axis=1)
        clear = total > 4 * reach([[1.0] * 4], source.noise)[0]
        safe = np.where(total > 0, total, 1.0)
        x, y, both = (parts @ shares / safe for shares in (_X, _Y, _XY))
        gradient = (_XY - both[:, None]) - y[:, None] * (_X - x[:, None]) - x[:, None] * (_Y - y[:, None])
        width = reach(gradient / safe[:, None], source.noise)
        found = np.where(clear, both - x * y, 0.0)
        low, high = np.where(clear, found - width, -0.25), np.where(clear, found + width, 0.25)
        people = np.maximum(total / measure.span, 2.0)
        sample = 1.0 if aggregate.function == "covar_pop" else people / (people - 1)
        unit = _reach(measure) * sample
        return NoisyEstimate(*(np.clip(item, -0.25, 0.25) * unit for item in (found, low, high)))

    def expected(self, aggregate: Aggregate, measure: Measure, noise: Noise, rows: float) -> Error:
        """For values spread evenly and apart from each other: E[x] = E[y] = ½, E[xy] = ¼."""
        assert isinstance(measure, Products)
        gradient = (_XY - 0.25) - 0.5 * (_X - 0.5) - 0.5 * (_Y - 0.5)
        relative = float(reach([gradient], noise)[0]) / measure.span / rows
        widest = 0.25 * _reach(measure)
        return Error(min(relative * _reach(measure), widest), widest, sized=True)


def _reach(measure: Products) -> float:
    one, other = measure.fixed, measure.other_fixed
    return one.span * one.grid * other.span * other.grid


def correlation(node: Expr) -> Expr:
    """CORR(x, y): the covariance over both deviations, where neither is NULL."""
    x, y = parts(node, "this", "expression")
    deviations = exp.Mul(this=_where(exp.StddevPop, x, y), expression=_where(exp.StddevPop, y, x))
    ratio = exp.Div(this=exp.CovarPop(this=x.copy(), expression=y.copy()), expression=exp.paren(deviations))
    least = exp.Least(this=ratio, expressions=[exp.Literal.number(1)])
    return exp.Greatest(this=least, expressions=[exp.Neg(this=exp.Literal.number(1))])


def slope(node: Expr) -> Expr:
    """REGR_SLOPE(y, x): the covariance over the variance of x, where neither is NULL."""
    y, x = parts(node, "this", "expression")
    covariance = exp.CovarPop(this=y.copy(), expression=x.copy())
    return exp.Div(this=covariance, expression=_where(exp.VariancePop, x, y))


def _where(function: type[Expr], of: Expr, other: Expr) -> Expr:
    """A function of one expression on the rows where the other is not NULL."""
    known = exp.Not(this=exp.Is(this=other.copy(), expression=exp.Null()))
    return function(this=exp.Case(ifs=[exp.If(this=known, true=of.copy())]))
