"""Aggregates in SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.expressions import Choice, Condition, Nothing, Number
from sfumato.query.names import Names, quoted
from sfumato.query.plan import Aggregate
from sfumato.query.reading import constant, parts, shown
from sfumato.query.refusal import QueryRefused
from sfumato.query.translation import condition, number, translated


@dataclass(frozen=True)
class _Function:
    name: str
    needs_level: bool = False


_AGGREGATES: dict[type[Expr], _Function] = {
    exp.Sum: _Function("sum"),
    exp.Avg: _Function("avg"),
    exp.Variance: _Function("var"),
    exp.VariancePop: _Function("var_pop"),
    exp.Stddev: _Function("stddev"),
    exp.StddevSamp: _Function("stddev"),
    exp.StddevPop: _Function("stddev_pop"),
    exp.Median: _Function("quantile"),
    exp.Quantile: _Function("quantile", needs_level=True),
    exp.ApproxQuantile: _Function("quantile", needs_level=True),
    exp.PercentileCont: _Function("quantile", needs_level=True),
    exp.PercentileDisc: _Function("quantile", needs_level=True),
}


SHOWN_ALONE = (exp.AggFunc, exp.Filter, exp.WithinGroup)


def parse_aggregate(node: Expr, names: Names, only: Condition | None = None) -> Aggregate:
    """One aggregate of the SELECT list, of the rows where a condition holds."""
    special: dict[type[Expr], Callable[[Any, Names, Condition | None], Aggregate]] = {
        exp.Count: _count,
        exp.CountIf: _count_if,
        exp.WithinGroup: _within_group,
        exp.Filter: _filter,
    }
    if type(node) in special:
        return special[type(node)](node, names, only)
    function = _AGGREGATES.get(type(node))
    if function is None:
        raise _no_such_aggregate(node, names)
    of, quantile, expression = parts(node, "this", "quantile", "expression")
    if isinstance(of, exp.Distinct):
        raise QueryRefused(
            f"{shown(node)} is not answered: which values occur is private", nearest=names.example_count()
        )
    value = _only(number(of, names), only)
    if not function.needs_level:
        parts(node, "this")
        return Aggregate(function.name, value)
    return Aggregate(function.name, value, _level(quantile if quantile is not None else expression))


def _only(value: Any, only: Condition | None) -> Any:
    """NULL, which no aggregate counts, where the condition does not hold."""
    return value if only is None else Choice(only, value, Nothing())


def _no_such_aggregate(node: Expr, names: Names) -> QueryRefused:
    text, table = shown(node), quoted(names.policy.table)
    if isinstance(node, exp.Max | exp.Min) and isinstance(node.this, exp.Column):
        level = "0.99" if isinstance(node, exp.Max) else "0.01"
        nearest = f"SELECT QUANTILE({quoted(node.this.name)}, {level}) FROM {table}"
        return QueryRefused(f"{text} is not answered: it is one person's value", nearest=nearest)
    reason = (
        f"{text} is not answered; there are COUNT, COUNT_IF, COUNT(DISTINCT unit), SUM, AVG, VARIANCE, "
        "STDDEV, MEDIAN, QUANTILE and HISTOGRAM, with FILTER"
    )
    return QueryRefused(reason, nearest=names.example_count())


def _filter(node: exp.Filter, names: Names, only: Condition | None) -> Aggregate:
    of, where = parts(node, "this", "expression")
    return parse_aggregate(of, names, condition(parts(where, "this")[0], names))


def _count_if(node: exp.CountIf, names: Names, only: Condition | None) -> Aggregate:
    counted = Choice(condition(parts(node, "this")[0], names), Number(1.0), Nothing())
    return Aggregate("count", _only(counted, only))


def _count(node: exp.Count, names: Names, only: Condition | None) -> Aggregate:
    inside, others = parts(node, "this", "expressions")
    if others:
        raise QueryRefused("COUNT takes one column", nearest=names.example_count())
    if inside is None or isinstance(inside, exp.Star) or constant(inside) is not None:
        return Aggregate("count", None if only is None else _only(Number(1.0), only))
    if not isinstance(inside, exp.Distinct):
        return Aggregate("count", _only(translated(inside, names), only))
    (columns,) = parts(inside, "expressions")
    if len(columns) == 1 and names.is_unit(columns[0]) and only is None:
        return Aggregate("count_units")
    unit = names.policy.unit.column
    nearest = f"SELECT COUNT(DISTINCT {quoted(unit)}) FROM {quoted(names.policy.table)}" if unit else ""
    raise QueryRefused(
        "COUNT(DISTINCT …) is answered for the privacy unit only, and with WHERE in place of FILTER",
        nearest=nearest or names.example_count(),
    )


def _within_group(node: exp.WithinGroup, names: Names, only: Condition | None) -> Aggregate:
    inside, order = parts(node, "this", "expression")
    items = parts(order, "expressions")[0]
    if not isinstance(inside, exp.PercentileCont | exp.PercentileDisc) or len(items) != 1:
        raise _no_such_aggregate(node, names)
    level = _level(parts(inside, "this")[0])
    of, descending = parts(items[0], "this", "desc")
    return Aggregate("quantile", _only(number(of, names), only), 1 - level if descending else level)


def _level(node: Expr | None) -> float:
    found = None if node is None else constant(node)
    if found is None:
        raise QueryRefused("a quantile's level is a number between 0 and 1")
    return found
