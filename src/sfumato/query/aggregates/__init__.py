"""The aggregates that are answered: one class each, and the registry that all the rest goes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.policy import Policy
from sfumato.query.aggregates.base import Error, Function
from sfumato.query.aggregates.counts import Count, Different
from sfumato.query.aggregates.moments import Average, Covariance, Spread, Sum, correlation, slope
from sfumato.query.aggregates.ranks import Quantile
from sfumato.query.expressions.base import Expression, condition
from sfumato.query.measures import Measure
from sfumato.query.names import Names
from sfumato.query.plan import Aggregate, Query
from sfumato.query.reading import QueryRefused, parts, shown
from sfumato.query.release import Noisy, NoisyEstimate

__all__ = [
    "DERIVED",
    "FUNCTIONS",
    "Error",
    "Function",
    "estimate",
    "function_of",
    "is_aggregate",
    "measures_for",
    "weights_for",
]

FUNCTIONS: tuple[Function, ...] = (Count(), Different(), Sum(), Average(), Spread(), Quantile(), Covariance())
DERIVED: dict[type[Expr], Callable[[Expr], Expr]] = {exp.Corr: correlation, exp.RegrSlope: slope}
"""Aggregates that are computed from the answers of others."""

_LEAST_WEIGHT = 1e-3
_BY_NAME = {name: function for function in FUNCTIONS for name in function.names}
_BY_NODE = {node: function for function in FUNCTIONS for node in function.nodes}


def is_aggregate(node: Expr) -> bool:
    return isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup)


def parse_aggregate(node: Expr, names: Names, only: Expression | None = None) -> Aggregate:
    """One aggregate of the SELECT list, of the rows where a condition holds."""
    if isinstance(node, exp.Filter):
        of, where = parts(node, "this", "expression")
        return parse_aggregate(of, names, condition(parts(where, "this")[0], names))
    function = _BY_NODE.get(type(node))
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct):
        function = _BY_NAME["count_distinct"]
    if function is None:
        raise _no_such_aggregate(node, names)
    return function.parse(node, names, only)


def _no_such_aggregate(node: Expr, names: Names) -> QueryRefused:
    if isinstance(node, exp.Max | exp.Min) and isinstance(node.this, exp.Column):
        level = "0.99" if isinstance(node, exp.Max) else "0.01"
        nearest = names.example_count().replace("COUNT(*)", f"QUANTILE({shown(node.this)}, {level})", 1)
        return QueryRefused(f"{shown(node)} is not answered: it is one person's value", nearest=nearest)
    return QueryRefused(
        f"{shown(node)} is not answered; there are COUNT, COUNT_IF, COUNT(DISTINCT …), SUM, AVG, VARIANCE, "
        "STDDEV, MEDIAN, QUANTILE, COVAR_POP, CORR, REGR_SLOPE and HISTOGRAM, with FILTER",
        nearest=names.example_count(),
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
