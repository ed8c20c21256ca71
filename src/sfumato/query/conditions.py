"""Numbers and conditions in SQL → expressions that cannot fail on any row."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.expressions import (
    Arithmetic,
    Both,
    Choice,
    ColumnValue,
    Comparison,
    Condition,
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
from sfumato.query.names import Names
from sfumato.query.policy import Column, Key
from sfumato.query.refusal import QueryRefused

_ARITHMETIC: dict[type[Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/"}
_COMPARISONS: dict[type[Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def translate_number(node: Expr, names: Names) -> NumberExpression:
    """A number on every row: columns, constants, +, -, *, / by a constant, CASE."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        return _number_column(node, names)
    if isinstance(node, exp.Literal) and not node.is_string:
        return Number(_finite(node))
    if isinstance(node, exp.Neg):
        return _negative(node, names)
    if type(node) in _ARITHMETIC:
        return _arithmetic(node, names)
    if isinstance(node, exp.Case):
        return _choice(node, names)
    raise QueryRefused(
        f"{node.sql(dialect='duckdb')} is not answered: numbers are columns, constants, +, -, *, / by a "
        "constant and CASE, which cannot fail on any row",
        nearest=names.example_count(),
    )


def _number_column(node: Expr, names: Names) -> ColumnValue:
    column = names.column(node)
    if not column.numeric:
        raise QueryRefused(
            f"column {column.name} is {column.type}, not a number", nearest=names.example_for(column.name)
        )
    return ColumnValue(column.name)


def _negative(node: Expr, names: Names) -> NumberExpression:
    inside = translate_number(node.this, names)
    return Number(-inside.value) if isinstance(inside, Number) else Arithmetic("-", Number(0.0), inside)


def _arithmetic(node: Expr, names: Names) -> NumberExpression:
    left, right = translate_number(node.this, names), translate_number(node.expression, names)
    operator = _ARITHMETIC[type(node)]
    if operator == "/" and not (isinstance(right, Number) and right.value != 0):
        raise QueryRefused("division is by a constant other than 0 only: it must not fail on any row")
    found = Arithmetic(operator, left, right)
    bounds = interval(found, names.policy)  # refuses columns without bounds, and what could overflow
    return Number(bounds[0]) if isinstance(left, Number) and isinstance(right, Number) else found


def _choice(node: exp.Case, names: Names) -> NumberExpression:
    otherwise = node.args.get("default")
    if node.this is not None or otherwise is None:
        raise QueryRefused("CASE is answered in the form CASE WHEN condition THEN number ELSE number END")
    found = translate_number(otherwise, names)
    for branch in reversed(node.args["ifs"]):
        found = Choice(
            translate_condition(branch.this, names), translate_number(branch.args["true"], names), found
        )
        interval(found, names.policy)
    return found


def translate_condition(node: Expr, names: Names) -> Condition:
    """A condition that is true, false or NULL on every row, and never an error."""
    node = node.unnest()
    if isinstance(node, exp.And | exp.Or):
        kind = Both if isinstance(node, exp.And) else Either
        return kind(translate_condition(node.this, names), translate_condition(node.expression, names))
    if isinstance(node, exp.Not):
        return Negated(translate_condition(node.this, names))
    if type(node) in _COMPARISONS:
        return _comparison(_COMPARISONS[type(node)], node.this, node.expression, names)
    translate = _OTHER_CONDITIONS.get(type(node))
    if translate is not None:
        return translate(node, names)
    raise QueryRefused(
        f"the condition {node.sql(dialect='duckdb')} is not answered; there are comparisons, BETWEEN, IN, IS "
        "NULL, LIKE, AND, OR and NOT",
        nearest=names.example_count(),
    )


def _comparison(operator: str, left: Expr, right: Expr, names: Names) -> Condition:
    left, right = left.unnest(), right.unnest()
    if not isinstance(left, exp.Column) and isinstance(right, exp.Column):
        left, right, operator = right, left, _MIRRORED[operator]
    if isinstance(left, exp.Column):
        column = names.column(left)
        if column.type == "date":
            return DateComparison(operator, column.name, _day(right))
        if not column.numeric:
            return _equality(operator, column, right)
    return Comparison(operator, translate_number(left, names), translate_number(right, names))


def _equality(operator: str, column: Column, value: Expr) -> Condition:
    if operator not in ("=", "<>"):
        raise QueryRefused(
            f"column {column.name} is {column.type}, which engines sort differently; compare it with =, <>, IN"
        )
    found = OneOf(column.name, (_constant(column, value),))
    return found if operator == "=" else Negated(found)


def _constant(column: Column, node: Expr) -> Key | float:
    node = node.unnest()
    if column.type == "text" and isinstance(node, exp.Literal) and node.is_string:
        return _plain_text(node.name)
    if column.type == "boolean" and isinstance(node, exp.Boolean):
        return bool(node.this)
    if column.numeric:
        sign, inside = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
        if isinstance(inside, exp.Literal) and not inside.is_string:
            return sign * _finite(inside)
    raise QueryRefused(
        f"column {column.name} is {column.type}; compare it with a constant of that type, "
        f"not with {node.sql(dialect='duckdb')}"
    )


def _finite(node: exp.Literal) -> float:
    value = float(node.name)
    if abs(value) > 2.0**52:
        raise QueryRefused(f"constants lie within ±2**52, got {node.name}")
    return value


def _plain_text(text: str) -> str:
    if "\\" in text or "\x00" in text:
        raise QueryRefused(
            "texts with a backslash or a null character mean different things to different engines"
        )
    return text


def _day(node: Expr) -> str:
    inside = node.this if isinstance(node, exp.Cast) and node.to.is_type("date") else node
    try:
        if isinstance(inside, exp.Literal) and inside.is_string and _DAY.fullmatch(inside.name):
            return datetime.date.fromisoformat(inside.name).isoformat()
    except ValueError:
        pass
    raise QueryRefused("a date column is compared with a day such as '2024-01-31'")


def _between(node: Expr, names: Names) -> Condition:
    low = _comparison(">=", node.this, node.args["low"], names)
    return Both(low, _comparison("<=", node.this, node.args["high"], names))


def _membership(node: Expr, names: Names) -> Condition:
    column = names.column(node.this)
    if node.args.get("query") or node.args.get("unnest") or node.args.get("field") or not node.expressions:
        raise QueryRefused("IN takes a list of constants; sub-queries are not answered")
    if column.type == "date":
        raise QueryRefused(f"column {column.name} is a date; compare it with =, <, > or BETWEEN")
    return OneOf(column.name, tuple(_constant(column, item) for item in node.expressions))


def _is(node: Expr, names: Names) -> Condition:
    column = names.column(node.this)
    if isinstance(node.expression, exp.Null):
        return Missing(column.name)
    if isinstance(node.expression, exp.Boolean) and column.type == "boolean":
        same = OneOf(column.name, (bool(node.expression.this),))
        return Both(Negated(Missing(column.name)), same)
    raise QueryRefused(
        f"IS takes NULL, or TRUE and FALSE for a boolean column, got {node.sql(dialect='duckdb')}"
    )


def _like(node: Expr, names: Names) -> Condition:
    column = names.column(node.this)
    pattern = node.expression
    if column.type != "text" or not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise QueryRefused("LIKE takes a text column and a text such as 'abc%'")
    text = _plain_text(pattern.name)
    place = {(False, False): "is", (False, True): "starts", (True, False): "ends", (True, True): "contains"}[
        text.startswith("%"), len(text) > 1 and text.endswith("%")
    ]
    core = text.removeprefix("%") if place in ("ends", "contains") else text
    core = core.removesuffix("%") if place in ("starts", "contains") else core
    if "%" in core or "_" in core or not core:
        raise QueryRefused("LIKE takes % at the ends of a text only: 'abc%', '%abc' or '%abc%'")
    return OneOf(column.name, (core,)) if place == "is" else TextMatch(column.name, place, core)


def _flag(node: Expr, names: Names) -> Condition:
    column = names.column(node)
    if column.type != "boolean":
        raise QueryRefused(f"column {column.name} is {column.type}; a condition compares it with something")
    return OneOf(column.name, (True,))


_OTHER_CONDITIONS: dict[type[Expr], Callable[[Any, Names], Condition]] = {
    exp.Between: _between,
    exp.In: _membership,
    exp.Is: _is,
    exp.Like: _like,
    exp.Column: _flag,
}
