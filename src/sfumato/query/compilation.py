"""Expressions → Ibis, with the same meaning on every engine.

Traps that this file is there for: LEAST and GREATEST skip NULLs, so that clipping with them would turn a NULL
into a bound; Ibis divides whole numbers through doubles; constants written as decimals are not always the
double that was meant. Every function uses its argument once, so that a text of n characters compiles to
SQL of O(n) characters. Columns come in as `sanitizing` leaves them, under names that no user can choose.
"""

from __future__ import annotations

import math
import operator
from functools import singledispatch
from typing import Any

import ibis

from sfumato.policy import Policy
from sfumato.query.expressions import (
    Always,
    Applied,
    Arithmetic,
    Cased,
    Choice,
    ColumnValue,
    Comparison,
    DatePart,
    Day,
    DaysBetween,
    Every,
    Expression,
    Extreme,
    FirstOf,
    Flag,
    Indicator,
    Like,
    Missing,
    Negated,
    Nothing,
    Number,
    OneOf,
    Remainder,
    Some,
    Text,
    Truncated,
    kind_of,
)
from sfumato.query.ranges import Range, range_of, snapping
from sfumato.query.reading import balanced

Value = Any  # an Ibis value expression; Ibis has no types that a checker could follow
_OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_UNITS = {"year": "Y", "quarter": "Q", "month": "M", "week": "W", "day": "D"}


def column_name(name: str, policy: Policy) -> str:
    """What a declared column is called inside a query: c0, c1, …, so that no name of its own can collide."""
    return f"c{list(policy.columns).index(name)}"


def double(value: float) -> Value:
    """A constant that is exactly this double on every engine."""
    return ibis.literal(repr(float(value))).cast("float64")


def whole(value: int) -> Value:
    return ibis.literal(value, "int64")


def clip(value: Value, lower: Value, upper: Value) -> Value:
    """`value` within the bounds; NULL stays NULL. What holds of nearly every row is asked first, for speed."""
    return ibis.cases((value.between(lower, upper), value), (value < lower, lower), (value > upper, upper))


@ibis.udf.scalar.builtin(name="divide")  # type: ignore[untyped-decorator]
def _divide(dividend: int, divisor: int) -> int:
    """DuckDB's division of whole numbers, which Ibis would do in doubles."""
    raise AssertionError


def whole_quotient(dividend: Value, divisor: Value) -> Value:
    """⌊dividend / divisor⌋ of whole numbers ≥ 0 and ≥ 1, exactly, for quotients below 2⁵⁰.

    DuckDB divides whole numbers. Elsewhere, dividend − dividend mod divisor is a multiple of the divisor;
    rounding both to doubles moves the quotient by less than ½, so that rounding it is exact, where flooring
    would not be.
    """
    if dividend.get_backend().name == "duckdb":
        return _divide(dividend, divisor)
    multiple = dividend - dividend % divisor
    return (multiple.cast("float64") / divisor.cast("float64")).round().cast("int64")


def steps_above(
    expression: Expression, low: float, grid: float, most: int, table: Value, policy: Policy
) -> Value:
    """⌊(x − low) / grid⌋ of a number within its range, as a whole number from 0 to `most`, or NULL.

    `low` is the range's own lower end, so that what is scaled is small whatever the row holds.
    """
    value, found = compiled(expression, table, policy), range_of(expression, policy)
    ends = [math.floor((end - low) * (1 / grid)) for end in (found.low, found.high)]
    if value.type().is_integer() and (1 / grid).is_integer() and float(low).is_integer():
        steps = value - whole(int(low)) if low else value
        steps = steps * whole(int(1 / grid)) if grid != 1 else steps
    else:
        steps = ((value.cast("float64") - double(low)) * double(1 / grid)).floor().cast("int64")
    return _within(steps, ends, 0, most)


def multiples(expression: Expression, low: int, grid: float, high: int, table: Value, policy: Policy) -> Value:
    """⌊x / grid⌋ of a number within its range, as a whole number from low to high, or NULL."""
    value, found = compiled(expression, table, policy), range_of(expression, policy)
    ends = [math.floor(end * (1 / grid)) for end in (found.low, found.high)]
    if value.type().is_integer() and (1 / grid).is_integer():
        return _within(value * whole(int(1 / grid)) if grid != 1 else value, ends, low, high)
    return _within((value.cast("float64") * double(1 / grid)).floor().cast("int64"), ends, low, high)


def _within(steps: Value, ends: list[int], low: int, high: int) -> Value:
    """Clipped where it has to be: the engine computes as Python does, and rounding is monotone, so that steps
    lie between those of the ends of the range."""
    return steps if low <= ends[0] and ends[1] <= high else clip(steps, whole(low), whole(high))


@singledispatch
def compiled(expression: Any, table: Value, policy: Policy) -> Value:
    """An expression as an Ibis value: int64 or float64, string, date or boolean."""
    raise TypeError(type(expression).__name__)


def _doubled(expression: Expression, table: Value, policy: Policy) -> Value:
    return compiled(expression, table, policy).cast("float64")


def _snapped(value: Value, found: Range) -> Value:
    """The nearest multiple of the grid; see `ranges`."""
    if found.whole:
        return value
    shift = double(snapping(found.size))
    return (value + shift) - shift


@compiled.register
def _(expression: ColumnValue, table: Value, policy: Policy) -> Value:
    value, column = table[column_name(expression.name, policy)], policy.columns[expression.name]
    if column.type != "text" or column.categories is None:
        return value
    # What is not declared counts as missing; as a key it is in no group anyway.
    return value.isin(column.categories).ifelse(value, ibis.null("string"))


@compiled.register
def _(expression: Flag, table: Value, policy: Policy) -> Value:
    return table[column_name(expression.column, policy)]


@compiled.register
def _(expression: Number, table: Value, policy: Policy) -> Value:
    return double(expression.value)


@compiled.register
def _(expression: Text, table: Value, policy: Policy) -> Value:
    return ibis.literal(expression.value)


@compiled.register
def _(expression: Day, table: Value, policy: Policy) -> Value:
    return ibis.literal(expression.value).cast("date")


@compiled.register
def _(expression: Arithmetic, table: Value, policy: Policy) -> Value:
    found = range_of(expression, policy)
    left, right = _doubled(expression.left, table, policy), _doubled(expression.right, table, policy)
    if expression.operator == "/":
        right = right.nullif(double(0.0))
    value = _OPERATORS[expression.operator](left, right)
    return value if expression.operator in "+-" else _snapped(value, found)


@compiled.register
def _(expression: Applied, table: Value, policy: Policy) -> Value:
    found = range_of(expression, policy)
    value = _doubled(expression.of, table, policy)
    if expression.function in ("abs", "floor"):
        return getattr(value, expression.function)().cast("float64")
    if expression.function == "sqrt":
        value = value.abs().sqrt()
    elif expression.function == "ln":
        value = ibis.greatest(value, double(0.0)).nullif(double(0.0)).ln()
    else:
        value = value.exp()
    return _snapped(value, found)


@compiled.register
def _(expression: Remainder, table: Value, policy: Policy) -> Value:
    range_of(expression, policy)
    return compiled(expression.of, table, policy).cast("int64") % whole(expression.divisor)


@compiled.register
def _(expression: Extreme, table: Value, policy: Policy) -> Value:
    values = [_doubled(item, table, policy) for item in expression.values]
    return ibis.greatest(*values) if expression.function == "greatest" else ibis.least(*values)


@compiled.register
def _(expression: Indicator, table: Value, policy: Policy) -> Value:
    return compiled(expression.condition, table, policy).cast("int32").cast("int64")


@compiled.register
def _(expression: DatePart, table: Value, policy: Policy) -> Value:
    day = compiled(expression.of, table, policy)
    if expression.part in ("dow", "isodow"):
        monday_first = day.day_of_week.index().cast("int64")
        return monday_first + whole(1) if expression.part == "isodow" else (monday_first + whole(1)) % whole(7)
    names = {"doy": "day_of_year", "week": "week_of_year"}
    return getattr(day, names.get(expression.part, expression.part))().cast("int64")


@compiled.register
def _(expression: DaysBetween, table: Value, policy: Policy) -> Value:
    first, last = compiled(expression.first, table, policy), compiled(expression.last, table, policy)
    return last.delta(first, unit="day").cast("int64")


@compiled.register
def _(expression: Cased, table: Value, policy: Policy) -> Value:
    value = compiled(expression.of, table, policy)
    return value.lower() if expression.case == "lower" else value.upper()


@compiled.register
def _(expression: Truncated, table: Value, policy: Policy) -> Value:
    start = compiled(expression.of, table, policy).truncate(_UNITS[expression.unit])
    return start.cast("timestamp").cast("date")  # engines give a time, which Ibis takes for a date


@compiled.register
def _(expression: Choice, table: Value, policy: Policy) -> Value:
    *values, otherwise = _alike(expression.values, kind_of(expression, policy), table, policy)
    conditions = (compiled(condition, table, policy) for condition, _ in expression.branches)
    return ibis.cases(*zip(conditions, values, strict=True), else_=otherwise)


@compiled.register
def _(expression: FirstOf, table: Value, policy: Policy) -> Value:
    return ibis.coalesce(*_alike(expression.values, kind_of(expression, policy), table, policy))


_TYPES = {"number": "float64", "text": "string", "date": "date", "condition": "boolean"}


def _alike(values: tuple[Expression, ...], kind: str | None, table: Value, policy: Policy) -> list[Value]:
    """Values of one type; NULL takes that of the others."""
    type_name = _TYPES[kind or "number"]
    return [
        ibis.null(type_name)
        if isinstance(item, Nothing)
        else _doubled(item, table, policy)
        if kind == "number"
        else compiled(item, table, policy)
        for item in values
    ]


@compiled.register
def _(expression: Comparison, table: Value, policy: Policy) -> Value:
    left, right = compiled(expression.left, table, policy), compiled(expression.right, table, policy)
    if left.type().is_numeric() and not (left.type().is_integer() and right.type().is_integer()):
        left, right = left.cast("float64"), right.cast("float64")
    return _OPERATORS[expression.operator](left, right)


@compiled.register
def _(expression: OneOf, table: Value, policy: Policy) -> Value:
    value = compiled(expression.of, table, policy)
    if value.type().is_string():
        return value.isin(list(expression.values))
    return value.cast("float64").isin([double(float(item)) for item in expression.values])


@compiled.register
def _(expression: Missing, table: Value, policy: Policy) -> Value:
    return compiled(expression.of, table, policy).isnull()


@compiled.register
def _(expression: Like, table: Value, policy: Policy) -> Value:
    return compiled(expression.of, table, policy).like(expression.pattern)


@compiled.register
def _(expression: Always, table: Value, policy: Policy) -> Value:
    return ibis.literal(expression.value)


@compiled.register
def _(expression: Every, table: Value, policy: Policy) -> Value:
    return balanced([compiled(item, table, policy) for item in expression.parts], operator.and_)


@compiled.register
def _(expression: Some, table: Value, policy: Policy) -> Value:
    return balanced([compiled(item, table, policy) for item in expression.parts], operator.or_)


@compiled.register
def _(expression: Negated, table: Value, policy: Policy) -> Value:
    return ~compiled(expression.condition, table, policy)
