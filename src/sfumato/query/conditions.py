"""Texts, dates and conditions, and the choices between values that hang on conditions.

A condition that no row can meet by the policy alone was asked for by mistake, and is refused before the charge.
"""

from __future__ import annotations

import datetime
import math
import operator
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ibis
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Key, Policy
from sfumato.query.expressions import (
    CONDITION,
    DATE,
    LARGEST,
    NUMBER,
    TEXT,
    ColumnValue,
    Days,
    Expression,
    Range,
    Value,
    condition,
    days_listed,
    double,
    first_day,
    operands,
    reads,
    translated,
    union,
    whole,
)
from sfumato.query.names import Names
from sfumato.query.numbers import Number, as_number, constant_range
from sfumato.query.reading import (
    QueryRefused,
    balanced,
    connected,
    constant,
    function,
    literal_text,
    parts,
    shown,
)

# ---- texts


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


# ---- dates

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
class Day(Expression):
    """A constant date."""

    value: datetime.date
    gives = DATE

    def days(self, policy: Policy) -> Days:
        return self.value, self.value

    def may_be_missing(self) -> bool:
        return False

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ibis.literal(self.value.isoformat()).cast("date")


def as_date(expression: Expression) -> Expression:
    """A text in the form of a day is that day."""
    if not isinstance(expression, Text):
        return expression
    try:
        if _DAY.fullmatch(expression.value):
            return Day(datetime.date.fromisoformat(expression.value))
    except ValueError:
        pass
    raise QueryRefused("a date is compared with a day such as '2024-01-31'")


def date(node: Expr, names: Names) -> Expression:
    """The date that a node means."""
    found = as_date(translated(node, names))
    if found.kind(names.policy) != DATE:
        raise QueryRefused(f"{shown(node)} is not a date; a day is written as '2024-01-31'")
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


def _part(name: str, of: Expr, names: Names) -> DatePart:
    part = _PARTS.get(name.lower())
    if part is None:
        raise QueryRefused(f"a date has {', '.join(dict.fromkeys(_PARTS))}, got {name.lower()}")
    return DatePart(part, date(of, names))


@reads(*_PART_FUNCTIONS)
def _(node: Expr, names: Names) -> Expression:
    return DatePart(_PART_FUNCTIONS[type(node)], date(parts(node, "this")[0], names))


@reads(exp.Extract)
def _(node: Expr, names: Names) -> Expression:
    part, of = parts(node, "this", "expression")
    return _part(part.name, of, names)


@reads(exp.Anonymous)
def _(node: Expr, names: Names) -> Expression:
    arguments = function(node, "DATE_PART") or []
    name = literal_text(arguments[0]) if len(arguments) == 2 else None
    if name is None:
        raise QueryRefused(
            f"{shown(node)} is not answered: there is no such function on a row",
            nearest=names.example_instead(node),
        )
    return _part(name, arguments[1], names)


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


# ---- conditions: true, false or NULL on every row


@dataclass(frozen=True)
class OfConditions(Expression):
    """An operator of conditions that gives a condition."""

    takes = (CONDITION,)
    gives = CONDITION


@dataclass(frozen=True)
class Always(OfConditions):
    """TRUE or FALSE on every row."""

    value: bool

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ibis.literal(self.value)


@reads(exp.Boolean)
def _(node: Expr, names: Names) -> Expression:
    return Always(bool(parts(node, "this")[0]))


@dataclass(frozen=True)
class Every(OfConditions):
    """AND."""

    parts: tuple[Expression, ...]

    def sql(self, rows: Value, policy: Policy) -> Value:
        return balanced([item.sql(rows, policy) for item in self.parts], operator.and_)


@dataclass(frozen=True)
class Some(OfConditions):
    """OR."""

    parts: tuple[Expression, ...]

    def sql(self, rows: Value, policy: Policy) -> Value:
        return balanced([item.sql(rows, policy) for item in self.parts], operator.or_)


@reads(exp.And, exp.Or)
def _(node: Expr, names: Names) -> Expression:
    kind = exp.And if type(node) is exp.And else exp.Or
    found = tuple(condition(item, names) for item in connected(node, kind))
    return Every(found) if kind is exp.And else Some(found)


@dataclass(frozen=True)
class Negated(OfConditions):
    """NOT."""

    condition: Expression

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ~self.condition.sql(rows, policy)


@reads(exp.Not)
def _(node: Expr, names: Names) -> Expression:
    return Negated(condition(parts(node, "this")[0], names))


@dataclass(frozen=True)
class Missing(Expression):
    """IS NULL."""

    of: Expression
    gives = CONDITION

    def may_be_missing(self) -> bool:
        return False

    def sql(self, rows: Value, policy: Policy) -> Value:
        return self.of.sql(rows, policy).isnull()


@reads(exp.Is)
def _(node: Expr, names: Names) -> Expression:
    of, other = parts(node, "this", "expression")
    value = translated(of, names)
    if type(other) is exp.Null:
        return Missing(value)
    if type(other) is exp.Boolean and value.kind(names.policy) == CONDITION:
        same = compared("=", value, translated(other, names), node, names)
        return Every((Negated(Missing(value)), same))
    raise QueryRefused(f"IS takes NULL, or TRUE and FALSE after a condition, got {shown(node)}")


class Possible(Expression):
    """A condition that some row can meet under the policy."""

    gives = CONDITION

    @abstractmethod
    def hindrance(self, policy: Policy) -> str | None:
        """Say why no row can meet it; None if one can."""

    def checked(self, node: Expr, names: Names) -> Expression:
        """Refuse a condition that no row can meet."""
        why = self.hindrance(names.policy)
        if why is not None:
            raise QueryRefused(f"{shown(node)} {why}; ask within that, or the holder can declare more")
        return self


_SYMBOLS: dict[type[Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
# The operator, that of the sides exchanged, and whether some x in [a, b] and y in [c, d] compare so.
_COMPARISONS: dict[str, tuple[Callable[[Any, Any], Any], str, Callable[[Any, Any, Any, Any], bool]]] = {
    "=": (operator.eq, "=", lambda a, b, c, d: a <= d and c <= b),
    "<>": (operator.ne, "<>", lambda a, b, c, d: not a == b == c == d),
    "<": (operator.lt, ">", lambda a, b, c, d: a < d),
    "<=": (operator.le, ">=", lambda a, b, c, d: a <= d),
    ">": (operator.gt, "<", lambda a, b, c, d: b > c),
    ">=": (operator.ge, "<=", lambda a, b, c, d: b >= c),
}


@dataclass(frozen=True)
class Comparison(Possible):
    """Two numbers, or two dates, compared: <, <=, >, >=, =, <>."""

    operator: str
    left: Expression
    right: Expression
    takes = (NUMBER, DATE)

    def hindrance(self, policy: Policy) -> str | None:
        ends = _days if DATE in (self.left.kind(policy), self.right.kind(policy)) else _numbers
        left, right = ends(self.left, policy), ends(self.right, policy)
        if left is None or right is None or _COMPARISONS[self.operator][2](*left, *right):
            return None
        low, high = (end.isoformat() if isinstance(end, datetime.date) else f"{end:g}" for end in left)
        # Where every person has one row, a count of their rows may be compared.
        one_row = policy.unit.column is not None and policy.unit.rows == 1
        further = "; a sub-query counts further than unit.rows with LEAST(COUNT(*), 20)" if one_row else ""
        return f"is true on no row: under the policy the left side lies between {low} and {high}{further}"

    def sql(self, rows: Value, policy: Policy) -> Value:
        left, right = self.left.sql(rows, policy), self.right.sql(rows, policy)
        if left.type().is_numeric() and not (left.type().is_integer() and right.type().is_integer()):
            left, right = left.cast("float64"), right.cast("float64")
        return _COMPARISONS[self.operator][0](left, right)


def _numbers(expression: Expression, policy: Policy) -> tuple[float, float] | None:
    """The least and the largest value; None where an expression is refused later, or has no bounds."""
    try:
        found = expression.range(policy)
    except QueryRefused:
        return None
    return None if found.size >= LARGEST else (found.low, found.high)


def _days(expression: Expression, policy: Policy) -> Days | None:
    found = expression.days(policy)
    return None if found == (datetime.date.min, datetime.date.max) else found


@reads(*_SYMBOLS)
def _(node: Expr, names: Names) -> Expression:
    left, right = operands(node, names, "this", "expression")
    return compared(_SYMBOLS[type(node)], left, right, node, names)


def compared(wanted: str, left: Expression, right: Expression, node: Expr, names: Names) -> Expression:
    """Two values compared, of one kind; texts and conditions with constants only, by = and <>."""
    if isinstance(left, Nothing) or isinstance(right, Nothing):
        raise QueryRefused(f"{shown(node)} is NULL on every row; use IS NULL")
    if isinstance(left, Text | Always | Number) and not isinstance(right, Text | Always | Number):
        left, right, wanted = right, left, _COMPARISONS[wanted][1]
    kinds = {left.kind(names.policy), right.kind(names.policy)}
    if kinds == {TEXT} or (kinds == {CONDITION} and isinstance(right, Always)):
        return _same(wanted, left, right, node, names)
    if DATE in kinds:
        left, right = alike([left, right], node, names)
    elif kinds <= {NUMBER, CONDITION} and NUMBER in kinds:
        left, right = as_number(left, node, names), as_number(right, node, names)
    else:
        raise QueryRefused(f"{shown(node)} is not answered: compare a column with a constant of its own type")
    return Comparison(wanted, left, right).checked(node, names)


def _same(wanted: str, left: Expression, right: Expression, node: Expr, names: Names) -> Expression:
    """A text or a condition that is a constant, or is not."""
    if wanted not in ("=", "<>"):
        raise QueryRefused(
            f"{shown(node)} is not answered: engines sort texts differently, and conditions have no order; use "
            "=, <>, IN or LIKE"
        )
    if isinstance(right, Always):
        return left if right.value == (wanted == "=") else Negated(left)
    if not isinstance(right, Text):
        raise QueryRefused(f"{shown(node)} is not answered: a text is compared with constants")
    found = OneOf(left, (right.value,)).checked(node, names)
    return found if wanted == "=" else Negated(found)


@reads(exp.Between)
def _(node: Expr, names: Names) -> Expression:
    of, low, high = parts(node, "this", "low", "high")
    value = translated(of, names)
    names.repeated(value)
    ends = ((">=", low), ("<=", high))
    return Every(tuple(compared(wanted, value, translated(end, names), node, names) for wanted, end in ends))


@dataclass(frozen=True)
class OneOf(Possible):
    """A text or a number that is one of these constants."""

    of: Expression
    constants: tuple[str | float, ...]
    takes = (NUMBER, TEXT)

    def hindrance(self, policy: Policy) -> str | None:
        if self.of.kind(policy) == NUMBER:
            low, high = _numbers(self.of, policy) or (-math.inf, math.inf)
            impossible = [item for item in self.constants if not low <= float(item) <= high]
            allowed = f"between {low:g} and {high:g}"
        else:
            known = self.of.values(policy)
            impossible = [item for item in self.constants if known is not None and item not in known]
            allowed = f"one of {_listed(known or ())}"
        if not impossible:
            return None
        return f"asks for {_listed(impossible)}, which no row has: under the policy it is {allowed}"

    def sql(self, rows: Value, policy: Policy) -> Value:
        value = self.of.sql(rows, policy)
        if value.type().is_string():
            return value.isin(list(self.constants))
        return value.cast("float64").isin([double(float(item)) for item in self.constants])


def _listed(values: Any, most: int = 10) -> str:
    items = [repr(item) if isinstance(item, str) else f"{item:g}" for item in list(values)[:most]]
    return ", ".join(items) + (", …" if len(list(values)) > most else "")


@reads(exp.In)
def _(node: Expr, names: Names) -> Expression:
    of, items = parts(node, "this", "expressions")
    if not items:
        raise QueryRefused("IN takes a list of constants")
    value = translated(of, names)
    kind = value.kind(names.policy)
    if kind not in (TEXT, NUMBER):
        names.repeated(value, times=len(items))
        return Some(tuple(compared("=", value, translated(item, names), node, names) for item in items))
    constants: list[str | float] = []
    for item in items:
        found = literal_text(item) if kind == TEXT else constant(item)
        if found is None:
            raise QueryRefused(f"{shown(node)} is not answered: the list of IN holds {kind}s, as its left side")
        if isinstance(found, float):
            constant_range(found)
        constants.append(found)
    return OneOf(value, tuple(constants)).checked(node, names)


@dataclass(frozen=True)
class Like(Possible):
    """A text that matches a pattern of % and _."""

    of: Expression
    pattern: str
    takes = (TEXT,)

    def hindrance(self, policy: Policy) -> str | None:
        known = self.of.values(policy)
        wanted = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in self.pattern)
        if known is None or any(re.fullmatch(wanted, str(item), re.DOTALL) for item in known):
            return None
        return f"is true on no row: under the policy it is one of {_listed(known)}"

    def sql(self, rows: Value, policy: Policy) -> Value:
        return self.of.sql(rows, policy).like(self.pattern)


_MOST_WILDCARDS = 10


@reads(exp.Like, exp.ILike)
def _(node: Expr, names: Names) -> Expression:
    of, pattern = parts(node, "this", "expression")
    value, wanted = translated(of, names), literal_text(pattern)
    if wanted is None:
        raise QueryRefused("LIKE takes a text and a pattern such as 'abc%'")
    if wanted.count("%") + wanted.count("_") > _MOST_WILDCARDS:
        raise QueryRefused(f"a pattern of LIKE has at most {_MOST_WILDCARDS} of % and _")
    lowered = type(node) is exp.ILike
    found = Like(Cased("lower", value), wanted.lower()) if lowered else Like(value, wanted)
    return found.checked(node, names)


# ---- choices


@dataclass(frozen=True)
class Nothing(Expression):
    """NULL, of the kind that stands beside it."""

    def sql(self, rows: Value, policy: Policy) -> Value:
        raise TypeError("NULL alone has no type")


@reads(exp.Null)
def _(node: Expr, names: Names) -> Expression:
    parts(node)
    return Nothing()


_TYPES = {NUMBER: "float64", TEXT: "string", DATE: "date", CONDITION: "boolean"}


class Alternatives(Expression):
    """One of several values of one kind: its `operands`, of which NULL takes the kind of the others."""

    def known(self) -> list[Expression]:
        return [item for item in self.operands if not isinstance(item, Nothing)]

    def range(self, policy: Policy) -> Range:
        return union(item.range(policy) for item in self.known())

    def days(self, policy: Policy) -> Days:
        found = [item.days(policy) for item in self.known()]
        return min(first for first, _ in found), max(last for _, last in found)

    def values(self, policy: Policy) -> tuple[Key, ...] | None:
        if self.kind(policy) != TEXT:
            return super().values(policy)
        lists = [item.values(policy) for item in self.known()]
        if any(item is None for item in lists):
            return None
        return tuple(dict.fromkeys(value for item in lists for value in item or ()))

    def alike(self, rows: Value, policy: Policy) -> list[Value]:
        """The operands' SQL, in one type."""
        kind = self.kind(policy) or NUMBER
        return [
            ibis.null(_TYPES[kind])
            if isinstance(item, Nothing)
            else item.double(rows, policy)
            if kind == NUMBER
            else item.sql(rows, policy)
            for item in self.operands
        ]


@dataclass(frozen=True)
class FirstOf(Alternatives):
    """COALESCE: the first that is not NULL."""

    items: tuple[Expression, ...]

    def may_be_missing(self) -> bool:
        return all(item.may_be_missing() for item in self.items)

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ibis.coalesce(*self.alike(rows, policy))


@dataclass(frozen=True)
class Choice(Alternatives):
    """The value of the first (condition, value) that holds, else `otherwise`."""

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression

    @property
    def operands(self) -> list[Expression]:
        return [*(value for _, value in self.branches), self.otherwise]

    def mistyped(self, policy: Policy) -> str | None:
        if any(test.kind(policy) != CONDITION for test, _ in self.branches):
            return f"expected a {CONDITION} after WHEN"
        return super().mistyped(policy)

    def may_be_missing(self) -> bool:
        return any(item.may_be_missing() for item in self.operands)

    def sql(self, rows: Value, policy: Policy) -> Value:
        *values, otherwise = self.alike(rows, policy)
        conditions = (test.sql(rows, policy) for test, _ in self.branches)
        return ibis.cases(*zip(conditions, values, strict=True), else_=otherwise)


def where(test: Expression, value: Expression, otherwise: Expression | None = None) -> Choice:
    """CASE WHEN test THEN value ELSE otherwise END."""
    return Choice(((test, value),), otherwise or Nothing())


def alike(values: list[Expression], node: Expr, names: Names) -> tuple[Expression, ...]:
    """Values of one kind: texts become days beside dates."""
    if any(item.kind(names.policy) == DATE for item in values):
        values = [as_date(item) for item in values]
    kinds = {str(item.kind(names.policy)) for item in values if item.kind(names.policy)}
    if len(kinds) > 1:
        raise QueryRefused(f"{shown(node)} mixes {' and '.join(sorted(kinds))}")
    return tuple(values)


@reads(exp.Coalesce)
def _(node: Expr, names: Names) -> Expression:
    first, others = parts(node, "this", "expressions")
    return FirstOf(alike([translated(item, names) for item in (first, *(others or []))], node, names))


@reads(exp.If)
def _(node: Expr, names: Names) -> Expression:
    test, then, otherwise = parts(node, "this", "true", "false")
    values = [translated(item, names) if item is not None else Nothing() for item in (then, otherwise)]
    return where(condition(test, names), *alike(values, node, names))


@reads(exp.Case)
def _(node: Expr, names: Names) -> Expression:
    subject, branches, default = parts(node, "this", "ifs", "default")
    pairs = [parts(branch, "this", "true") for branch in branches]
    if subject is None:
        tests = [condition(test, names) for test, _ in pairs]
    else:
        value = translated(subject, names)
        names.repeated(value, times=len(pairs))
        tests = [compared("=", value, translated(test, names), test, names) for test, _ in pairs]
    values = [translated(value, names) for _, value in pairs]
    values.append(Nothing() if default is None else translated(default, names))
    *values, otherwise = alike(values, node, names)
    return Choice(tuple(zip(tests, values, strict=True)), otherwise)


@reads(exp.Nullif)
def _(node: Expr, names: Names) -> Expression:
    of, other = operands(node, names, "this", "expression")
    names.repeated(of)
    if isinstance(other, Number) and of.kind(names.policy) == NUMBER:
        return where(Comparison("=", of, other), Nothing(), of)
    if isinstance(other, Text) and of.kind(names.policy) == TEXT:
        return where(OneOf(of, (other.value,)), Nothing(), of)
    raise QueryRefused(f"{shown(node)} is not answered: NULLIF takes a constant of the same type")


@reads(exp.Cast, exp.TryCast)
def _(node: Expr, names: Names) -> Expression:
    """x::DOUBLE is x, since all arithmetic is in doubles; '2024-01-31'::DATE is a day."""
    of, to = parts(node, "this", "to")
    wanted = to.this.name if isinstance(to, exp.DataType) else ""
    if wanted == "DATE":
        return date(of, names)
    found = translated(of, names)
    if found.kind(names.policy) in (NUMBER, CONDITION):
        value = as_number(found, of, names)
        same = wanted in ("DOUBLE", "FLOAT", "DECIMAL", "REAL")
        if same or (wanted in ("INT", "BIGINT") and value.range(names.policy).whole):
            return value
    raise QueryRefused(
        f"{shown(node)} is not answered: a cast could fail on a row; use ROUND or FLOOR for whole numbers"
    )
