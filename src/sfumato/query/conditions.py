"""Conditions in SQL: true, false or NULL on every row, and never an error."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.expressions import (
    CONDITION,
    DATE,
    NUMBER,
    TEXT,
    Always,
    Cased,
    Choice,
    Comparison,
    Condition,
    Every,
    Expression,
    Like,
    Missing,
    Negated,
    Nothing,
    Number,
    OneOf,
    Some,
    Text,
    kind_of,
)
from sfumato.query.names import Names
from sfumato.query.possible import check_comparison, check_like, check_one_of
from sfumato.query.ranges import constant_range
from sfumato.query.reading import connected, constant, literal_text, parts, shown
from sfumato.query.refusal import QueryRefused
from sfumato.query.translation import alike, as_number, condition, translated, translates

_COMPARISONS: dict[type[Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MOST_WILDCARDS = 10


@translates(exp.And, exp.Or)
def _(node: Expr, names: Names) -> Expression:
    kind = exp.And if type(node) is exp.And else exp.Or
    found = tuple(condition(item, names) for item in connected(node, kind))
    return Every(found) if kind is exp.And else Some(found)


@translates(exp.Not)
def _(node: Expr, names: Names) -> Expression:
    return Negated(condition(parts(node, "this")[0], names))


@translates(exp.Boolean)
def _(node: Expr, names: Names) -> Expression:
    return Always(bool(parts(node, "this")[0]))


@translates(*_COMPARISONS)
def _(node: Expr, names: Names) -> Expression:
    left, right = parts(node, "this", "expression")
    return compared(_COMPARISONS[type(node)], translated(left, names), translated(right, names), node, names)


def compared(operator: str, left: Expression, right: Expression, node: Expr, names: Names) -> Condition:
    """Two values compared, of one kind; texts and conditions with constants only."""
    if isinstance(left, Nothing) or isinstance(right, Nothing):
        raise QueryRefused(f"{shown(node)} is NULL on every row; use IS NULL")
    if isinstance(left, Text | Always | Number) and not isinstance(right, Text | Always | Number):
        left, right, operator = right, left, _MIRRORED[operator]
    kinds = {kind_of(left, names.policy), kind_of(right, names.policy)}
    if DATE in kinds:
        left, right = alike([left, right], node, names)
        return _possible(Comparison(operator, left, right), node, names)
    if kinds == {TEXT}:
        return _same_text(operator, left, right, node, names)
    if kinds == {CONDITION} and isinstance(right, Always):
        return _same_truth(operator, left, right, node)
    if kinds <= {NUMBER, CONDITION} and NUMBER in kinds:
        sides = as_number(left, node, names), as_number(right, node, names)
        return _possible(Comparison(operator, *sides), node, names)
    raise QueryRefused(
        f"{shown(node)} is not answered: compare a column with a constant of its own type",
        nearest=names.example_count(),
    )


def _possible(found: Comparison, node: Expr, names: Names) -> Comparison:
    check_comparison(found, node, names.policy)
    return found


def _one_of(value: Expression, values: tuple[str | float, ...], node: Expr, names: Names) -> OneOf:
    found = OneOf(value, values)
    check_one_of(found, node, names.policy)
    return found


def _same_text(operator: str, left: Expression, right: Expression, node: Expr, names: Names) -> Condition:
    if operator not in ("=", "<>"):
        raise QueryRefused(
            f"{shown(node)} is not answered: engines sort texts differently; use =, <>, IN or LIKE"
        )
    if not isinstance(right, Text):
        raise QueryRefused(f"{shown(node)} is not answered: a text is compared with constants")
    found = _one_of(left, (right.value,), node, names)
    return found if operator == "=" else Negated(found)


def _same_truth(operator: str, left: Expression, right: Always, node: Expr) -> Condition:
    if operator not in ("=", "<>"):
        raise QueryRefused(f"{shown(node)} is not answered: a condition is compared by = and <>")
    same = right.value == (operator == "=")
    return left if same else Negated(left)  # type: ignore[return-value, arg-type]


@translates(exp.Between)
def _(node: Expr, names: Names) -> Expression:
    of, low, high = parts(node, "this", "low", "high")
    value = translated(of, names)
    names.repeated(value)
    return Every(
        (
            compared(">=", value, translated(low, names), node, names),
            compared("<=", value, translated(high, names), node, names),
        )
    )


@translates(exp.In)
def _(node: Expr, names: Names) -> Expression:
    of, items = parts(node, "this", "expressions")
    if not items:
        raise QueryRefused("IN takes a list of constants", nearest=names.example_count())
    value = translated(of, names)
    kind = kind_of(value, names.policy)
    if kind == TEXT:
        return _one_of(value, tuple(_text_constant(item, node) for item in items), node, names)
    if kind == NUMBER:
        return _one_of(value, tuple(_number_constant(item, node) for item in items), node, names)
    names.repeated(value, times=len(items))
    return Some(tuple(compared("=", value, translated(item, names), node, names) for item in items))


def _text_constant(item: Expr, node: Expr) -> str:
    found = literal_text(item)
    if found is None:
        raise QueryRefused(f"{shown(node)} is not answered: the list of IN holds texts, as what is before it")
    return found


def _number_constant(item: Expr, node: Expr) -> float:
    found = constant(item)
    if found is None:
        raise QueryRefused(f"{shown(node)} is not answered: the list of IN holds numbers, as what is before it")
    constant_range(found)
    return found


@translates(exp.Is)
def _(node: Expr, names: Names) -> Expression:
    of, what = parts(node, "this", "expression")
    value = translated(of, names)
    if type(what) is exp.Null:
        return Missing(value)
    if type(what) is exp.Boolean and kind_of(value, names.policy) == CONDITION:
        same = compared("=", value, translated(what, names), node, names)
        return Every((Negated(Missing(value)), same))
    raise QueryRefused(f"IS takes NULL, or TRUE and FALSE after a condition, got {shown(node)}")


@translates(exp.Like, exp.ILike)
def _(node: Expr, names: Names) -> Expression:
    of, pattern = parts(node, "this", "expression")
    value: Any = translated(of, names)
    wanted = literal_text(pattern)
    if wanted is None:
        raise QueryRefused("LIKE takes a text and a pattern such as 'abc%'")
    if wanted.count("%") + wanted.count("_") > _MOST_WILDCARDS:
        raise QueryRefused(f"a pattern of LIKE has at most {_MOST_WILDCARDS} of % and _")
    lowered = type(node) is exp.ILike
    found = Like(Cased("lower", value), wanted.lower()) if lowered else Like(value, wanted)
    check_like(found, node, names.policy)
    return found


@translates(exp.Case)
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
