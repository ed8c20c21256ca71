"""SQL → expressions, node by node: what has no translation is refused.

Each kind of node has one function, registered by its type in `conditions`, `arithmetic` and `texts_and_dates`.
A text that is not a date, a number where a condition is wanted and the like are refused here, from the text and
the policy alone.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.expressions import (
    CONDITION,
    DATE,
    NUMBER,
    Choice,
    Condition,
    Day,
    Expression,
    Indicator,
    Nothing,
    Text,
    kind_of,
    mistyped,
)
from sfumato.query.names import Names
from sfumato.query.reading import parts, shown
from sfumato.query.refusal import QueryRefused

Translation = Callable[[Any, Names], Expression]
TRANSLATIONS: dict[type[Expr], Translation] = {}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def translates(*kinds: type[Expr]) -> Callable[[Translation], Translation]:
    """Register the translation of these kinds of node."""

    def register(function: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(kinds, function))
        return function

    return register


def translated(node: Expr, names: Names) -> Expression:
    """Any expression on a row."""
    found = TRANSLATIONS.get(type(node))
    if found is None:
        raise QueryRefused(
            f"{shown(node)} is not answered: on a row there are columns and constants, arithmetic, CASE, "
            "COALESCE, comparisons, and functions of numbers, texts and dates that cannot fail on any row",
            nearest=names.example_instead(node),
        )
    expression = found(node, names)
    wrong = mistyped(expression, names.policy)
    if wrong is not None:
        raise QueryRefused(f"{shown(node)} is not answered: {wrong}", nearest=names.example_count())
    return expression


def number(node: Expr, names: Names) -> Any:
    """A number; a condition counts as 1 and 0."""
    return as_number(translated(node, names), node, names)


def as_number(expression: Expression, node: Expr, names: Names) -> Any:
    kind = kind_of(expression, names.policy)
    if kind == CONDITION:
        return Indicator(expression)  # type: ignore[arg-type]
    if kind not in (NUMBER, None):
        raise QueryRefused(f"{shown(node)} is a {kind}, not a number", nearest=names.example_for_node(node))
    return expression


def condition(node: Expr, names: Names) -> Condition:
    found = translated(node, names)
    if kind_of(found, names.policy) != CONDITION:
        raise QueryRefused(
            f"{shown(node)} is no condition; compare it with something", nearest=names.example_count()
        )
    return found  # type: ignore[return-value]


def date(node: Expr, names: Names) -> Any:
    return as_day(translated(node, names), node, names)


def as_day(expression: Expression, node: Expr, names: Names) -> Any:
    found = as_date(expression)
    if kind_of(found, names.policy) != DATE:
        raise QueryRefused(
            f"{shown(node)} is not a date; a day is written as '2024-01-31'", nearest=names.example_count()
        )
    return found


def as_date(expression: Expression) -> Expression:
    """A text in the form of a day is that day."""
    if not isinstance(expression, Text):
        return expression
    try:
        if _DAY.fullmatch(expression.value):
            return Day(datetime.date.fromisoformat(expression.value).isoformat())
    except ValueError:
        pass
    raise QueryRefused("a date is compared with a day such as '2024-01-31'")


def alike(values: list[Expression], node: Expr, names: Names) -> tuple[Expression, ...]:
    """Values of one kind: texts become days beside dates."""
    if DATE in {kind_of(item, names.policy) for item in values}:
        values = [as_date(item) for item in values]
    kinds = {kind_of(item, names.policy) for item in values} - {None}
    if len(kinds) > 1:
        raise QueryRefused(f"{shown(node)} mixes {' and '.join(sorted(map(str, kinds)))}")
    return tuple(values)


@translates(exp.Paren)
def _(node: Expr, names: Names) -> Expression:
    return translated(parts(node, "this")[0], names)


@translates(exp.Null)
def _(node: Expr, names: Names) -> Expression:
    parts(node)
    return Nothing()


@translates(exp.If)
def _(node: Expr, names: Names) -> Expression:
    test, then, otherwise = parts(node, "this", "true", "false")
    values = [translated(item, names) if item is not None else Nothing() for item in (then, otherwise)]
    then, otherwise = alike(values, node, names)
    return Choice(((condition(test, names), then),), otherwise)
