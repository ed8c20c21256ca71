"""Numbers in SQL: columns, constants, arithmetic and functions."""

from __future__ import annotations

import math

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.expressions import (
    Applied,
    Arithmetic,
    Choice,
    ColumnValue,
    Comparison,
    Expression,
    Extreme,
    Flag,
    Nothing,
    Number,
    NumberExpression,
    OneOf,
    Remainder,
    Text,
    kind_of,
)
from sfumato.query.names import Names
from sfumato.query.ranges import constant_range, range_of
from sfumato.query.reading import constant, literal_text, parts, shown
from sfumato.query.refusal import QueryRefused
from sfumato.query.translation import as_day, as_number, number, translated, translates

_OPERATORS: dict[type[Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/"}
_FUNCTIONS: dict[type[Expr], str] = {
    exp.Abs: "abs", exp.Floor: "floor", exp.Sqrt: "sqrt", exp.Ln: "ln", exp.Exp: "exp",
}  # fmt: skip
_MOST_POWER = 8
_MOST_DIGITS = 9


@translates(exp.Column)
def _(node: Expr, names: Names) -> Expression:
    column = names.column(node)
    return Flag(column.name) if column.type == "boolean" else ColumnValue(column.name)


@translates(exp.Literal)
def _(node: Expr, names: Names) -> Expression:
    text, value = literal_text(node), constant(node)
    if text is not None:
        return Text(text)
    if value is None:
        raise QueryRefused(f"{shown(node)} is not a number")
    constant_range(value)
    return Number(value)


@translates(exp.Neg)
def _(node: Expr, names: Names) -> Expression:
    inside = number(parts(node, "this")[0], names)
    return Number(-inside.value) if isinstance(inside, Number) else Arithmetic("-", Number(0.0), inside)


@translates(exp.Add, exp.Sub, exp.Mul, exp.Div)
def _(node: Expr, names: Names) -> Expression:
    left, right = (number(item, names) for item in parts(node, "this", "expression"))
    return _folded(Arithmetic(_OPERATORS[type(node)], left, right), names)


def _folded(found: Arithmetic, names: Names) -> Expression:
    """Constants are worked out here, so that 1000 * 1000 is the constant it looks like."""
    if isinstance(found.left, Number) and isinstance(found.right, Number):
        return Number(range_of(found, names.policy).low)
    return found


@translates(exp.Mod)
def _(node: Expr, names: Names) -> Expression:
    of, by = parts(node, "this", "expression")
    if isinstance(of, (exp.Add, exp.Sub)) or isinstance(by, exp.Binary):
        # The parser binds % less tightly than SQL does: it reads a + b % 7 as (a + b) % 7.
        raise QueryRefused(f"{shown(node)} is not answered: write brackets around what % divides")
    divisor = constant(by)
    if divisor is None or not divisor.is_integer():
        raise QueryRefused(f"{shown(node)} is not answered: % takes a whole constant on its right")
    return Remainder(number(of, names), int(divisor))


@translates(exp.IntDiv)
def _(node: Expr, names: Names) -> Expression:
    left, right = (number(item, names) for item in parts(node, "this", "expression"))
    found = Arithmetic("/", left, right)
    if range_of(found, names.policy).low < 0:
        raise QueryRefused("// takes numbers that are never negative; use FLOOR(x / y)")
    return Applied("floor", found)


@translates(exp.Pow)
def _(node: Expr, names: Names) -> Expression:
    of, by = parts(node, "this", "expression")
    power = constant(by)
    if power is None or not power.is_integer() or not 1 <= power <= _MOST_POWER:
        raise QueryRefused(f"a power is a whole constant from 1 to {_MOST_POWER}; for a root use SQRT")
    base = number(of, names)
    names.repeated(base, times=int(power) - 1)
    found = base
    for _ in range(int(power) - 1):
        found = Arithmetic("*", base, found) if found != base else Arithmetic("*", base, base)
    return found


@translates(*_FUNCTIONS)
def _(node: Expr, names: Names) -> Expression:
    return Applied(_FUNCTIONS[type(node)], number(parts(node, "this")[0], names))


@translates(exp.Ceil)
def _(node: Expr, names: Names) -> Expression:
    return _negative(Applied("floor", _negative(number(parts(node, "this")[0], names))))


def _negative(expression: NumberExpression) -> Arithmetic:
    return Arithmetic("-", Number(0.0), expression)


@translates(exp.Log)
def _(node: Expr, names: Names) -> Expression:
    """LOG(x) is base 10 in DuckDB and PostgreSQL; LOG10 and LOG2 come as LOG(base, x)."""
    base, of = parts(node, "this", "expression")
    base, of = (None, base) if of is None else (base, of)
    value = 10.0 if base is None else constant(base)
    if value is None or value <= 1:
        raise QueryRefused("the base of LOG is a constant above 1")
    return Arithmetic("/", Applied("ln", number(of, names)), Number(math.log(value)))


@translates(exp.Round)
def _(node: Expr, names: Names) -> Expression:
    """Half is rounded up, on every engine."""
    of, decimals = parts(node, "this", "decimals")
    digits = 0.0 if decimals is None else constant(decimals)
    if digits is None or not digits.is_integer() or abs(digits) > _MOST_DIGITS:
        raise QueryRefused(f"ROUND takes a whole number of digits from -{_MOST_DIGITS} to {_MOST_DIGITS}")
    value, scale = number(of, names), Number(10.0 ** abs(digits))
    up, down = ("*", "/") if digits > 0 else ("/", "*")
    scaled = Arithmetic(up, value, scale) if digits else value
    rounded = Applied("floor", Arithmetic("+", scaled, Number(0.5)))
    return Arithmetic(down, rounded, scale) if digits else rounded


@translates(exp.Greatest, exp.Least)
def _(node: Expr, names: Names) -> Expression:
    first, others = parts(node, "this", "expressions")
    function = "greatest" if type(node) is exp.Greatest else "least"
    return Extreme(function, tuple(number(item, names) for item in (first, *(others or []))))


@translates(exp.Nullif)
def _(node: Expr, names: Names) -> Expression:
    of, other = (translated(item, names) for item in parts(node, "this", "expression"))
    names.repeated(of)
    if isinstance(other, Number) and kind_of(of, names.policy) == "number":
        return Choice(((Comparison("=", of, other), Nothing()),), of)
    if isinstance(other, Text) and kind_of(of, names.policy) == "text":
        return Choice(((OneOf(of, (other.value,)), Nothing()),), of)
    raise QueryRefused(f"{shown(node)} is not answered: NULLIF takes a constant of the same type")


_SAME_AS_A_NUMBER = ("DOUBLE", "FLOAT", "DECIMAL", "REAL")


@translates(exp.Cast, exp.TryCast)
def _(node: Expr, names: Names) -> Expression:
    """x::DOUBLE is x, since all arithmetic is in doubles; '2024-01-31'::DATE is a day."""
    of, to = parts(node, "this", "to")
    found, wanted = translated(of, names), to.this.name if isinstance(to, exp.DataType) else ""
    if wanted == "DATE":
        return as_day(found, of, names)
    if kind_of(found, names.policy) in ("number", "condition"):
        value = as_number(found, of, names)
        if wanted in _SAME_AS_A_NUMBER or (wanted in ("INT", "BIGINT") and range_of(value, names.policy).whole):
            return value
    raise QueryRefused(
        f"{shown(node)} is not answered: a cast could fail on a row; use ROUND or FLOOR for whole numbers",
        nearest=names.example_count(),
    )
