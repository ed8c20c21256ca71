"""Expressions → Ibis, with the same meaning on every engine.

Traps that this file is there for: LEAST and GREATEST skip NULLs, so that clipping with them would turn a NULL
into a bound; Ibis divides whole numbers through doubles; constants written as decimals are not always the
double that was meant. Columns come in as int64, float64 without NaN, string, boolean or date.
"""

from __future__ import annotations

import operator
from functools import singledispatch
from typing import Any

import ibis

from sfumato.query.expressions import (
    Arithmetic,
    Both,
    Choice,
    ColumnValue,
    Comparison,
    DateComparison,
    Either,
    Missing,
    Negated,
    Number,
    NumberExpression,
    OneOf,
    TextMatch,
    interval,
)
from sfumato.query.plan import Cells, Fixed, GroupKey
from sfumato.query.policy import Policy

Value = Any  # an Ibis value expression; Ibis has no types that a checker could follow
_OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def double(value: float) -> Value:
    """A constant that is exactly this double on every engine."""
    return ibis.literal(repr(float(value))).cast("float64")


def clip(value: Value, lower: Value, upper: Value) -> Value:
    """`value` within the bounds; NULL stays NULL."""
    return ibis.cases((value < lower, lower), (value > upper, upper), else_=value)


def whole_quotient(dividend: Value, divisor: Value) -> Value:
    """⌊dividend / divisor⌋ of whole numbers ≥ 0 and ≥ 1, exactly, for quotients below 2⁵⁰.

    dividend − dividend mod divisor is a multiple of the divisor; rounding both to doubles moves the quotient by
    less than ½, so that rounding it is exact, where flooring would not be.
    """
    multiple = dividend - dividend % divisor
    return (multiple.cast("float64") / divisor.cast("float64")).round().cast("int64")


def quantised(expression: NumberExpression, fixed: Fixed, table: Value, policy: Policy) -> Value:
    """⌊x / grid⌋ of the clipped expression as int64; between fixed.first and fixed.last, or NULL."""
    value = clipped_number(expression, table, policy)
    if value.type().is_integer() and fixed.grid == 1:
        return value
    return (value.cast("float64") * double(1 / fixed.grid)).floor().cast("int64")


def clipped_number(expression: NumberExpression, table: Value, policy: Policy) -> Value:
    """The expression over clipped columns, itself clipped to its public bounds."""
    lower, upper = interval(expression, policy)
    value = (
        table[expression.name] if isinstance(expression, ColumnValue) else _computed(expression, table, policy)
    )
    if value.type().is_integer():
        return clip(value, ibis.literal(int(lower), "int64"), ibis.literal(int(upper), "int64"))
    return clip(value, double(lower), double(upper))


@singledispatch
def _computed(expression: NumberExpression, table: Value, policy: Policy) -> Value:
    """The expression in doubles over clipped columns."""
    raise TypeError(type(expression).__name__)


@_computed.register
def _(expression: ColumnValue, table: Value, policy: Policy) -> Value:
    return clipped_number(expression, table, policy).cast("float64")


@_computed.register
def _(expression: Number, table: Value, policy: Policy) -> Value:
    return double(expression.value)


@_computed.register
def _(expression: Arithmetic, table: Value, policy: Policy) -> Value:
    left, right = _computed(expression.left, table, policy), _computed(expression.right, table, policy)
    return _OPERATORS[expression.operator](left, right)


@_computed.register
def _(expression: Choice, table: Value, policy: Policy) -> Value:
    then, otherwise = _computed(expression.then, table, policy), _computed(expression.otherwise, table, policy)
    return ibis.cases((condition(expression.condition, table, policy), then), else_=otherwise)


@singledispatch
def condition(expression: Any, table: Value, policy: Policy) -> Value:
    """A condition as an Ibis boolean."""
    raise TypeError(type(expression).__name__)


@condition.register
def _(expression: Comparison, table: Value, policy: Policy) -> Value:
    left, right = _side(expression.left, table, policy), _side(expression.right, table, policy)
    if not (left.type().is_integer() and right.type().is_integer()):
        left, right = left.cast("float64"), right.cast("float64")
    return _OPERATORS[expression.operator](left, right)


def _side(expression: NumberExpression, table: Value, policy: Policy) -> Value:
    """One side of a comparison: a column as it is, since comparing cannot fail; anything else in doubles."""
    if isinstance(expression, ColumnValue):
        return table[expression.name]
    if isinstance(expression, Number) and float(expression.value).is_integer():
        return ibis.literal(int(expression.value), "int64")
    return _computed(expression, table, policy)


@condition.register
def _(expression: DateComparison, table: Value, policy: Policy) -> Value:
    return _OPERATORS[expression.operator](table[expression.column], ibis.literal(expression.day).cast("date"))


@condition.register
def _(expression: OneOf, table: Value, policy: Policy) -> Value:
    column = table[expression.column]
    if column.type().is_boolean():
        return _any_of([column if value else ~column for value in expression.values])
    if column.type().is_string():
        return column.isin(list(expression.values))
    return _any_of([column.cast("float64") == double(float(value)) for value in expression.values])


def _any_of(conditions: list[Value]) -> Value:
    found = conditions[0]
    for item in conditions[1:]:
        found = found | item
    return found


@condition.register
def _(expression: Missing, table: Value, policy: Policy) -> Value:
    return table[expression.column].isnull()


@condition.register
def _(expression: TextMatch, table: Value, policy: Policy) -> Value:
    column = table[expression.column]
    match = {"starts": column.startswith, "ends": column.endswith, "contains": column.contains}
    return match[expression.place](expression.text)


@condition.register
def _(expression: Both, table: Value, policy: Policy) -> Value:
    return condition(expression.left, table, policy) & condition(expression.right, table, policy)


@condition.register
def _(expression: Either, table: Value, policy: Policy) -> Value:
    return condition(expression.left, table, policy) | condition(expression.right, table, policy)


@condition.register
def _(expression: Negated, table: Value, policy: Policy) -> Value:
    return ~condition(expression.condition, table, policy)


def key_value(key: GroupKey, table: Value, policy: Policy) -> Value:
    """A group's key as text, whole number or boolean."""
    if key.bins is not None:
        lower, upper = interval(ColumnValue(key.column), policy)
        return _cell_of(ColumnValue(key.column), lower, upper, key.bins, table, policy)
    column = table[key.column]
    if column.type().is_floating():  # a whole number that came as a double
        return clip(column, double(-(2.0**52)), double(2.0**52)).floor().cast("int64")
    return column.cast("string") if column.type().is_date() else column


def cell_value(cells: Cells, table: Value, policy: Policy) -> Value:
    """The cell of the public grid in which a value lies."""
    if cells.whole:
        fixed = Fixed(cells.lower, cells.upper, 1)
        return quantised(cells.of, fixed, table, policy) - ibis.literal(fixed.first, "int64")
    return _cell_of(cells.of, cells.lower, cells.upper, cells.cells, table, policy)


def _cell_of(
    expression: NumberExpression, lower: float, upper: float, cells: int, table: Value, policy: Policy
) -> Value:
    value = clipped_number(expression, table, policy).cast("float64")
    cell = ((value - double(lower)) * double(cells / (upper - lower))).floor().cast("int64")
    return clip(cell, ibis.literal(0, "int64"), ibis.literal(cells - 1, "int64"))
