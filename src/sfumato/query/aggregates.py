"""The aggregates that are answered: their reading, their measure, their estimate and their expected error.

To add one, write its class and name it in `FUNCTIONS`; the conformance tests find it there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.policy import Policy
from sfumato.query.conditions import where
from sfumato.query.expressions import Expression, condition, translated
from sfumato.query.measures import (
    BoundedSum,
    Cells,
    DifferentValues,
    Measure,
    Moments,
    Products,
    UnitCount,
    bounded_sum,
    cells,
    moments,
    products,
)
from sfumato.query.names import Names
from sfumato.query.noise import Floats, WholeNoise, ratio_interval, reach, rounded_width, whole_reach
from sfumato.query.numbers import Number, number
from sfumato.query.plan import Aggregate, Query
from sfumato.query.reading import QueryRefused, as_sql, constant, parts, shown
from sfumato.query.release import Noisy, NoisyEstimate, quantile


@dataclass(frozen=True)
class Error:
    """Half the width of a 95% interval; `sized` if it is that of a group of so many rows.

    `covers_all` is half the width of an interval that holds every value that such a group can have by the
    policy. `of_a_row` is the most that one row adds to a total; 0 for other aggregates.
    """

    half_width: float
    covers_all: float
    sized: bool = False
    in_units_of: str = "value"
    of_a_row: float = 0.0


class Function(ABC):
    """One aggregate function, or a family that is measured alike.

    `nodes` are those of the parser that it answers, each under one of its `names`, which stand in
    `Aggregate.function`. `examples` are SQL of columns x, y (numbers), b (boolean) and person, for the
    conformance tests.
    """

    names: ClassVar[tuple[str, ...]]
    nodes: ClassVar[Mapping[type[Expr], str]]
    examples: ClassVar[tuple[str, ...]]
    degree: ClassVar[int]  # of the moments that it is computed from

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        """The aggregate that a node asks for, of the rows where a condition holds."""
        (of,) = parts(node, "this")
        if isinstance(of, exp.Distinct):
            raise QueryRefused(f"{shown(node)} is not answered: which values occur is private")
        return Aggregate(self.nodes[type(node)], restricted(number(of, names), only))

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        """The measure if nothing else is asked."""
        return moments(aggregate.of, self.degree, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        """Whether a measure, which may have absorbed that one, gives the answer."""
        return isinstance(measure, Moments) and measure.of == aggregate.of and measure.degree >= self.degree

    @abstractmethod
    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        """The values and their intervals, from the noisy numbers."""

    @abstractmethod
    def expected(self, aggregate: Aggregate, measure: Any, noise: WholeNoise, rows: float) -> Error:
        """How wrong it will be, before anything is measured."""


def restricted(value: Expression, only: Expression | None) -> Expression:
    """NULL, which no aggregate counts, where the condition does not hold."""
    return value if only is None else where(only, value)


def _linear(source: Noisy, weights: Sequence[float]) -> NoisyEstimate:
    """Σ wᵢ eᵢ: its noise is the same in every group."""
    values = source.parts @ np.asarray(weights, dtype=float)
    width = reach([list(weights)], source.noise)[0]
    return NoisyEstimate(values, values - width, values + width)


def _whole_number(source: Noisy) -> NoisyEstimate:
    values = source.parts[:, 0]
    width = whole_reach(source.noise)
    return NoisyEstimate(values, (values - width).astype(float), (values + width).astype(float))


# ---- counts


class Count(Function):
    names = ("count",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.Count: "count", exp.CountIf: "count"}
    examples = ("COUNT(*)", "COUNT(x)", "COUNT_IF(x > 3 AND b)", "COUNT(*) FILTER (WHERE b)")
    degree = 0

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        (inside,) = parts(node, "this")
        if isinstance(node, exp.CountIf):
            return Aggregate("count", restricted(where(condition(inside, names), Number(1.0)), only))
        if inside is None or isinstance(inside, exp.Star) or constant(inside) is not None:
            return Aggregate("count", None if only is None else restricted(Number(1.0), only))
        return Aggregate("count", restricted(translated(inside, names), only))

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        rows = isinstance(measure, Moments) and aggregate.of is None and measure.missing
        return rows or super().answers(aggregate, measure)

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        measure = source.measure
        assert isinstance(measure, Moments)
        if source.parts.shape[1] == 1:
            return _whole_number(source)
        weights = np.full(source.parts.shape[1], 1 / measure.span)
        if measure.missing and aggregate.of is not None:
            weights[-1] = 0.0
        values = np.rint(_linear(source, weights.tolist()).values).astype(np.int64)
        width = rounded_width(float(reach([weights.tolist()], source.noise)[0]))
        return NoisyEstimate(values, *((values + end).astype(np.float64) for end in (-width, width)))

    def expected(self, aggregate: Aggregate, measure: Moments, noise: WholeNoise, rows: float) -> Error:
        numbers = measure.degree + 1 + (measure.missing and aggregate.of is None)
        if numbers == 1:
            return Error(whole_reach(noise), rows, of_a_row=1.0)
        width = float(reach([[1.0] * numbers], noise)[0]) / measure.span
        return Error(rounded_width(width), rows, of_a_row=1.0)


class Different(Function):
    """COUNT(DISTINCT …), of people or of values; `nodes` holds no COUNT, which is one if it has DISTINCT."""

    names = ("count_units", "count_distinct")
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.ApproxDistinct: "count_distinct"}
    examples = ("COUNT(DISTINCT person)", "COUNT(DISTINCT x)", "COUNT(DISTINCT x) FILTER (WHERE b)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        (inside,) = parts(node, "this")
        columns = parts(inside, "expressions")[0] if isinstance(inside, exp.Distinct) else [inside]
        if len(columns) != 1:
            raise QueryRefused(f"{shown(node)} is not answered: DISTINCT takes one expression")
        if not names.is_unit(columns[0]):
            return Aggregate("count_distinct", restricted(translated(columns[0], names), only))
        if only is not None:
            raise QueryRefused(
                "people are counted with WHERE in place of FILTER", nearest=names.example_people()
            )
        return Aggregate("count_units")

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        return UnitCount() if aggregate.of is None else DifferentValues(aggregate.of)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        return measure == (UnitCount() if aggregate.of is None else DifferentValues(aggregate.of))

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        return _whole_number(source)

    def expected(self, aggregate: Aggregate, measure: Measure, noise: WholeNoise, rows: float) -> Error:
        return Error(whole_reach(noise), rows)


# ---- sums, averages and variances

_SHARES = {1: np.array([0.0, 1.0]), 2: np.array([0.0, 0.5, 1.0])}
"""z of each of the numbers of moments of a degree."""


class Average(Function):
    names = ("avg",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.Avg: "avg"}
    examples = ("AVG(x)", "AVG(CASE WHEN b THEN x ELSE -y / 4 END)", "AVG(b)", "AVG(y) FILTER (WHERE x > 7)")
    degree = 1

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        measure = source.measure
        assert isinstance(measure, Moments)
        shares, fixed = _SHARES[measure.degree], measure.fixed
        numbers = source.parts[:, : len(shares)].astype(float)
        low, high = ratio_interval(numbers, shares, source.noise)
        unknown = (low == 0.0) & (high == 1.0)  # noise could hide the whole group: say the middle
        ratio = np.where(unknown, 0.5, numbers @ shares / np.where(unknown, 1.0, numbers.sum(axis=1)))
        unscaled = (fixed.lower + item * fixed.span * fixed.grid for item in (ratio, low, high))
        return NoisyEstimate(*(np.clip(item, fixed.lower, fixed.upper) for item in unscaled))

    def expected(self, aggregate: Aggregate, measure: Moments, noise: WholeNoise, rows: float) -> Error:
        """Largest at the ends of the bounds, least in the middle; stated for the middle."""
        shares = _SHARES[measure.degree] - 0.5
        error = float(reach([shares], noise)[0]) * measure.fixed.grid / rows
        half = (measure.fixed.upper - measure.fixed.lower) / 2
        return Error(min(error, half), half, sized=True)


class Sum(Function):
    names = ("sum",)
    nodes: ClassVar[Mapping[type[Expr], str]] = {exp.Sum: "sum"}
    examples = ("SUM(x)", "SUM(x * y - 5)", "SUM(b)")
    degree = 1

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        assert aggregate.of is not None
        return bounded_sum(aggregate.of, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        alone = isinstance(measure, BoundedSum) and measure.of == aggregate.of
        return alone or super().answers(aggregate, measure)

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        measure = source.measure
        if isinstance(measure, BoundedSum):
            return _linear(source, [measure.fixed.grid])
        assert isinstance(measure, Moments)
        fixed = measure.fixed
        weights = [fixed.lower / fixed.span + fixed.grid * share for share in _SHARES[measure.degree]]
        return _linear(source, weights + [0.0] * measure.missing)

    def expected(
        self, aggregate: Aggregate, measure: BoundedSum | Moments, noise: WholeNoise, rows: float
    ) -> Error:
        fixed = measure.fixed
        if isinstance(measure, BoundedSum):
            ends, largest = np.array([fixed.grid]), measure.largest * fixed.grid
        else:
            ends = np.linspace(fixed.lower, fixed.upper, measure.degree + 1) / fixed.span
            largest = max(abs(fixed.lower), abs(fixed.upper))
        return Error(float(reach([ends], noise)[0]), rows * largest, of_a_row=largest)


_SQUARES = (_SHARES[2], _SHARES[2], np.array([0.0, 0.0, 1.0]))
"""x, y and xy of each of the numbers, for x = y in moments of degree 2."""
_PRODUCTS = (np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0, 1.0]))
"""Likewise of (1−x)(1−y), x(1−y), (1−x)y and xy."""


def _covariance(
    source: Noisy, shares: tuple[Floats, Floats, Floats], span: int, *, least: float, sample: bool
) -> list[Floats]:
    """E[xy] − E[x]E[y] of x, y in [0, 1], from `least` to ¼, with intervals by first-order errors."""
    of_x, of_y, of_both = shares
    numbers = source.parts[:, : len(of_x)].astype(float)
    total = numbers.sum(axis=1)
    clear = total > 4 * reach([[1.0] * len(of_x)], source.noise)[0]
    safe = np.where(total > 0, total, 1.0)
    x, y, both = (numbers @ item / safe for item in shares)
    gradient = (of_both - both[:, None]) - y[:, None] * (of_x - x[:, None]) - x[:, None] * (of_y - y[:, None])
    width = reach(gradient / safe[:, None], source.noise)
    found = np.where(clear, both - x * y, (least + 0.25) / 2)
    low, high = np.where(clear, found - width, least), np.where(clear, found + width, 0.25)
    people = np.maximum(total / span, 2.0)
    unit = people / (people - 1) if sample else 1.0
    return [np.clip(item, least, 0.25) * unit for item in (found, low, high)]


def _covariance_error(
    shares: tuple[Floats, Floats, Floats], both: float, noise: WholeNoise, span: int, rows: float
) -> float:
    """For values spread evenly: E[x] = E[y] = ½; `both` is E[xy]."""
    of_x, of_y, of_both = shares
    gradient = (of_both - both) - 0.5 * (of_x - 0.5) - 0.5 * (of_y - 0.5)
    return float(reach([gradient], noise)[0]) / span / rows


class Spread(Function):
    names = ("var", "var_pop", "stddev", "stddev_pop")
    nodes: ClassVar[Mapping[type[Expr], str]] = {
        exp.Variance: "var", exp.VariancePop: "var_pop", exp.Stddev: "stddev", exp.StddevSamp: "stddev",
        exp.StddevPop: "stddev_pop",
    }  # fmt: skip
    examples = ("VARIANCE(x)", "VAR_POP(y)", "STDDEV(y)", "STDDEV_POP(x)")
    degree = 2

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        measure = source.measure
        assert isinstance(measure, Moments)
        sample = not aggregate.function.endswith("_pop")
        found = _covariance(source, _SQUARES, measure.span, least=0.0, sample=sample)
        unit = (measure.fixed.span * measure.fixed.grid) ** 2
        root = 1.0 if aggregate.function.startswith("var") else 0.5
        return NoisyEstimate(*((item * unit) ** root for item in found))

    def expected(self, aggregate: Aggregate, measure: Moments, noise: WholeNoise, rows: float) -> Error:
        relative = _covariance_error(_SQUARES, 1 / 3, noise, measure.span, rows)
        unit = measure.fixed.upper - measure.fixed.lower
        if aggregate.function.startswith("var"):
            return Error(min(relative, 0.25) * unit**2, 0.25 * unit**2, sized=True)
        return Error(min(relative / 2 / math.sqrt(1 / 12), 0.5) * unit, 0.5 * unit, sized=True)


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
        measure = source.measure
        assert isinstance(measure, Products)
        sample = aggregate.function == "covar"
        found = _covariance(source, _PRODUCTS, measure.span, least=-0.25, sample=sample)
        return NoisyEstimate(*(item * _reach(measure) for item in found))

    def expected(self, aggregate: Aggregate, measure: Products, noise: WholeNoise, rows: float) -> Error:
        relative = _covariance_error(_PRODUCTS, 0.25, noise, measure.span, rows)
        return Error(min(relative, 0.25) * _reach(measure), 0.25 * _reach(measure), sized=True)


def _reach(measure: Products) -> float:
    one, other = measure.fixed, measure.other_fixed
    return one.span * one.grid * other.span * other.grid


# ---- ranks


class Quantile(Function):
    names = ("quantile",)
    nodes: ClassVar[Mapping[type[Expr], str]] = dict.fromkeys(
        (exp.Median, exp.Quantile, exp.ApproxQuantile, exp.PercentileCont, exp.PercentileDisc, exp.WithinGroup),
        "quantile",
    )
    examples = ("MEDIAN(x)", "QUANTILE(y, 0.9)", "PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY x DESC)")

    def parse(self, node: Expr, names: Names, only: Expression | None) -> Aggregate:
        descending = False
        if isinstance(node, exp.WithinGroup):
            inside, order = parts(node, "this", "expression")
            items = parts(order, "expressions")[0]
            if not isinstance(inside, exp.PercentileCont | exp.PercentileDisc) or len(items) != 1:
                raise QueryRefused(f"{shown(node)} is not answered: WITHIN GROUP goes with PERCENTILE_CONT")
            (of, descending), (named,) = parts(items[0], "this", "desc"), parts(inside, "this")
        else:
            of, named, other = parts(node, "this", "quantile", "expression")
            named = other if named is None else named
            named = exp.Literal.number("0.5") if isinstance(node, exp.Median) else named
        level = None if named is None else constant(named)
        if level is None:
            raise QueryRefused("a quantile's level is a number between 0 and 1")
        if 1 < level < 100:
            share = 1 - level / 100 if descending else level / 100
            raise QueryRefused(
                f"a quantile's level lies between 0 and 1, got {level:g}; for {level:g}% write {level / 100:g}",
                nearest=names.example(f"QUANTILE({as_sql(of)}, {share:g})"),
            )
        return Aggregate("quantile", restricted(number(of, names), only), 1 - level if descending else level)

    def measure(self, aggregate: Aggregate, policy: Policy) -> Measure:
        assert aggregate.of is not None
        return cells(aggregate.of, policy)

    def answers(self, aggregate: Aggregate, measure: Measure) -> bool:
        return isinstance(measure, Cells) and measure.of == aggregate.of

    def estimate(self, aggregate: Aggregate, source: Noisy) -> NoisyEstimate:
        assert source.tree is not None
        return quantile(source.tree, aggregate.level)

    def expected(self, aggregate: Aggregate, measure: Cells, noise: WholeNoise, rows: float) -> Error:
        """As a share of the ranks."""
        children, depth = measure.shape
        level = aggregate.level
        variance = noise.family.variance * (children - 1) * depth * ((1 - level) ** 2 + level**2) / 2
        error = 1.96 * noise.scale * math.sqrt(variance)
        return Error(min(100.0, 100 * error / rows), 50.0, sized=True, in_units_of="percentiles")


# ---- the registry that all the rest goes by

FUNCTIONS: tuple[Function, ...] = (Count(), Different(), Sum(), Average(), Spread(), Quantile(), Covariance())
_LEAST_WEIGHT = 1e-3
_BY_NAME = {name: function for function in FUNCTIONS for name in function.names}
_BY_NODE = {node: function for function in FUNCTIONS for node in function.nodes}
_DERIVED: dict[type[Expr], str] = {
    exp.Corr: "GREATEST(LEAST(COVAR_POP(a, b) / (STDDEV_POP(CASE WHEN NOT b IS NULL THEN a END) * "
    "STDDEV_POP(CASE WHEN NOT a IS NULL THEN b END)), 1), -1)",
    exp.RegrSlope: "COVAR_POP(a, b) / VAR_POP(CASE WHEN NOT a IS NULL THEN b END)",
}
"""Aggregates that are computed from the answers of others, where neither argument is NULL."""


def is_derived(node: Expr) -> bool:
    return type(node) in _DERIVED


def derived(node: Expr) -> Expr:
    """The computation of an aggregate from the answers of others."""
    a, b = parts(node, "this", "expression")
    given = {"a": a, "b": b}
    found = sqlglot.parse_one(_DERIVED[type(node)], read="duckdb")
    for clipped in found.find_all(exp.Greatest, exp.Least):
        clipped.set("ignore_nulls", False)  # NULL, and not the bound, where there is no ratio
    return found.transform(lambda item: given[item.name].copy() if type(item) is exp.Column else item)


def is_aggregate(node: Expr) -> bool:
    return isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup)


def parse_aggregate(node: Expr, names: Names, only: Expression | None = None) -> Aggregate:
    """One aggregate of the SELECT list, of the rows where a condition holds."""
    if isinstance(node, exp.Filter):
        of, kept = parts(node, "this", "expression")
        return parse_aggregate(of, names, condition(parts(kept, "this")[0], names))
    function = _BY_NODE.get(type(node))
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct):
        function = _BY_NAME["count_distinct"]
    if function is not None:
        return function.parse(node, names, only)
    if isinstance(node, exp.Max | exp.Min) and isinstance(node.this, exp.Column):
        level = "0.99" if isinstance(node, exp.Max) else "0.01"
        nearest = names.example(f"QUANTILE({shown(node.this)}, {level})")
        raise QueryRefused(f"{shown(node)} is not answered: it is one person's value", nearest=nearest)
    raise QueryRefused(
        f"{shown(node)} is not answered; there are COUNT, COUNT_IF, COUNT(DISTINCT …), SUM, AVG, VARIANCE, "
        "STDDEV, MEDIAN, QUANTILE, COVAR_POP, CORR, REGR_SLOPE and HISTOGRAM, with FILTER"
    )


def function_of(aggregate: Aggregate) -> Function:
    return _BY_NAME[_validate.one_of("function", aggregate.function, tuple(_BY_NAME))]


def measures_for(query: Query, policy: Policy) -> tuple[Measure, ...]:
    """The fewest measures that answer all of a query's aggregates."""
    found: list[Measure] = []
    for aggregate in query.aggregates:
        found = _joined(found, function_of(aggregate).measure(aggregate, policy), policy)
    return tuple(found)


def _joined(found: list[Measure], new: Measure, policy: Policy) -> list[Measure]:
    """A measure more, unless it is absorbed by one that is there, or absorbs some of them."""
    for place, measure in enumerate(found):
        joint = measure.absorbed(new, policy)
        if joint is not None:
            return [*found[:place], joint, *found[place + 1 :]]
    place = len(found)
    kept: list[Measure] = []
    for position, measure in enumerate(found):
        joint = new.absorbed(measure, policy)
        if joint is None:
            kept.append(measure)
        else:
            new, place = joint, min(place, position)
    return [*kept[:place], new, *kept[place:]]


def weights_for(query: Query, measures: Sequence[Measure], split: Sequence[float] | None) -> tuple[float, ...]:
    """The share of ε of each measure: as `split` says of the aggregates, in the order of the query.

    A measure that answers several aggregates gets the largest of their weights. Without a split, one that
    answers n gets n^⅓, which makes the sum of all aggregates' variances least, each in units of its measure's.
    """
    if split is not None:
        _check_split(query, split)
    weights = []
    for measure in measures:
        answered = [
            place for place, item in enumerate(query.aggregates) if function_of(item).answers(item, measure)
        ]
        weights.append(len(answered) ** (1 / 3) if split is None else max(split[place] for place in answered))
    return tuple(weights)


def _check_split(query: Query, split: Sequence[float]) -> None:
    names = [item.function for item in query.aggregates]
    if len(split) != len(names):
        raise InvalidInput(
            f"expected {len(names)} weights in split, for {', '.join(names)} in the order of the query, got "
            f"{len(split)}"
        )
    if not all(_LEAST_WEIGHT <= _validate.positive("split", weight) <= 1 / _LEAST_WEIGHT for weight in split):
        raise InvalidInput(f"expected weights in split from {_LEAST_WEIGHT:g} to {1 / _LEAST_WEIGHT:g}")


def estimate(aggregate: Aggregate, noisy: Sequence[Noisy]) -> NoisyEstimate:
    """An aggregate, from the measure that was planned for it."""
    function = function_of(aggregate)
    source = next(item for item in noisy if function.answers(aggregate, item.measure))
    return function.estimate(aggregate, source)
