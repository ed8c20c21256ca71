"""SUM, AVG, VARIANCE, STDDEV and covariances; correlations and slopes are computed from the last."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.aggregates.base import Error, Function, linear, number_of, restricted
from sfumato.query.expressions.base import Expression
from sfumato.query.expressions.numbers import number
from sfumato.query.intervals import Floats, Noise, ratio_interval, reach
from sfumato.query.measures import BoundedSum, Measure, Moments, Products, bounded_sum, moments, products
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate
from sfumato.query.reading import parts
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
