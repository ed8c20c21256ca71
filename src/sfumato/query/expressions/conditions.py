"""Conditions, true, false or NULL on every row, and the choices between values that hang on them.

A condition that no row can meet by the policy alone was asked for by mistake, and is refused before the charge.
"""

from __future__ import annotations

import datetime
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ibis
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Key, Policy
from sfumato.query.expressions.base import (
    CONDITION,
    DATE,
    LARGEST,
    NUMBER,
    TEXT,
    Days,
    Expression,
    Kind,
    Range,
    Value,
    condition,
    double,
    operands,
    reads,
    translated,
    union,
)
from sfumato.query.expressions.dates import Cased, Text, as_date, date
from sfumato.query.expressions.numbers import Number, as_number, constant_range
from sfumato.query.names import Names
from sfumato.query.reading import QueryRefused, balanced, connected, constant, literal_text, parts, shown

_MOST_WILDCARDS = 10
_MOST_SHOWN = 10
_REMEDY = "ask within that, or the holder can declare more"
_SAME_AS_A_NUMBER = ("DOUBLE", "FLOAT", "DECIMAL", "REAL")


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
    condition: Expression

    def sql(self, rows: Value, policy: Policy) -> Value:
        return ~self.condition.sql(rows, policy)


@reads(exp.Not)
def _(node: Expr, names: Names) -> Expression:
    return Negated(condition(parts(node, "this")[0], names))


@dataclass(frozen=True)
class Missing(Expression):
    """NULL."""

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


# ---- comparisons


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
class Comparison(Expression):
    """Two numbers, or two dates, compared: <, <=, >, >=, =, <>."""

    operator: str
    left: Expression
    right: Expression
    takes = (NUMBER, DATE)
    gives = CONDITION

    def refuse_impossible(self, node: Expr, policy: Policy) -> None:
        ends = _days if DATE in (self.left.kind(policy), self.right.kind(policy)) else _numbers
        left, right = ends(self.left, policy), ends(self.right, policy)
        _, _, meet = _COMPARISONS[self.operator]
        if left is None or right is None or meet(*left, *right):
            return
        one_row = policy.unit.column is not None and policy.unit.rows == 1
        # Where every person has one row, a count of their rows may be compared.
        further = ", and a sub-query counts further than unit.rows with LEAST(COUNT(*), 20)" if one_row else ""
        raise QueryRefused(
            f"{shown(node)} is true on no row: under the policy the left side lies between {_end(left[0])} and "
            f"{_end(left[1])}; {_REMEDY}{further}"
        )

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


def _end(value: float | datetime.date) -> str:
    return value.isoformat() if isinstance(value, datetime.date) else f"{value:g}"


@reads(*_SYMBOLS)
def _(node: Expr, names: Names) -> Expression:
    left, right = operands(node, names, "this", "expression")
    return compared(_SYMBOLS[type(node)], left, right, node, names)


def compared(wanted: str, left: Expression, right: Expression, node: Expr, names: Names) -> Expression:
    """Two values compared, of one kind; texts and conditions with constants only."""
    if isinstance(left, Nothing) or isinstance(right, Nothing):
        raise QueryRefused(f"{shown(node)} is NULL on every row; use IS NULL")
    if isinstance(left, Text | Always | Number) and not isinstance(right, Text | Always | Number):
        left, right, wanted = right, left, _COMPARISONS[wanted][1]
    kinds = {left.kind(names.policy), right.kind(names.policy)}
    if kinds == {TEXT}:
        return _same_text(wanted, left, right, node, names)
    if kinds == {CONDITION} and isinstance(right, Always):
        return _same_truth(wanted, left, right, node)
    if DATE in kinds:
        left, right = alike([left, right], node, names)
    elif kinds <= {NUMBER, CONDITION} and NUMBER in kinds:
        left, right = as_number(left, node, names), as_number(right, node, names)
    else:
        raise QueryRefused(
            f"{shown(node)} is not answered: compare a column with a constant of its own type",
            nearest=names.example_count(),
        )
    found = Comparison(wanted, left, right)
    found.refuse_impossible(node, names.policy)
    return found


def _same_text(wanted: str, left: Expression, right: Expression, node: Expr, names: Names) -> Expression:
    if wanted not in ("=", "<>"):
        raise QueryRefused(
            f"{shown(node)} is not answered: engines sort texts differently; use =, <>, IN or LIKE"
        )
    if not isinstance(right, Text):
        raise QueryRefused(f"{shown(node)} is not answered: a text is compared with constants")
    found = _one_of(left, (right.value,), node, names)
    return found if wanted == "=" else Negated(found)


def _same_truth(wanted: str, left: Expression, right: Always, node: Expr) -> Expression:
    if wanted not in ("=", "<>"):
        raise QueryRefused(f"{shown(node)} is not answered: a condition is compared by = and <>")
    return left if right.value == (wanted == "=") else Negated(left)


@reads(exp.Between)
def _(node: Expr, names: Names) -> Expression:
    of, low, high = parts(node, "this", "low", "high")
    value = translated(of, names)
    names.repeated(value)
    ends = ((">=", low), ("<=", high))
    return Every(tuple(compared(wanted, value, translated(end, names), node, names) for wanted, end in ends))


@dataclass(frozen=True)
class OneOf(Expression):
    """A text or a number that is one of these constants."""

    of: Expression
    constants: tuple[str | float, ...]
    takes = (NUMBER, TEXT)
    gives = CONDITION

    def refuse_impossible(self, node: Expr, policy: Policy) -> None:
        """Refuse a list with a category that is not declared, or a number too large."""
        if self.of.kind(policy) == NUMBER:
            low, high = _numbers(self.of, policy) or (-math.inf, math.inf)
            impossible = [item for item in self.constants if not low <= float(item) <= high]
            allowed = f"between {low:g} and {high:g}"
        else:
            known = self.of.values(policy)
            impossible = [item for item in self.constants if known is not None and item not in known]
            allowed = f"one of {_listed(known or ())}"
        if impossible:
            raise QueryRefused(
                f"{shown(node)} asks for {_listed(impossible)}, which no row has: under the policy it is "
                f"{allowed}; {_REMEDY}"
            )

    def sql(self, rows: Value, policy: Policy) -> Value:
        value = self.of.sql(rows, policy)
        if value.type().is_string():
            return value.isin(list(self.constants))
        return value.cast("float64").isin([double(float(item)) for item in self.constants])


def _listed(values: Any) -> str:
    items = [repr(item) if isinstance(item, str) else f"{item:g}" for item in list(values)[:_MOST_SHOWN]]
    return ", ".join(items) + (", …" if len(list(values)) > _MOST_SHOWN else "")


def _one_of(value: Expression, constants: tuple[str | float, ...], node: Expr, names: Names) -> OneOf:
    found = OneOf(value, constants)
    found.refuse_impossible(node, names.policy)
    return found


@reads(exp.In)
def _(node: Expr, names: Names) -> Expression:
    of, items = parts(node, "this", "expressions")
    if not items:
        raise QueryRefused("IN takes a list of constants", nearest=names.example_count())
    value = translated(of, names)
    kind = value.kind(names.policy)
    if kind not in (TEXT, NUMBER):
        names.repeated(value, times=len(items))
        return Some(tuple(compared("=", value, translated(item, names), node, names) for item in items))
    constants = [literal_text(item) if kind == TEXT else constant(item) for item in items]
    for found in constants:
        if found is None:
            raise QueryRefused(
                f"{shown(node)} is not answered: the list of IN holds {kind}s, as what is before it"
            )
        if isinstance(found, float):
            constant_range(found)
    return _one_of(value, tuple(constants), node, names)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Like(Expression):
    """A text that matches a pattern of % and _."""

    of: Expression
    pattern: str
    takes = (TEXT,)
    gives = CONDITION

    def refuse_impossible(self, node: Expr, policy: Policy) -> None:
        """Refuse a pattern that fits no declared category."""
        known = self.of.values(policy)
        wanted = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in self.pattern)
        if known is not None and not any(re.fullmatch(wanted, str(item), re.DOTALL) for item in known):
            raise QueryRefused(
                f"{shown(node)} is true on no row: under the policy it is one of {_listed(known)}; {_REMEDY}"
            )

    def sql(self, rows: Value, policy: Policy) -> Value:
        return self.of.sql(rows, policy).like(self.pattern)


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
    found.refuse_impossible(node, names.policy)
    return found


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


def alike(values: list[Expression], node: Expr, names: Names) -> tuple[Expression, ...]:
    """Values of one kind: texts become days beside dates."""

    def kinds() -> set[Kind | None]:
        return {item.kind(names.policy) for item in values} - {None}

    if DATE in kinds():
        values = [as_date(item) for item in values]
    if len(kinds()) > 1:
        raise QueryRefused(f"{shown(node)} mixes {' and '.join(sorted(map(str, kinds())))}")
    return tuple(values)


@reads(exp.Coalesce)
def _(node: Expr, names: Names) -> Expression:
    first, others = parts(node, "this", "expressions")
    return FirstOf(alike([translated(item, names) for item in (first, *(others or []))], node, names))


@reads(exp.If)
def _(node: Expr, names: Names) -> Expression:
    test, then, otherwise = parts(node, "this", "true", "false")
    values = [translated(item, names) if item is not None else Nothing() for item in (then, otherwise)]
    then, otherwise = alike(values, node, names)
    return Choice(((condition(test, names), then),), otherwise)


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
        return Choice(((Comparison("=", of, other), Nothing()),), of)
    if isinstance(other, Text) and of.kind(names.policy) == TEXT:
        return Choice(((OneOf(of, (other.value,)), Nothing()),), of)
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
        if wanted in _SAME_AS_A_NUMBER or (wanted in ("INT", "BIGINT") and value.range(names.policy).whole):
            return value
    raise QueryRefused(
        f"{shown(node)} is not answered: a cast could fail on a row; use ROUND or FLOOR for whole numbers",
        nearest=names.example_count(),
    )
