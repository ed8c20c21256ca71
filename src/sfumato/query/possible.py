"""Conditions that no row can meet, by the policy alone: asked for by mistake, and refused before the charge."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from typing import Any

from sqlglot.expressions import Expr

from sfumato.policy import Policy
from sfumato.query.expressions import DATE, NUMBER, Comparison, Expression, Like, OneOf, kind_of
from sfumato.query.keys import possible_texts
from sfumato.query.ranges import FIRST_DAY, LARGEST, LAST_DAY, days_of, range_of
from sfumato.query.reading import shown
from sfumato.query.refusal import QueryRefused

_MOST_SHOWN = 10
_REMEDY = "ask within that, or the holder can declare more"
# Whether some x from a to b and some y from c to d compare so.
_MEET: dict[str, Callable[[Any, Any, Any, Any], bool]] = {
    "=": lambda a, b, c, d: a <= d and c <= b,
    "<": lambda a, b, c, d: a < d,
    "<=": lambda a, b, c, d: a <= d,
    ">": lambda a, b, c, d: b > c,
    ">=": lambda a, b, c, d: b >= c,
    "<>": lambda a, b, c, d: not a == b == c == d,
}


def check_comparison(condition: Comparison, node: Expr, policy: Policy) -> None:
    """Refuse a comparison that is false on every row."""
    kinds = {kind_of(side, policy) for side in (condition.left, condition.right)}
    ends = _days if DATE in kinds else _numbers if kinds == {NUMBER} else None
    if ends is None:
        return
    left, right = ends(condition.left, policy), ends(condition.right, policy)
    if left is None or right is None or _MEET[condition.operator](*left, *right):
        return
    raise QueryRefused(
        f"{shown(node)} is true on no row: under the policy the left side lies between {_end(left[0])} and "
        f"{_end(left[1])}; {_REMEDY}{_counted_further(policy)}"
    )


def check_one_of(condition: OneOf, node: Expr, policy: Policy) -> None:
    """Refuse a list with a value that no row can have: a category that is not declared, a number too large."""
    if kind_of(condition.of, policy) == NUMBER:
        low, high = _numbers(condition.of, policy) or (-math.inf, math.inf)
        impossible = [item for item in condition.values if not low <= float(item) <= high]
        allowed = f"between {_end(low)} and {_end(high)}"
    else:
        known = possible_texts(condition.of, policy)
        impossible = [item for item in condition.values if known is not None and item not in known]
        allowed = f"one of {_listed(known or ())}"
    if impossible:
        raise QueryRefused(
            f"{shown(node)} asks for {_listed(impossible)}, which no row has: under the policy it is {allowed};"
            f" {_REMEDY}"
        )


def check_like(condition: Like, node: Expr, policy: Policy) -> None:
    """Refuse a pattern that fits no declared category."""
    known = possible_texts(condition.of, policy)
    wanted = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in condition.pattern)
    if known is not None and not any(re.fullmatch(wanted, str(item), re.DOTALL) for item in known):
        raise QueryRefused(
            f"{shown(node)} is true on no row: under the policy it is one of {_listed(known)}; {_REMEDY}"
        )


def _counted_further(policy: Policy) -> str:
    """Where every person has one row, what is compared may be a count of their rows."""
    one_row = policy.unit.column is not None and policy.unit.rows == 1
    return ", and a sub-query counts further than unit.rows with LEAST(COUNT(*), 20)" if one_row else ""


def _numbers(expression: Expression, policy: Policy) -> tuple[float, float] | None:
    """The least and the largest value; None where an expression is refused later, or has no bounds."""
    try:
        found = range_of(expression, policy)
    except QueryRefused:
        return None
    return None if found.size >= LARGEST else (found.low, found.high)


def _days(expression: Expression, policy: Policy) -> tuple[datetime.date, datetime.date] | None:
    found = days_of(expression, policy)  # type: ignore[arg-type]
    return None if found == (FIRST_DAY, LAST_DAY) else found


def _end(value: float | datetime.date) -> str:
    return value.isoformat() if isinstance(value, datetime.date) else f"{value:g}"


def _listed(values: Any) -> str:
    items = [repr(item) if isinstance(item, str) else f"{item:g}" for item in list(values)[:_MOST_SHOWN]]
    return ", ".join(items) + (", …" if len(list(values)) > _MOST_SHOWN else "")
