"""How far a number can reach, from the policy alone: what keeps every expression total on every engine.

Every value in a query is NULL, 0, or between 2⁻⁹² and 2⁵² in size:

- columns are clipped to their bounds, and to 0 below 2⁻⁴⁰ (in `sanitizing`); constants are 0 or in between;
- whole numbers stay whole, and below 2⁵² they are exact;
- what is not whole is rounded, after each product, quotient and function, to a grid that its range gives: for
  values below 2ᵉ, (x + 3·2ᵉ) − 3·2ᵉ is the nearest multiple of 2ᵉ⁻⁵¹. Sums of multiples of 2⁻⁹² are such.

So no product or quotient overflows or underflows a double, and what could leave the range is refused from the
text and the policy. Rounding is monotone, so that the ends of a range bound every value exactly.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import singledispatch

from sfumato.policy import Policy
from sfumato.query.expressions import (
    NUMBER,
    Applied,
    Arithmetic,
    Choice,
    ColumnValue,
    Comparison,
    DateExpression,
    DatePart,
    Day,
    DaysBetween,
    Expression,
    Extreme,
    FirstOf,
    Indicator,
    Missing,
    Nothing,
    Number,
    OneOf,
    Remainder,
    Truncated,
    depth_of,
    kind_of,
    mistyped,
    walk,
)
from sfumato.query.refusal import QueryRefused

LARGEST = 2.0**52
SMALLEST = 2.0**-40
FINEST = 2.0**-92
_BITS = 51
_EXPONENTS = 36.0
MOST_NESTED = 40  # of which each takes an engine's compiler up to 20 calls of the 1,000 that Python nests
_WIDENED = 1 + 2.0**-40
FIRST_DAY, LAST_DAY = datetime.date(1, 1, 1), datetime.date(9999, 12, 31)
DATE_PARTS = {
    "quarter": (1, 4), "month": (1, 12), "week": (1, 53), "day": (1, 31), "doy": (1, 366), "dow": (0, 6),
    "isodow": (1, 7),
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """Every value is NULL or a multiple of `grid` from low to high; the grid of whole numbers is whole."""

    low: float
    high: float
    grid: float

    @property
    def whole(self) -> bool:
        return self.grid >= 1

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))

    def values(self, most: int) -> tuple[int, ...] | None:
        """All values, where they are whole and not too many."""
        if not self.whole or (self.high - self.low) / self.grid >= most:
            return None
        step = int(self.grid)
        return tuple(range(math.ceil(self.low / step) * step, math.floor(self.high / step) * step + 1, step))


def constant_range(value: float) -> Range:
    """A constant: 0, or between 2⁻⁴⁰ and 2⁵² in size."""
    if value != 0 and not SMALLEST <= abs(value) <= LARGEST:
        raise QueryRefused(f"constants are 0 or between 2**-40 and 2**52 in size, got {value:g}")
    return Range(value, value, abs(value) or LARGEST if value.is_integer() else FINEST)


def snapping(size: float) -> float:
    """The constant c with which (x + c) − c rounds numbers up to `size` to their grid."""
    return 3.0 * math.ldexp(1.0, math.frexp(size)[1])


def _snapped(low: float, high: float) -> Range:
    size = max(abs(low), abs(high))
    _check(size)
    if 0 < size < SMALLEST:
        raise QueryRefused("the expression never exceeds 2**-40 in size; multiply it by a constant")
    if size == 0:
        return Range(0.0, 0.0, LARGEST)
    shift = snapping(size)
    grid = min(0.5, math.ldexp(1.0, math.frexp(size)[1] - _BITS))  # below 1: it was not whole before
    return Range((low + shift) - shift, (high + shift) - shift, grid)


def _check(size: float) -> None:
    if not size <= LARGEST:
        raise QueryRefused("the expression can grow beyond 2**52, where whole numbers are no longer exact")


def _common_grid(ranges: Iterable[Range]) -> float:
    grids = [item.grid for item in ranges]
    return float(math.gcd(*map(int, grids))) if min(grids) >= 1 else min(grids)


def union(ranges: Iterable[Range]) -> Range:
    found = list(ranges)
    if not found:
        raise QueryRefused("the expression is NULL on every row")
    return Range(min(item.low for item in found), max(item.high for item in found), _common_grid(found))


@singledispatch
def range_of(expression: Expression, policy: Policy) -> Range:
    """Where a number lies on every row.

    >>> from sfumato.accounting import Budget
    >>> from sfumato.policy import Column
    >>> age = Column(name="age", type="integer", lower=0, upper=120)
    >>> policy = Policy(table="t", source="t.csv", columns={"age": age}, budget=Budget(epsilon=1))
    >>> range_of(Arithmetic("-", Number(18.0), ColumnValue("age")), policy)
    Range(low=-102.0, high=18.0, grid=1.0)
    """
    raise QueryRefused(f"expected a number, got {type(expression).__name__.lower()}")


@range_of.register
def _(expression: ColumnValue, policy: Policy) -> Range:
    column = policy.columns[expression.name]
    if not column.numeric:
        raise QueryRefused(f"column {column.name} is {column.type}, not a number", nearest=_count_of(policy))
    low, high = column.bounds or (-LARGEST, LARGEST)
    return Range(low, high, 1.0 if column.type == "integer" else FINEST)


@range_of.register
def _(expression: Number, policy: Policy) -> Range:
    return constant_range(expression.value)


@range_of.register(Choice)
@range_of.register(FirstOf)
def _(expression: Choice | FirstOf, policy: Policy) -> Range:
    return union(range_of(item, policy) for item in expression.values if not isinstance(item, Nothing))


@range_of.register
def _(expression: Arithmetic, policy: Policy) -> Range:
    left, right = range_of(expression.left, policy), range_of(expression.right, policy)
    if expression.operator in "+-":
        c, d = (right.low, right.high) if expression.operator == "+" else (-right.high, -right.low)
        _check(max(abs(left.low + c), abs(left.high + d)))
        return Range(left.low + c, left.high + d, _common_grid((left, right)))
    if expression.operator == "*":
        return _product(left, right, squared=expression.left == expression.right)
    return _quotient(left, right)


def _product(left: Range, right: Range, *, squared: bool) -> Range:
    ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    low = 0.0 if squared and left.low < 0 < left.high else min(ends)
    if squared and not left.low < 0 < left.high:
        low = min(left.low**2, left.high**2)
    if left.whole and right.whole:
        _check(max(map(abs, ends)))
        return Range(low, max(ends), min(left.grid * right.grid, LARGEST))
    return _snapped(low, max(ends))


def _quotient(left: Range, right: Range) -> Range:
    """x / y where y ≠ 0: y's least size is its grid, or its nearer end."""
    if right.low == right.high == 0:
        raise QueryRefused("the expression divides by 0")
    divisors = [end for end in (right.low, right.high) if end != 0]
    if right.low <= 0 < right.high:
        divisors.append(right.grid)
    if right.low < 0 <= right.high:
        divisors.append(-right.grid)
    ends = [a / b for a in (left.low, left.high) for b in divisors]
    if max(map(abs, ends)) > LARGEST:
        raise QueryRefused(
            "the divisor can come so near to 0 that the quotient grows beyond 2**52; "
            "divide by GREATEST(divisor, 1) or another least value"
        )
    return _snapped(min(ends), max(ends))


@range_of.register
def _(expression: Applied, policy: Policy) -> Range:
    return _FUNCTIONS[expression.function](range_of(expression.of, policy))


def _abs(of: Range) -> Range:
    low = 0.0 if of.low <= 0 <= of.high else min(abs(of.low), abs(of.high))
    return Range(low, of.size, of.grid)


def _floor(of: Range) -> Range:
    return of if of.whole else Range(float(math.floor(of.low)), float(math.floor(of.high)), 1.0)


def _sqrt(of: Range) -> Range:
    if of.low < 0:
        raise QueryRefused("SQRT takes what is never negative: SQRT(GREATEST(x, 0))")
    return _snapped(math.sqrt(of.low), math.sqrt(of.high))


def _ln(of: Range) -> Range:
    if of.high <= 0:
        raise QueryRefused("LN takes what can be positive; it is NULL elsewhere")
    low, high = math.log(of.low if of.low > 0 else of.grid), math.log(of.high)
    return _snapped(min(low * _WIDENED, low / _WIDENED), max(high * _WIDENED, high / _WIDENED))


def _exp(of: Range) -> Range:
    if of.size > _EXPONENTS:
        raise QueryRefused("EXP takes numbers from -36 to 36: EXP(GREATEST(LEAST(x, 36), -36))")
    return _snapped(math.exp(of.low) / _WIDENED, math.exp(of.high) * _WIDENED)


_FUNCTIONS = {"abs": _abs, "floor": _floor, "sqrt": _sqrt, "ln": _ln, "exp": _exp}


@range_of.register
def _(expression: Remainder, policy: Policy) -> Range:
    of = range_of(expression.of, policy)
    if not of.whole or of.low < 0 or not 1 <= expression.divisor <= LARGEST:
        raise QueryRefused("% takes a whole number that is never negative, and a whole constant of at least 1")
    return Range(0.0, min(of.high, expression.divisor - 1.0), 1.0)


@range_of.register
def _(expression: Extreme, policy: Policy) -> Range:
    """NULLs are passed over, but constants are never NULL and bound the result on one side."""
    ranges = [range_of(item, policy) for item in expression.values]
    constants = [item.value for item in expression.values if isinstance(item, Number)]
    found = union(ranges)
    if expression.function == "greatest":
        return Range(max([found.low, *constants]), found.high, found.grid)
    return Range(found.low, min([found.high, *constants]), found.grid)


@range_of.register
def _(expression: Indicator, policy: Policy) -> Range:
    return Range(0.0, 1.0, 1.0)


@range_of.register
def _(expression: DatePart, policy: Policy) -> Range:
    if expression.part == "year":
        first, last = days_of(expression.of, policy)
        return Range(float(first.year), float(last.year), 1.0)
    low, high = DATE_PARTS[expression.part]
    return Range(float(low), float(high), 1.0)


@range_of.register
def _(expression: DaysBetween, policy: Policy) -> Range:
    (a, b), (c, d) = days_of(expression.first, policy), days_of(expression.last, policy)
    return Range(float((c - b).days), float((d - a).days), 1.0)


def days_of(expression: DateExpression, policy: Policy) -> tuple[datetime.date, datetime.date]:
    """The first and the last day a date can be."""
    if isinstance(expression, ColumnValue):
        return policy.columns[expression.name].days or (FIRST_DAY, LAST_DAY)
    if isinstance(expression, Day):
        day = datetime.date.fromisoformat(expression.value)
        return day, day
    if isinstance(expression, Truncated):
        first, last = days_of(expression.of, policy)
        return truncated(expression.unit, first), truncated(expression.unit, last)
    if not isinstance(expression, Choice | FirstOf):
        raise QueryRefused(f"expected a date, got {type(expression).__name__.lower()}")
    found = [days_of(item, policy) for item in expression.values if not isinstance(item, Nothing)]  # type: ignore[arg-type]
    return min(first for first, _ in found), max(last for _, last in found)


def truncated(unit: str, day: datetime.date) -> datetime.date:
    """The first day of the year, quarter, month or (Monday) week; the day itself for "day"."""
    if unit == "week":
        return datetime.date.fromordinal(max(1, day.toordinal() - day.weekday()))
    month = {"year": 1, "quarter": day.month - (day.month - 1) % 3}.get(unit, day.month)
    return day if unit == "day" else day.replace(month=month, day=1)


def check_values(places: Iterable[Expression | None], policy: Policy) -> None:
    """Refuse wrong types, what is NULL on every row, and numbers that leave their range, wherever they are."""
    for place in places:
        if place is not None:
            if depth_of(place) > MOST_NESTED:
                raise QueryRefused(
                    f"the expression is nested more than {MOST_NESTED} levels deep; compute less at a time"
                )
            for wrong in filter(None, (mistyped(item, policy) for item in walk(place))):
                raise QueryRefused(f"an operand has another type: {wrong}")
            _check_value(place, policy)
            for item in walk(place):
                sides = (item.left, item.right) if isinstance(item, Comparison) else ()
                for value in (item.of,) if isinstance(item, OneOf | Missing) else sides:
                    _check_value(value, policy)


def _check_value(expression: Expression, policy: Policy) -> None:
    kind = kind_of(expression, policy)
    if kind is None:
        raise QueryRefused("the expression is NULL on every row")
    if kind == NUMBER:
        range_of(expression, policy)


def public_bounds(expression: Expression, policy: Policy) -> Range:
    """The range of a number that is added up: without bounds one person could move the sum at will."""
    unbounded = [name for name in _measured(expression) if _is_unbounded(name, policy)]
    refused = QueryRefused(
        f"column {', '.join(unbounded)} has no public bounds, without which one person could move the answer "
        "at will; ask for GREATEST(LEAST(column, most), least), or let the holder add lower and upper to it: "
        "sfumato query bounds finds some privately",
        nearest=_count_of(policy),
    )
    try:
        found = range_of(expression, policy)
    except QueryRefused:
        if unbounded:
            raise refused from None
        raise
    if unbounded and found.high - found.low >= LARGEST:
        raise refused
    return found


def _is_unbounded(name: str, policy: Policy) -> bool:
    column = policy.columns[name]
    return column.numeric and column.bounds is None


def _measured(expression: Expression) -> Iterator[str]:
    """The columns whose numbers enter the result, not those that are only compared."""
    if isinstance(expression, ColumnValue):
        yield expression.name
    elif isinstance(expression, Choice):
        for value in expression.values:
            yield from _measured(value)
    elif not isinstance(expression, Indicator) and is_dataclass(expression):
        for part in (getattr(expression, item.name) for item in fields(expression)):
            for item in part if isinstance(part, tuple) else (part,):
                yield from _measured(item)


def _count_of(policy: Policy) -> str:
    return f"SELECT COUNT(*) FROM {policy.table}"
