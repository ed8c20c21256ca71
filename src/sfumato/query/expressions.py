"""Expressions on one row: the kind, the range and the SQL of each operator, and the reading of its node.

Every expression has a value on every row: a number, a text, a date or a condition, or NULL. No operator can
fail on a row, so that no row can stop a query with an error, which would say something about that row. One
class stands for each operator, beside the function that reads it from the parsed SQL; `numbers` and
`conditions` hold them. Every number is NULL, 0, or between 2⁻⁹² and 2⁵² in size:

- columns are clipped to their bounds, and to 0 below 2⁻⁴⁰ (in `sanitizing`); constants are 0 or in between;
- whole numbers stay whole, and below 2⁵² they are exact;
- other numbers are rounded, after each product, quotient and function, to a grid that its range gives: for
  values below 2ᵉ, (x + 3·2ᵉ) − 3·2ᵉ is the nearest multiple of 2ᵉ⁻⁵¹. Sums of multiples of 2⁻⁹² are such.

So no product or quotient overflows or underflows a double, and an expression that could leave the range is
refused from the text and the policy. Rounding is monotone, so that the ends of a range bound every value.

The SQL means the same on every engine. Traps: LEAST and GREATEST skip NULLs, so that clipping with them would
turn a NULL into a bound; Ibis divides whole numbers through doubles; constants written as decimals are not
always the double that was meant. Every operator uses its operand once, so that a text of n characters compiles
to SQL of O(n) characters. Columns come in as `sanitizing` leaves them, under names that no user can choose.
"""

from __future__ import annotations

import datetime
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar

import ibis
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Key, Policy
from sfumato.query.names import Names
from sfumato.query.reading import QueryRefused, parts, shown, walk

Kind = str
NUMBER, TEXT, DATE, CONDITION = "number", "text", "date", "condition"
Value = Any  # an Ibis value expression; Ibis has no types that a checker could follow
Days = tuple[datetime.date, datetime.date]

LARGEST = 2.0**52
SMALLEST = 2.0**-40
FINEST = 2.0**-92
MOST_NESTED = 40  # of which each takes an engine's compiler up to 20 calls of the 1,000 that Python nests
MOST_VALUES = 1_000  # so many values of an expression are listed, from public facts alone
_BITS = 51
_KINDS = {"integer": NUMBER, "real": NUMBER, "text": TEXT, "date": DATE, "boolean": CONDITION}


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

    def values(self) -> tuple[int, ...] | None:
        """All values, where they are whole and not too many."""
        if not self.whole or (self.high - self.low) / self.grid >= MOST_VALUES:
            return None
        step = int(self.grid)
        return tuple(range(math.ceil(self.low / step) * step, math.floor(self.high / step) * step + 1, step))

    def snap(self, value: Value) -> Value:
        """The nearest multiple of the grid."""
        shift = double(self.snapping)
        return value if self.whole else (value + shift) - shift

    @property
    def snapping(self) -> float:
        """The constant c with which (x + c) − c rounds numbers of the range to its grid."""
        return 3.0 * math.ldexp(1.0, math.frexp(self.size)[1])


def snapped(low: float, high: float) -> Range:
    """The range of numbers between these ends once they are rounded to their grid."""
    size = max(abs(low), abs(high))
    check_size(size)
    if 0 < size < SMALLEST:
        raise QueryRefused("the expression never exceeds 2**-40 in size; multiply it by a constant")
    if size == 0:
        return Range(0.0, 0.0, LARGEST)
    shift = Range(low, high, FINEST).snapping
    grid = min(0.5, math.ldexp(1.0, math.frexp(size)[1] - _BITS))  # below 1: it was not whole before
    return Range((low + shift) - shift, (high + shift) - shift, grid)


def check_size(size: float) -> None:
    if not size <= LARGEST:
        raise QueryRefused("the expression can grow beyond 2**52, where whole numbers are no longer exact")


def common_grid(ranges: Iterable[Range]) -> float:
    grids = [item.grid for item in ranges]
    return float(math.gcd(*map(int, grids))) if min(grids) >= 1 else min(grids)


def union(ranges: Iterable[Range]) -> Range:
    found = list(ranges)
    if not found:
        raise QueryRefused("the expression is NULL on every row")
    return Range(min(item.low for item in found), max(item.high for item in found), common_grid(found))


@dataclass(frozen=True)
class Expression(ABC):
    """One operator with its operands.

    `takes` lists the kinds that its operands may have, all of them one; `gives` is its own kind, None if it is
    that of the operands.
    """

    takes: ClassVar[tuple[Kind, ...]] = (NUMBER, TEXT, DATE, CONDITION)
    gives: ClassVar[Kind | None] = None

    @abstractmethod
    def sql(self, rows: Value, policy: Policy) -> Value:
        """An Ibis value: int64 or float64, string, date or boolean."""

    @property
    def operands(self) -> list[Expression]:
        values = (getattr(self, item.name) for item in fields(self))
        inside = (part for value in values for part in (value if isinstance(value, tuple) else (value,)))
        return [part for part in inside if isinstance(part, Expression)]

    def kind(self, policy: Policy) -> Kind | None:
        """Number, text, date or condition; None for NULL alone."""
        if self.gives is not None:
            return self.gives
        return next((found for item in self.operands if (found := item.kind(policy))), None)

    def mistyped(self, policy: Policy) -> str | None:
        """Say which operands the operator takes, if it has others; NULL is taken by a choice alone."""
        kinds = {item.kind(policy) for item in self.operands}
        if self.gives is None:
            kinds -= {None}
        if len(kinds) <= 1 and kinds <= set(self.takes):
            return None
        alike = " of one kind" if len(kinds) > 1 else ""
        found = " and ".join(sorted(kind or "NULL on every row" for kind in kinds))
        return f"expected {' or '.join(self.takes)}{alike}, got {found}"

    def range(self, policy: Policy) -> Range:
        """The range of a number."""
        raise QueryRefused(f"expected a number, got {type(self).__name__.lower()}")

    def days(self, policy: Policy) -> Days:
        """The first and the last day that a date can be."""
        raise QueryRefused(f"expected a date, got {type(self).__name__.lower()}")

    def values(self, policy: Policy) -> tuple[Key, ...] | None:
        """Every value that it can have, where public facts list them."""
        kind = self.kind(policy)
        if kind == CONDITION:
            return False, True
        if kind != NUMBER:
            return None
        found = self.range(policy)
        if not found.whole:
            raise QueryRefused(
                "a key is a whole number, a text, a date or a condition: nearly every real number is one "
                "person's; group by BIN(column, 10), FLOOR or ROUND"
            )
        return found.values()

    def may_be_missing(self) -> bool:
        """Whether it can be NULL on a row."""
        return True

    def measured(self) -> Iterator[str]:
        """The columns whose values enter the result, not those that are only compared."""
        for item in self.operands:
            yield from item.measured()

    def double(self, rows: Value, policy: Policy) -> Value:
        return self.sql(rows, policy).cast("float64")


@dataclass(frozen=True)
class ColumnValue(Expression):
    """A column of the policy, within its bounds."""

    name: str

    def kind(self, policy: Policy) -> Kind:
        return _KINDS[policy.columns[self.name].type]

    def range(self, policy: Policy) -> Range:
        column = policy.columns[self.name]
        if not column.numeric:
            raise QueryRefused(f"column {column.name} is {column.type}, not a number")
        low, high = column.bounds or (-LARGEST, LARGEST)
        return Range(low, high, 1.0 if column.type == "integer" else FINEST)

    def days(self, policy: Policy) -> Days:
        return policy.columns[self.name].days or (datetime.date.min, datetime.date.max)

    def values(self, policy: Policy) -> tuple[Key, ...] | None:
        column = policy.columns[self.name]
        if column.categories is not None:
            return column.categories
        return super().values(policy) if column.type != "date" else days_listed("day", column.days)

    def measured(self) -> Iterator[str]:
        yield self.name

    def sql(self, rows: Value, policy: Policy) -> Value:
        value, column = rows[column_name(self.name, policy)], policy.columns[self.name]
        if column.type != "text" or column.categories is None:
            return value
        # A text that is not declared counts as missing; as a key it is in no group anyway.
        return value.isin(column.categories).ifelse(value, ibis.null("string"))


def column_name(name: str, policy: Policy) -> str:
    """The name of a declared column inside a query: c0, c1, …, so that no name of its own can collide."""
    return f"c{list(policy.columns).index(name)}"


def columns_of(expression: Any) -> Iterator[str]:
    """The columns that expressions read."""
    return (item.name for item in walk(expression) if isinstance(item, ColumnValue))


def first_day(unit: str, day: datetime.date) -> datetime.date:
    """The first day of the year, quarter, month or (Monday) week; the day itself for "day"."""
    if unit == "week":
        return datetime.date.fromordinal(max(1, day.toordinal() - day.weekday()))
    month = {"year": 1, "quarter": day.month - (day.month - 1) % 3}.get(unit, day.month)
    return day if unit == "day" else day.replace(month=month, day=1)


def days_listed(unit: str, declared: Days | None) -> tuple[Key, ...] | None:
    """The first day of each unit between declared days, if they are not too many."""
    if declared is None:
        return None
    first, last = (first_day(unit, day) for day in declared)
    length = {"year": 365, "quarter": 90, "month": 28, "week": 7, "day": 1}[unit]
    if (last - first).days / length >= MOST_VALUES:
        return None
    days = (first + datetime.timedelta(number) for number in range((last - first).days + 1))
    return tuple(dict.fromkeys(first_day(unit, day).isoformat() for day in days))


# ---- from SQL

Reader = Callable[[Any, Names], Expression]
_READERS: dict[type[Expr], Reader] = {}


def reads(*kinds: type[Expr]) -> Callable[[Reader], Reader]:
    """Register the function that reads these kinds of node."""

    def register(function: Reader) -> Reader:
        _READERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def translated(node: Expr, names: Names) -> Expression:
    """Read a node as an expression; a node that no function reads is refused."""
    read = _READERS.get(type(node))
    if read is None:
        raise QueryRefused(
            f"{shown(node)} is not answered: on a row there are columns and constants, arithmetic, CASE, "
            "COALESCE, comparisons, and functions of numbers, texts and dates that cannot fail on any row",
            nearest=names.example_instead(node),
        )
    expression = read(node, names)
    wrong = expression.mistyped(names.policy)
    if wrong is not None:
        raise QueryRefused(f"{shown(node)} is not answered: {wrong}")
    return expression


def operands(node: Expr, names: Names, *arguments: str) -> list[Expression]:
    """The named arguments of a node, each of them read."""
    return [translated(item, names) for item in parts(node, *arguments)]


def condition(node: Expr, names: Names) -> Expression:
    found = translated(node, names)
    if found.kind(names.policy) != CONDITION:
        raise QueryRefused(f"{shown(node)} is no condition; compare it with something")
    return found


@reads(exp.Paren)
def _(node: Expr, names: Names) -> Expression:
    return operands(node, names, "this")[0]


@reads(exp.Column)
def _(node: Expr, names: Names) -> Expression:
    return ColumnValue(names.column(node).name)


# ---- checked before the charge


def check_values(places: Iterable[Expression | None], policy: Policy) -> None:
    """Refuse wrong types, NULL on every row, and numbers that leave their range, at every place."""
    for place in filter(None, places):
        if _depth(place) > MOST_NESTED:
            raise QueryRefused(
                f"the expression is nested more than {MOST_NESTED} levels deep; compute less at a time"
            )
        inside = [item for item in walk(place) if isinstance(item, Expression)]
        for wrong in filter(None, (item.mistyped(policy) for item in inside)):
            raise QueryRefused(f"an operand has another type: {wrong}")
        compared = (value for item in inside if item.gives == CONDITION for value in item.operands)
        for value in (place, *compared):
            kind = value.kind(policy)
            if kind is None:
                raise QueryRefused("the expression is NULL on every row")
            if kind == NUMBER:
                value.range(policy)


def _depth(expression: Any) -> int:
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


def public_bounds(expression: Expression, policy: Policy) -> Range:
    """The range of a number that is added up: without bounds one person could move the sum at will."""
    columns = [policy.columns[name] for name in expression.measured()]
    unbounded = [column.name for column in columns if column.numeric and column.bounds is None]
    refused = QueryRefused(
        f"column {', '.join(unbounded)} has no public bounds, without which one person could move the answer "
        "at will; ask for GREATEST(LEAST(column, most), least), or let the holder add lower and upper to it: "
        "sfumato query bounds finds some privately"
    )
    try:
        found = expression.range(policy)
    except QueryRefused:
        if unbounded:
            raise refused from None
        raise
    if unbounded and found.high - found.low >= LARGEST:
        raise refused
    return found


# ---- to SQL


def double(value: float) -> Value:
    """A constant that is exactly this double on every engine."""
    return ibis.literal(repr(float(value))).cast("float64")


def whole(value: int) -> Value:
    return ibis.literal(value, "int64")


def clip(value: Value, lower: Value, upper: Value) -> Value:
    """`value` within the bounds; NULL stays NULL. The usual case is asked first, for speed."""
    return ibis.cases((value.between(lower, upper), value), (value < lower, lower), (value > upper, upper))


def built_in(name: str, gives: Any, *arguments: Value) -> Value:
    """A function that the engine has and Ibis does not; Ibis casts none of its arguments."""
    return _built_in(name, gives, tuple(value.type() for value in arguments))(*arguments)


@lru_cache(maxsize=256)
def _built_in(name: str, gives: Any, takes: tuple[Any, ...]) -> Callable[..., Value]:
    stubs: dict[int, Callable[..., None]] = {1: lambda a: None, 2: lambda a, b: None, 3: lambda a, b, c: None}
    return ibis.udf.scalar.builtin(name=name, signature=(takes, gives))(stubs[len(takes)])


def whole_quotient(dividend: Value, divisor: Value) -> Value:
    """⌊dividend / divisor⌋ of whole numbers ≥ 0 and ≥ 1, exactly, for quotients below 2⁵⁰.

    DuckDB divides whole numbers. Elsewhere, dividend − dividend mod divisor is a multiple of the divisor;
    rounding both to doubles moves the quotient by less than ½, so that rounding it is exact, where flooring
    would not be.
    """
    if dividend.get_backend().name == "duckdb":
        return built_in("divide", "int64", dividend, divisor)
    multiple = dividend - dividend % divisor
    return (multiple.cast("float64") / divisor.cast("float64")).round().cast("int64")


def steps(
    expression: Expression,
    grid: float,
    first: int,
    last: int,
    rows: Value,
    policy: Policy,
    *,
    origin: float = 0.0,
) -> Value:
    """⌊(x − origin) / grid⌋ of a number within its range, as a whole number from first to last, or NULL.

    It is clipped where it has to be: the engine computes as Python does, and rounding is monotone, so that
    steps lie between those of the ends of the range.
    """
    value, found = expression.sql(rows, policy), expression.range(policy)
    ends = [math.floor((end - origin) * (1 / grid)) for end in (found.low, found.high)]
    if value.type().is_integer() and (1 / grid).is_integer() and float(origin).is_integer():
        counted = value - whole(int(origin)) if origin else value
        counted = counted * whole(int(1 / grid)) if grid != 1 else counted
    else:
        above = value.cast("float64") - double(origin) if origin else value.cast("float64")
        counted = (above * double(1 / grid)).floor().cast("int64")
    return counted if first <= ends[0] and ends[1] <= last else clip(counted, whole(first), whole(last))
