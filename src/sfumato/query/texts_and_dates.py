"""Texts and dates in SQL: what can be done with a column that is not a number."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.expressions import (
    Cased,
    DatePart,
    DaysBetween,
    Expression,
    FirstOf,
    Truncated,
)
from sfumato.query.names import Names
from sfumato.query.ranges import DATE_PARTS
from sfumato.query.reading import function, literal_text, parts, shown
from sfumato.query.refusal import QueryRefused
from sfumato.query.translation import alike, date, translated, translates

UNITS = ("year", "quarter", "month", "week", "day")
_PARTS = {
    **{name: name for name in ("year", *DATE_PARTS)},
    "dayofweek": "dow", "weekday": "dow", "dayofyear": "doy", "dayofmonth": "day", "weekofyear": "week",
}  # fmt: skip
_PART_FUNCTIONS: dict[type[Expr], str] = {
    exp.Year: "year", exp.Quarter: "quarter", exp.Month: "month", exp.Week: "week", exp.WeekOfYear: "week",
    exp.Day: "day", exp.DayOfMonth: "day", exp.DayOfWeek: "dow", exp.DayOfYear: "doy",
}  # fmt: skip


@translates(exp.Coalesce)
def _(node: Expr, names: Names) -> Expression:
    first, others = parts(node, "this", "expressions")
    values = [translated(item, names) for item in (first, *(others or []))]
    return FirstOf(alike(values, node, names))


@translates(exp.Lower, exp.Upper)
def _(node: Expr, names: Names) -> Expression:
    of: Any = translated(parts(node, "this")[0], names)
    return Cased("lower" if type(node) is exp.Lower else "upper", of)


@translates(exp.Extract)
def _(node: Expr, names: Names) -> Expression:
    part, of = parts(node, "this", "expression")
    return _part(part.name, of, names)


@translates(*_PART_FUNCTIONS)
def _(node: Expr, names: Names) -> Expression:
    return DatePart(_PART_FUNCTIONS[type(node)], date(parts(node, "this")[0], names))


@translates(exp.Anonymous)
def _(node: Expr, names: Names) -> Expression:
    arguments = function(node, "DATE_PART")
    name = literal_text(arguments[0]) if arguments is not None and len(arguments) == 2 else None
    if arguments is None or name is None:
        raise QueryRefused(
            f"{shown(node)} is not answered: there is no such function on a row",
            nearest=names.example_instead(node),
        )
    return _part(name, arguments[1], names)


def _part(name: str, of: Expr, names: Names) -> DatePart:
    part = _PARTS.get(name.lower())
    if part is None:
        raise QueryRefused(f"a date has {', '.join(dict.fromkeys(_PARTS))}, got {name.lower()}")
    return DatePart(part, date(of, names))


@translates(exp.TimestampTrunc, exp.DateTrunc)
def _(node: Expr, names: Names) -> Expression:
    of, unit = parts(node, "this", "unit")
    if unit is None or unit.name.lower() not in UNITS:
        raise QueryRefused(f"DATE_TRUNC takes {', '.join(UNITS)}, got {shown(node)}")
    return Truncated(unit.name.lower(), date(of, names))


@translates(exp.DateDiff)
def _(node: Expr, names: Names) -> Expression:
    last, first, unit = parts(node, "this", "expression", "unit")
    if unit is not None and unit.name.lower() != "day":
        raise QueryRefused("DATE_DIFF counts days: DATE_DIFF('day', first, last)")
    return DaysBetween(date(first, names), date(last, names))
