"""What may be computed on one row: frozen values, the same for every engine.

Only expressions that cannot fail on any row are here. Arithmetic works on columns clipped to their public
bounds, so that its result has public bounds as well; division is by a constant only. So no row can make a query
stop with an error, which would say something about that row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import singledispatch
from typing import Any

from sfumato.query.policy import Key, Policy
from sfumato.query.refusal import QueryRefused

Interval = tuple[float, float]


@dataclass(frozen=True)
class ColumnValue:
    """A column as it is in the table."""

    name: str


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Arithmetic:
    """left + right, left - right, left * right, or left / constant."""

    operator: str
    left: NumberExpression
    right: NumberExpression


@dataclass(frozen=True)
class Choice:
    """`then` where the condition holds, else `otherwise`."""

    condition: Condition
    then: NumberExpression
    otherwise: NumberExpression


@dataclass(frozen=True)
class Comparison:
    """Two numbers compared: <, <=, >, >=, =, <>."""

    operator: str
    left: NumberExpression
    right: NumberExpression


@dataclass(frozen=True)
class DateComparison:
    """A date column compared with a day (ISO form)."""

    operator: str
    column: str
    day: str


@dataclass(frozen=True)
class OneOf:
    """A text, number or boolean column that has one of these values."""

    column: str
    values: tuple[Key | float, ...]


@dataclass(frozen=True)
class Missing:
    """A column that is NULL."""

    column: str


@dataclass(frozen=True)
class TextMatch:
    """A text column that starts with, ends with or contains a text."""

    column: str
    place: str
    text: str


@dataclass(frozen=True)
class Both:
    left: Condition
    right: Condition


@dataclass(frozen=True)
class Either:
    left: Condition
    right: Condition


@dataclass(frozen=True)
class Negated:
    condition: Condition


NumberExpression = ColumnValue | Number | Arithmetic | Choice
Condition = Comparison | DateComparison | OneOf | Missing | TextMatch | Both | Either | Negated
Expression = NumberExpression | Condition

_LARGEST = 2.0**52


def columns_of(expression: Any) -> Iterator[str]:
    """The columns an expression reads."""
    if isinstance(expression, ColumnValue):
        yield expression.name
    elif isinstance(expression, DateComparison | OneOf | Missing | TextMatch):
        yield expression.column
    elif is_dataclass(expression):
        for item in fields(expression):
            yield from columns_of(getattr(expression, item.name))


@singledispatch
def interval(expression: NumberExpression, policy: Policy) -> Interval:
    """The public bounds of an expression over clipped columns.

    >>> from sfumato.accounting import Budget
    >>> from sfumato.query.policy import Column
    >>> age = Column(name="age", type="integer", lower=0, upper=120)
    >>> policy = Policy(table="t", source="t.csv", columns={"age": age}, budget=Budget(epsilon=1))
    >>> interval(Arithmetic("-", Number(18), ColumnValue("age")), policy)
    (-102.0, 18.0)
    """
    raise QueryRefused(f"{type(expression).__name__} is not a number")


@interval.register
def _(expression: ColumnValue, policy: Policy) -> Interval:
    column = policy.columns[expression.name]
    if not column.numeric:
        raise QueryRefused(f"column {column.name} is {column.type}, not a number", nearest=_count_of(policy))
    if column.bounds is None:
        raise QueryRefused(
            f"column {column.name} has no public bounds, without which one person could move the answer at "
            f"will; the holder can add lower and upper to columns.{column.name}",
            nearest=_count_of(policy),
        )
    return column.bounds


@interval.register
def _(expression: Number, policy: Policy) -> Interval:
    return (expression.value, expression.value)


@interval.register
def _(expression: Choice, policy: Policy) -> Interval:
    (a, b), (c, d) = interval(expression.then, policy), interval(expression.otherwise, policy)
    return (min(a, c), max(b, d))


@interval.register
def _(expression: Arithmetic, policy: Policy) -> Interval:
    (a, b), (c, d) = interval(expression.left, policy), interval(expression.right, policy)
    if expression.operator == "+":
        result = (a + c, b + d)
    elif expression.operator == "-":
        result = (a - d, b - c)
    elif expression.operator == "*":
        result = (min(a * c, a * d, b * c, b * d), max(a * c, a * d, b * c, b * d))
    elif c == d != 0:
        result = (min(a / c, b / c), max(a / c, b / c))
    else:
        raise QueryRefused("division is by a constant other than 0 only: it must not fail on any row")
    if max(map(abs, result)) > _LARGEST:
        raise QueryRefused("the expression can grow beyond 2**52, where whole numbers are no longer exact")
    return result


@singledispatch
def is_whole(expression: NumberExpression, policy: Policy) -> bool:
    """Whether an expression is a whole number on every row."""
    return False


@is_whole.register
def _(expression: ColumnValue, policy: Policy) -> bool:
    return policy.columns[expression.name].type == "integer"


@is_whole.register
def _(expression: Number, policy: Policy) -> bool:
    return float(expression.value).is_integer()


@is_whole.register
def _(expression: Arithmetic, policy: Policy) -> bool:
    parts = is_whole(expression.left, policy) and is_whole(expression.right, policy)
    return parts and expression.operator != "/"


@is_whole.register
def _(expression: Choice, policy: Policy) -> bool:
    return is_whole(expression.then, policy) and is_whole(expression.otherwise, policy)


def _count_of(policy: Policy) -> str:
    return f"SELECT COUNT(*) FROM {policy.table}"
