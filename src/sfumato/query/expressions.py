"""What may be computed on one row: frozen values, the same for every engine.

Every expression here has a value on every row: a number, a text, a date or a condition, or NULL. Nothing that
can fail on a row can be written down, so that no row can make a query stop with an error, which would say
something about that row. How far a number can reach is worked out in `ranges`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sfumato.policy import Policy

Kind = str
NUMBER, TEXT, DATE, CONDITION = "number", "text", "date", "condition"
FUNCTIONS = ("abs", "floor", "sqrt", "ln", "exp")


@dataclass(frozen=True)
class ColumnValue:
    """A column of the policy, within its bounds."""

    name: str


@dataclass(frozen=True)
class Nothing:
    """NULL, of whatever kind stands beside it."""


@dataclass(frozen=True)
class Choice:
    """The value of the first (condition, value) that holds, else `otherwise`; all values of one kind."""

    branches: tuple[tuple[Condition, Expression], ...]
    otherwise: Expression

    @property
    def values(self) -> tuple[Expression, ...]:
        return *(value for _, value in self.branches), self.otherwise


@dataclass(frozen=True)
class FirstOf:
    """COALESCE: the first that is not NULL."""

    values: tuple[Expression, ...]


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Arithmetic:
    """left + right, left - right, left * right; left / right is NULL where right is 0."""

    operator: str
    left: NumberExpression
    right: NumberExpression


@dataclass(frozen=True)
class Applied:
    """A function of FUNCTIONS: total, since LN is NULL where it is not defined."""

    function: str
    of: NumberExpression


@dataclass(frozen=True)
class Remainder:
    """A whole number ≥ 0 modulo a constant."""

    of: NumberExpression
    divisor: int


@dataclass(frozen=True)
class Extreme:
    """GREATEST or LEAST, which pass NULLs over."""

    function: str
    values: tuple[NumberExpression, ...]


@dataclass(frozen=True)
class Indicator:
    """1 where the condition holds, 0 where it does not, NULL where it is NULL."""

    condition: Condition


@dataclass(frozen=True)
class DatePart:
    """Year, quarter, month, week, day, weekday … of a date, as a whole number."""

    part: str
    of: DateExpression


@dataclass(frozen=True)
class DaysBetween:
    """How many days lie from one date to another."""

    first: DateExpression
    last: DateExpression


@dataclass(frozen=True)
class Text:
    """A constant."""

    value: str


@dataclass(frozen=True)
class Cased:
    """A text in lower or upper case."""

    case: str
    of: TextExpression


@dataclass(frozen=True)
class Day:
    """A constant date, in ISO form."""

    value: str


@dataclass(frozen=True)
class Truncated:
    """The first day of a date's year, quarter, month or week."""

    unit: str
    of: DateExpression


@dataclass(frozen=True)
class Comparison:
    """Two numbers, or two dates, compared: <, <=, >, >=, =, <>."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class OneOf:
    """A text or a number that is one of these constants."""

    of: Expression
    values: tuple[str | float, ...]


@dataclass(frozen=True)
class Flag:
    """A boolean column that is true."""

    column: str


@dataclass(frozen=True)
class Missing:
    """NULL."""

    of: Expression


@dataclass(frozen=True)
class Like:
    """A text that matches a pattern of % and _."""

    of: TextExpression
    pattern: str


@dataclass(frozen=True)
class Always:
    """TRUE or FALSE on every row."""

    value: bool


@dataclass(frozen=True)
class Every:
    """AND."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Some:
    """OR."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Negated:
    condition: Condition


_Anything = ColumnValue | Nothing | Choice | FirstOf
NumberExpression = (
    _Anything | Number | Arithmetic | Applied | Remainder | Extreme | Indicator | DatePart | DaysBetween
)
TextExpression = _Anything | Text | Cased
DateExpression = _Anything | Day | Truncated
Condition = Comparison | OneOf | Flag | Missing | Like | Always | Every | Some | Negated
Expression = NumberExpression | TextExpression | DateExpression | Condition

_COLUMN_KINDS = {"integer": NUMBER, "real": NUMBER, "text": TEXT, "date": DATE, "boolean": CONDITION}
_KINDS: dict[type[Any], Kind] = {
    **dict.fromkeys(
        (Number, Arithmetic, Applied, Remainder, Extreme, Indicator, DatePart, DaysBetween), NUMBER
    ),
    **dict.fromkeys((Text, Cased), TEXT),
    **dict.fromkeys((Day, Truncated), DATE),
    **dict.fromkeys((Comparison, OneOf, Flag, Missing, Like, Always, Every, Some, Negated), CONDITION),
}


def kind_of(expression: Expression, policy: Policy) -> Kind | None:
    """Number, text, date or condition; None for NULL alone."""
    if isinstance(expression, ColumnValue):
        return _COLUMN_KINDS[policy.columns[expression.name].type]
    if isinstance(expression, Nothing):
        return None
    if isinstance(expression, Choice | FirstOf):
        return next((found for item in expression.values if (found := kind_of(item, policy))), None)
    return _KINDS[type(expression)]


def walk(expression: Any) -> Iterator[Any]:
    """An expression and everything in it; what is repeated, each time."""
    waiting = [expression]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += reversed(item)
        elif is_dataclass(item):
            yield item
            waiting += [getattr(item, field.name) for field in reversed(fields(item))]


def depth_of(expression: Any) -> int:
    """How many expressions stand inside one another."""
    deepest, waiting = 0, [(expression, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, tuple):
            waiting += [(part, depth) for part in item]
        elif is_dataclass(item):
            deepest = max(deepest, depth + 1)
            waiting += [(getattr(item, field.name), depth + 1) for field in fields(item)]
    return deepest


def columns_of(expression: Any) -> Iterator[str]:
    """The columns an expression reads."""
    for item in walk(expression):
        if isinstance(item, ColumnValue):
            yield item.name
        elif isinstance(item, Flag):
            yield item.column
