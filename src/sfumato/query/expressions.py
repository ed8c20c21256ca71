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
_ANY = (NUMBER, TEXT, DATE, CONDITION)
# Operator → the kinds that its operands may have, all of them one → its own kind; None if that of the operands.
_SIGNATURES: dict[type[Any], tuple[tuple[Kind, ...], Kind | None]] = {
    **dict.fromkeys((Number, Arithmetic, Applied, Remainder, Extreme), ((NUMBER,), NUMBER)),
    Indicator: ((CONDITION,), NUMBER),
    **dict.fromkeys((DatePart, DaysBetween), ((DATE,), NUMBER)),
    **dict.fromkeys((Text, Cased), ((TEXT,), TEXT)),
    **dict.fromkeys((Day, Truncated), ((DATE,), DATE)),
    Comparison: ((NUMBER, DATE), CONDITION),
    OneOf: ((NUMBER, TEXT), CONDITION),
    Like: ((TEXT,), CONDITION),
    Missing: (_ANY, CONDITION),
    **dict.fromkeys((Flag, Always, Every, Some, Negated), ((CONDITION,), CONDITION)),
    **dict.fromkeys((Choice, FirstOf), (_ANY, None)),
}


def kind_of(expression: Expression, policy: Policy) -> Kind | None:
    """Number, text, date or condition; None for NULL alone."""
    if isinstance(expression, ColumnValue):
        return _COLUMN_KINDS[policy.columns[expression.name].type]
    if isinstance(expression, Nothing):
        return None
    if isinstance(expression, Choice | FirstOf):
        return next((found for item in expression.values if (found := kind_of(item, policy))), None)
    return _SIGNATURES[type(expression)][1]


def mistyped(expression: Any, policy: Policy) -> str | None:
    """Tell which operands an operator takes, if it has others; NULL is taken by a choice alone."""
    if type(expression) not in _SIGNATURES:
        return None
    (allowed, own), operands = _SIGNATURES[type(expression)], _operands(expression)
    if isinstance(expression, Choice):
        if any(kind_of(test, policy) != CONDITION for test, _ in expression.branches):
            return f"expected a {CONDITION} after WHEN"
        operands = list(expression.values)
    kinds = {kind_of(item, policy) for item in operands}
    if own is None:
        kinds -= {None}
    if len(kinds) <= 1 and kinds <= set(allowed):
        return None
    alike = " of one kind" if len(kinds) > 1 else ""
    found = " and ".join(sorted(kind or "what is NULL on every row" for kind in kinds))
    return f"expected {' or '.join(allowed)}{alike}, got {found}"


def _operands(expression: Any) -> list[Any]:
    values = (getattr(expression, item.name) for item in fields(expression))
    parts = (part for value in values for part in (value if isinstance(value, tuple) else (value,)))
    return [part for part in parts if is_dataclass(part)]


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
