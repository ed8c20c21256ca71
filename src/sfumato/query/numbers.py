"""Numbers: constants, arithmetic and functions. All arithmetic is in doubles."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import ibis
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.expressions import (
    CONDITION,
    FINEST,
    LARGEST,
    NUMBER,
    SMALLEST,
    Expression,
    Range,
    Value,
    check_size,
    common_grid,
    double,
    reads,
    snapped,
    translated,
    union,
    whole,
)
from sfumato.query.names import Names
from sfumato.query.reading import QueryRefused, constant, parts, shown

_EXPONENTS = 36.0
_MOST_POWER, _MOST_DIGITS = 8, 9
_WIDENED = 1 + 2.0**-40


@dataclass(frozen=True)
class OfNumbers(Expression):
    """An operator of numbers that gives a number."""

    takes = (NUMBER,)
    gives = NUMBER


@dataclass(frozen=True)
class Number(OfNumbers):
    """A constant: 0, or between 2⁻⁴⁰ and 2⁵² in size."""

    value: float

    def range(self, policy: Policy) -> Range:
        return constant_range(self.value)

    def may_be_missing(self) -> bool:
        return False

    def sql(self, rows: Value, policy: Policy) -> Value:
        return double(self.value)


def constant_range(value: float) -> Range:
    if value != 0 and not SMALLEST <= abs(value) <= LARGEST:
        raise QueryRefused(f"constants are 0 or between 2**-40 and 2**52 in size, got {value:g}")
    return Range(value, value, abs(value) or LARGEST if value.is_integer() else FINEST)


@dataclass(frozen=True)
class Indicator(Expression):
    """1 where the condition holds, 0 where it does not, NULL where it is NULL."""

    condition: Expression
    takes = (CONDITION,)
    gives = NUMBER

    def range(self, policy: Policy) -> Range:
        return Range(0.0, 1.0, 1.0)

    def measured(self) -> Iterator[str]:
        return iter(())

    def sql(self, rows: Value, policy: Policy) -> Value:
        return self.condition.sql(rows, policy).cast("int32").cast("int64")


def number(node: Expr, names: Names) -> Expression:
    """The number that a node means; a condition counts as 1 and 0."""
    return as_number(translated(node, names), node, names)


def as_number(expression: Expression, node: Expr, names: Names) -> Expression:
    kind = expression.kind(names.policy)
    if kind == CONDITION:
        return Indicator(expression)
    if kind not in (NUMBER, None):
        raise QueryRefused(f"{shown(node)} is a {kind}, not a number", nearest=names.example_for_node(node))
    return expression


# ---- arithmetic


@dataclass(frozen=True)
class Arithmetic(OfNumbers):
    """An operator of two numbers."""

    left: Expression
    right: Expression

    def range(self, policy: Policy) -> Range:
        return self.reach(self.left.range(policy), self.right.range(policy))

    def sql(self, rows: Value, policy: Policy) -> Value:
        return self.value(self.left.double(rows, policy), self.right.double(rows, policy), self.range(policy))

    @abstractmethod
    def reach(self, left: Range, right: Range) -> Range: ...
    @abstractmethod
    def value(self, left: Value, right: Value, found: Range) -> Value: ...


class Plus(Arithmetic):
    def reach(self, left: Range, right: Range) -> Range:
        found = Range(left.low + right.low, left.high + right.high, common_grid((left, right)))
        check_size(found.size)
        return found

    def value(self, left: Value, right: Value, found: Range) -> Value:
        return left + right


class Minus(Plus):
    def reach(self, left: Range, right: Range) -> Range:
        return super().reach(left, Range(-right.high, -right.low, right.grid))

    def value(self, left: Value, right: Value, found: Range) -> Value:
        return left - right


class Times(Arithmetic):
    def reach(self, left: Range, right: Range) -> Range:
        ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
        low = min(ends)
        if self.left == self.right:  # a square is never negative
            low = 0.0 if left.low < 0 < left.high else min(left.low**2, left.high**2)
        if not (left.whole and right.whole):
            return snapped(low, max(ends))
        check_size(max(map(abs, ends)))
        return Range(low, max(ends), min(left.grid * right.grid, LARGEST))

    def value(self, left: Value, right: Value, found: Range) -> Value:
        return found.snap(left * right)


class Over(Arithmetic):
    """x / y, NULL where y is 0; where it is not, its least size is its grid, or its nearer end."""

    def reach(self, left: Range, right: Range) -> Range:
        if right.low == right.high == 0:
            raise QueryRefused("the expression divides by 0")
        divisors = [end for end in (right.low, right.high) if end != 0]
        divisors += [right.grid] if right.low <= 0 < right.high else []
        divisors += [-right.grid] if right.low < 0 <= right.high else []
        ends = [a / b for a in (left.low, left.high) for b in divisors]
        if max(map(abs, ends)) > LARGEST:
            raise QueryRefused(
                "the divisor can come so near to 0 that the quotient grows beyond 2**52; "
                "divide by GREATEST(divisor, 1) or another least value"
            )
        return snapped(min(ends), max(ends))

    def value(self, left: Value, right: Value, found: Range) -> Value:
        return found.snap(left / right.nullif(double(0.0)))


_OPERATORS: dict[type[Expr], type[Arithmetic]] = {exp.Add: Plus, exp.Sub: Minus, exp.Mul: Times, exp.Div: Over}


@reads(*_OPERATORS)
def _(node: Expr, names: Names) -> Expression:
    """Two constants make one, so that 1000 * 1000 is the constant it looks like."""
    left, right = (number(item, names) for item in parts(node, "this", "expression"))
    found = _OPERATORS[type(node)](left, right)
    if isinstance(left, Number) and isinstance(right, Number):
        return Number(found.range(names.policy).low)
    return found


@reads(exp.Neg)
def _(node: Expr, names: Names) -> Expression:
    inside = number(parts(node, "this")[0], names)
    return Number(-inside.value) if isinstance(inside, Number) else _negative(inside)


def _negative(expression: Expression) -> Expression:
    return Minus(Number(0.0), expression)


@dataclass(frozen=True)
class Remainder(OfNumbers):
    """A whole number ≥ 0 modulo a constant."""

    of: Expression
    divisor: int

    def range(self, policy: Policy) -> Range:
        of = self.of.range(policy)
        if not of.whole or of.low < 0 or not 1 <= self.divisor <= LARGEST:
            raise QueryRefused(
                "% takes a whole number that is never negative, and a whole constant of at least 1"
            )
        return Range(0.0, min(of.high, self.divisor - 1.0), 1.0)

    def sql(self, rows: Value, policy: Policy) -> Value:
        self.range(policy)
        return self.of.sql(rows, policy).cast("int64") % whole(self.divisor)


@reads(exp.Mod)
def _(node: Expr, names: Names) -> Expression:
    of, by = parts(node, "this", "expression")
    if isinstance(of, (exp.Add, exp.Sub)) or isinstance(by, exp.Binary):
        # The parser binds % less tightly than SQL does: it reads a + b % 7 as (a + b) % 7.
        raise QueryRefused(f"{shown(node)} is not answered: write brackets around both sides of %")
    divisor = constant(by)
    if divisor is None or not divisor.is_integer():
        raise QueryRefused(f"{shown(node)} is not answered: % takes a whole constant on its right")
    return Remainder(number(of, names), int(divisor))


@reads(exp.IntDiv)
def _(node: Expr, names: Names) -> Expression:
    found = Over(*(number(item, names) for item in parts(node, "this", "expression")))
    if found.range(names.policy).low < 0:
        raise QueryRefused("// takes numbers that are never negative; use FLOOR(x / y)")
    return Floor(found)


@reads(exp.Pow)
def _(node: Expr, names: Names) -> Expression:
    of, by = parts(node, "this", "expression")
    power = constant(by)
    if power is None or not power.is_integer() or not 1 <= power <= _MOST_POWER:
        raise QueryRefused(f"a power is a whole constant from 1 to {_MOST_POWER}; for a root use SQRT")
    base = found = number(of, names)
    names.repeated(base, times=int(power) - 1)
    for _ in range(int(power) - 1):
        found = Times(base, found)
    return found


# ---- functions


@dataclass(frozen=True)
class Function(OfNumbers):
    """A function of one number, total as LN is NULL where it is not defined."""

    of: Expression

    def range(self, policy: Policy) -> Range:
        return self.reach(self.of.range(policy))

    def sql(self, rows: Value, policy: Policy) -> Value:
        return self.value(self.of.double(rows, policy), self.range(policy))

    @abstractmethod
    def reach(self, of: Range) -> Range: ...
    @abstractmethod
    def value(self, of: Value, found: Range) -> Value: ...


class Abs(Function):
    def reach(self, of: Range) -> Range:
        low = 0.0 if of.low <= 0 <= of.high else min(abs(of.low), abs(of.high))
        return Range(low, of.size, of.grid)

    def value(self, of: Value, found: Range) -> Value:
        return of.abs().cast("float64")


class Floor(Function):
    def reach(self, of: Range) -> Range:
        return of if of.whole else Range(float(math.floor(of.low)), float(math.floor(of.high)), 1.0)

    def value(self, of: Value, found: Range) -> Value:
        return of.floor().cast("float64")


class Sqrt(Function):
    def reach(self, of: Range) -> Range:
        if of.low < 0:
            raise QueryRefused("SQRT takes numbers that are never negative: SQRT(GREATEST(x, 0))")
        return snapped(math.sqrt(of.low), math.sqrt(of.high))

    def value(self, of: Value, found: Range) -> Value:
        return found.snap(of.abs().sqrt())


class Ln(Function):
    def reach(self, of: Range) -> Range:
        if of.high <= 0:
            raise QueryRefused("LN takes numbers that can be positive; it is NULL elsewhere")
        low, high = math.log(of.low if of.low > 0 else of.grid), math.log(of.high)
        return snapped(min(low * _WIDENED, low / _WIDENED), max(high * _WIDENED, high / _WIDENED))

    def value(self, of: Value, found: Range) -> Value:
        return found.snap(ibis.greatest(of, double(0.0)).nullif(double(0.0)).ln())


class Exp(Function):
    def reach(self, of: Range) -> Range:
        if of.size > _EXPONENTS:
            raise QueryRefused("EXP takes numbers from -36 to 36: EXP(GREATEST(LEAST(x, 36), -36))")
        return snapped(math.exp(of.low) / _WIDENED, math.exp(of.high) * _WIDENED)

    def value(self, of: Value, found: Range) -> Value:
        return found.snap(of.exp())


_FUNCTIONS: dict[type[Expr], type[Function]] = {
    exp.Abs: Abs, exp.Floor: Floor, exp.Sqrt: Sqrt, exp.Ln: Ln, exp.Exp: Exp,
}  # fmt: skip


@reads(*_FUNCTIONS)
def _(node: Expr, names: Names) -> Expression:
    return _FUNCTIONS[type(node)](number(parts(node, "this")[0], names))


@reads(exp.Ceil)
def _(node: Expr, names: Names) -> Expression:
    return _negative(Floor(_negative(number(parts(node, "this")[0], names))))


@reads(exp.Log)
def _(node: Expr, names: Names) -> Expression:
    """LOG(x) is base 10 in DuckDB and PostgreSQL; LOG10 and LOG2 come as LOG(base, x)."""
    base, of = parts(node, "this", "expression")
    base, of = (None, base) if of is None else (base, of)
    value = 10.0 if base is None else constant(base)
    if value is None or value <= 1:
        raise QueryRefused("the base of LOG is a constant above 1")
    return Over(Ln(number(of, names)), Number(math.log(value)))


@reads(exp.Round)
def _(node: Expr, names: Names) -> Expression:
    """Half is rounded up, on every engine."""
    of, decimals = parts(node, "this", "decimals")
    digits = 0.0 if decimals is None else constant(decimals)
    if digits is None or not digits.is_integer() or abs(digits) > _MOST_DIGITS:
        raise QueryRefused(f"ROUND takes a whole number of digits from -{_MOST_DIGITS} to {_MOST_DIGITS}")
    value, scale = number(of, names), Number(10.0 ** abs(digits))
    up, down = (Times, Over) if digits > 0 else (Over, Times)
    rounded = Floor(Plus(up(value, scale) if digits else value, Number(0.5)))
    return down(rounded, scale) if digits else rounded


@dataclass(frozen=True)
class Greatest(OfNumbers):
    """The largest; NULLs are passed over, but constants are never NULL and bound it."""

    items: tuple[Expression, ...]

    def range(self, policy: Policy) -> Range:
        found = union(item.range(policy) for item in self.items)
        return self.bounded(found, [item.value for item in self.items if isinstance(item, Number)])

    def bounded(self, found: Range, constants: list[float]) -> Range:
        return Range(max([found.low, *constants]), found.high, found.grid)

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ibis.greatest(*(item.double(rows, policy) for item in self.items))


class Least(Greatest):
    """The smallest, likewise."""

    def bounded(self, found: Range, constants: list[float]) -> Range:
        return Range(found.low, min([found.high, *constants]), found.grid)

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ibis.least(*(item.double(rows, policy) for item in self.items))


@reads(exp.Greatest, exp.Least)
def _(node: Expr, names: Names) -> Expression:
    first, others = parts(node, "this", "expressions")
    kind = Greatest if type(node) is exp.Greatest else Least
    return kind(tuple(number(item, names) for item in (first, *(others or []))))
