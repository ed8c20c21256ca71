"""Texts and dates: constants, and functions of columns that are no numbers."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

import ibis
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Key, Policy
from sfumato.query.expressions.base import (
    DATE,
    NUMBER,
    TEXT,
    ColumnValue,
    Days,
    Expression,
    Range,
    Value,
    days_listed,
    first_day,
    operands,
    reads,
    translated,
    whole,
)
from sfumato.query.expressions.numbers import Number, constant_range
from sfumato.query.names import Names
from sfumato.query.reading import QueryRefused, constant, function, literal_text, parts, shown

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_UNITS = {"year": "Y", "quarter": "Q", "month": "M", "week": "W", "day": "D"}
_RANGES = {
    "quarter": (1, 4), "month": (1, 12), "week": (1, 53), "day": (1, 31), "doy": (1, 366), "dow": (0, 6),
    "isodow": (1, 7),
}  # fmt: skip
_PARTS = {
    **{name: name for name in ("year", *_RANGES)},
    "dayofweek": "dow", "weekday": "dow", "dayofyear": "doy", "dayofmonth": "day", "weekofyear": "week",
}  # fmt: skip
_PART_FUNCTIONS: dict[type[Expr], str] = {
    exp.Year: "year", exp.Quarter: "quarter", exp.Month: "month", exp.Week: "week", exp.WeekOfYear: "week",
    exp.Day: "day", exp.DayOfMonth: "day", exp.DayOfWeek: "dow", exp.DayOfYear: "doy",
}  # fmt: skip


@dataclass(frozen=True)
class Text(Expression):
    """A constant."""

    value: str
    gives = TEXT

    def values(self, policy: Policy) -> tuple[Key, ...]:
        return (self.value,)

    def may_be_missing(self) -> bool:
        return False

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ibis.literal(self.value)


@reads(exp.Literal)
def _(node: Expr, names: Names) -> Expression:
    text, value = literal_text(node), constant(node)
    if text is not None:
        return Text(text)
    if value is None:
        raise QueryRefused(f"{shown(node)} is not a number")
    constant_range(value)
    return Number(value)


@dataclass(frozen=True)
class Cased(Expression):
    """A text in lower or upper case."""

    case: str
    of: Expression
    takes = (TEXT,)
    gives = TEXT

    def values(self, policy: Policy) -> tuple[Key, ...] | None:
        known = self.of.values(policy)
        if known is None or not all(str(value).isascii() for value in known):
            return None  # engines may differ in the case of other letters
        return tuple(dict.fromkeys(getattr(str(value), self.case)() for value in known))

    def sql(self, rows: Value, policy: Policy) -> Value:
        return getattr(self.of.sql(rows, policy), self.case)()


@reads(exp.Lower, exp.Upper)
def _(node: Expr, names: Names) -> Expression:
    return Cased("lower" if type(node) is exp.Lower else "upper", *operands(node, names, "this"))


@dataclass(frozen=True)
class Day(Expression):
    """A constant date, in ISO form."""

    value: str
    gives = DATE

    def days(self, policy: Policy) -> Days:
        day = datetime.date.fromisoformat(self.value)
        return day, day

    def may_be_missing(self) -> bool:
        return False

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ibis.literal(self.value).cast("date")


def as_date(expression: Expression) -> Expression:
    """A text in the form of a day is that day."""
    if not isinstance(expression, Text):
        return expression
    try:
        if _DAY.fullmatch(expression.value):
            return Day(datetime.date.fromisoformat(expression.value).isoformat())
    except ValueError:
        pass
    raise QueryRefused("a date is compared with a day such as '2024-01-31'")


def date(node: Expr, names: Names) -> Expression:
    """The date that a node means."""
    found = as_date(translated(node, names))
    if found.kind(names.policy) != DATE:
        raise QueryRefused(
            f"{shown(node)} is not a date; a day is written as '2024-01-31'", nearest=names.example_count()
        )
    return found


@dataclass(frozen=True)
class Truncated(Expression):
    """The first day of a date's year, quarter, month or week."""

    unit: str
    of: Expression
    takes = (DATE,)
    gives = DATE

    def days(self, policy: Policy) -> Days:
        first, last = self.of.days(policy)
        return first_day(self.unit, first), first_day(self.unit, last)

    def values(self, policy: Policy) -> tuple[Key, ...] | None:
        plain = isinstance(self.of, ColumnValue)
        return days_listed(self.unit, policy.columns[self.of.name].days) if plain else None  # type: ignore[attr-defined]

    def sql(self, rows: Value, policy: Policy) -> Value:
        start = self.of.sql(rows, policy).truncate(_UNITS[self.unit])
        return start.cast("timestamp").cast("date")  # engines give a time, which Ibis takes for a date


@reads(exp.TimestampTrunc, exp.DateTrunc)
def _(node: Expr, names: Names) -> Expression:
    of, unit = parts(node, "this", "unit")
    if unit is None or unit.name.lower() not in _UNITS:
        raise QueryRefused(f"DATE_TRUNC takes {', '.join(_UNITS)}, got {shown(node)}")
    return Truncated(unit.name.lower(), date(of, names))


@dataclass(frozen=True)
class DatePart(Expression):
    """Year, quarter, month, week, day, weekday … of a date, as a whole number."""

    part: str
    of: Expression
    takes = (DATE,)
    gives = NUMBER

    def range(self, policy: Policy) -> Range:
        first, last = self.of.days(policy)
        low, high = _RANGES.get(self.part, (first.year, last.year))
        return Range(float(low), float(high), 1.0)

    def sql(self, rows: Value, policy: Policy) -> Value:
        day = self.of.sql(rows, policy)
        if self.part in ("dow", "isodow"):
            monday_first = day.day_of_week.index().cast("int64")
            return monday_first + whole(1) if self.part == "isodow" else (monday_first + whole(1)) % whole(7)
        names = {"doy": "day_of_year", "week": "week_of_year"}
        return getattr(day, names.get(self.part, self.part))().cast("int64")


@reads(*_PART_FUNCTIONS)
def _(node: Expr, names: Names) -> Expression:
    return DatePart(_PART_FUNCTIONS[type(node)], date(parts(node, "this")[0], names))


@reads(exp.Extract)
def _(node: Expr, names: Names) -> Expression:
    part, of = parts(node, "this", "expression")
    return _part(part.name, of, names)


@reads(exp.Anonymous)
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


@dataclass(frozen=True)
class DaysBetween(Expression):
    """How many days lie from one date to another."""

    first: Expression
    last: Expression
    takes = (DATE,)
    gives = NUMBER

    def range(self, policy: Policy) -> Range:
        (a, b), (c, d) = self.first.days(policy), self.last.days(policy)
        return Range(float((c - b).days), float((d - a).days), 1.0)

    def sql(self, rows: Value, policy: Policy) -> Value:
        first, last = self.first.sql(rows, policy), self.last.sql(rows, policy)
        return last.delta(first, unit="day").cast("int64")


@reads(exp.DateDiff)
def _(node: Expr, names: Names) -> Expression:
    last, first, unit = parts(node, "this", "expression", "unit")
    if unit is not None and unit.name.lower() != "day":
        raise QueryRefused("DATE_DIFF counts days: DATE_DIFF('day', first, last)")
    return DaysBetween(date(first, names), date(last, names))
