"""How the parsed text is read: every argument of every node is asked for by name, or the query is refused.

A parser knows more SQL than this language answers. What it keeps in an argument that nobody asked for would be
passed over in silence (BETWEEN SYMMETRIC, LIMIT 10%, a table's column aliases), and the answer would be to
another question. So nodes are taken apart by `parts` alone.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.refusal import QueryRefused

MOST_TEXT = 20_000
MOST_DEPTH = 60
# What the parser of the DuckDB dialect sets by itself, and what says nothing that is not said elsewhere.
_SET_BY_THE_PARSER: dict[type[Expr], set[str]] = {
    exp.Count: {"big_int"},
    exp.Greatest: {"ignore_nulls"},
    exp.Least: {"ignore_nulls"},
    exp.Cast: {"_type"},
    exp.Div: {"typed", "safe"},
    exp.Literal: {"is_string"},
    exp.Identifier: {"quoted"},
    exp.DataType: {"nested"},
    exp.Ordered: {"nulls_first"},
}


def parts(node: Expr, *names: str) -> tuple[Any, ...]:
    """The named arguments of a node; whatever else it holds is refused."""
    known = {*names, *_SET_BY_THE_PARSER.get(type(node), ())}
    for name, value in node.args.items():
        if name not in known and value not in (None, False, [], ""):
            raise QueryRefused(f"{shown(node)} is not answered with {name.strip('_').upper()}")
    return tuple(node.args.get(name) for name in names)


def shown(node: Expr) -> str:
    """A node as SQL, for a message."""
    text = node.sql(dialect="duckdb")
    return text if len(text) <= 200 else text[:200] + "…"


def connected(node: Expr, kind: type[exp.Connector]) -> list[Expr]:
    """The conditions that a chain of AND or OR connects, without recursion, in their order."""
    found: list[Expr] = []
    waiting: list[Expr] = [node]
    while waiting:
        item = waiting.pop()
        while type(item) is exp.Paren:
            (item,) = parts(item, "this")
        if type(item) is kind:
            left, right = parts(item, "this", "expression")
            waiting += [right, left]
        else:
            found.append(item)
    return found


def check_depth(node: Expr) -> None:
    """Refuse what is nested so deeply that reading it, or an engine, could run out of stack.

    A chain of AND or OR, as long as the text may be, counts as one level.
    """
    waiting: list[tuple[Expr, int]] = [(node, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise QueryRefused(
                f"the query is nested more than {MOST_DEPTH} levels deep; use IN (…) for long lists, "
                "and fewer brackets"
            )
        for child in item.iter_expressions():
            chained = type(child) is type(item) and isinstance(item, exp.And | exp.Or)
            waiting.append((child, depth if chained else depth + 1))


def constant(node: Expr) -> float | None:
    """The number that a literal, or minus a literal, is."""
    if type(node) is exp.Neg:
        (inside,) = parts(node, "this")
        found = constant(inside)
        return None if found is None else -found
    if type(node) is exp.Paren:
        return constant(parts(node, "this")[0])
    if type(node) is not exp.Literal or node.is_string:
        return None
    try:
        text = str(parts(node, "this")[0])
        value = float(text)
    except ValueError:
        return None
    if value == float("inf") or (value == 0 and text.lower().split("e")[0].strip("0.")):
        raise QueryRefused("constants are 0 or between 2**-40 and 2**52 in size")
    return value


def whole_constant(clause: Expr | None, name: str) -> int | None:
    """The whole number of a LIMIT or OFFSET; None without one."""
    if clause is None:
        return None
    if clause.args.get("limit_options"):
        raise QueryRefused(f"{name} takes a whole number, without % or TIES")
    found = constant(parts(clause, "expression")[0])
    if found is None or not found.is_integer() or found < 0:
        raise QueryRefused(f"{name} takes a whole number")
    return int(found)


def literal_text(node: Expr | None) -> str | None:
    """The text that a literal is."""
    if node is None or type(node) is not exp.Literal or not node.is_string:
        return None
    text = str(parts(node, "this")[0])
    if "\\" in text or "\x00" in text:
        raise QueryRefused(
            "texts with a backslash or a null character mean different things to different engines"
        )
    return text


def function(node: Expr, name: str) -> list[Expr] | None:
    """The arguments of a function that the parser does not know, such as BIN(x, 10)."""
    if type(node) is not exp.Anonymous or str(node.this).upper() != name:
        return None
    return list(parts(node, "this", "expressions")[1] or [])
