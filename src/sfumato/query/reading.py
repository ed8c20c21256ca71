"""Reading of the parsed text: every argument of every node is asked for by name, or the query is refused.

A parser knows more SQL than this language answers. An argument that no code asked for would be passed over in
silence (BETWEEN SYMMETRIC, LIMIT 10%, a table's column aliases), and the answer would be to another question.
So nodes are taken apart by `parts` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any, TypeVar

from sqlglot import exp
from sqlglot.dialects import DuckDB
from sqlglot.expressions import Expr
from sqlglot.tokenizer_core import TokenType

from sfumato.errors import Refused


class QueryRefused(Refused):
    """A query that cannot be answered privately: why, and the nearest one that can.

    Raised from the text of the query and the policy alone, before any data is touched, so that a refusal says
    nothing about anyone.

    Args:
        reason: Why, in one sentence.
        nearest: A query that would be answered.
    """

    def __init__(self, reason: str, *, nearest: str = "") -> None:
        super().__init__(reason + (f"; you could ask: {nearest}" if nearest else ""))
        self.reason = reason
        self.nearest = nearest


_T = TypeVar("_T")

# Largest sizes of a question. Its planner passes over it a fixed number of times: within these
# limits for less than a second, and without running out of stack.
MOST_TEXT = 20_000  # letters
MOST_BRACKETS = 25  # of which each takes the parser up to 25 calls of the 1,000 that Python nests
MOST_DEPTH = 60  # levels of the parsed query
MOST_PARTS = 10_000  # nodes of the parsed query; parts that a short text repeats, as POWER(x, 8) does
MOST_SELECTS = 8  # one inside the other, or in WITH
MOST_JOINS = 12
MOST_KEYS = 20  # of GROUP BY
MOST_AGGREGATES = 50  # different ones, which share one ε; each takes an engine 20 ms to plan
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
# Arguments that the parser of the DuckDB dialect sets by itself, which add no meaning.
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
    """The named arguments of a node; any other argument is refused."""
    known = {*names, *_SET_BY_THE_PARSER.get(type(node), ())}
    for name, value in node.args.items():
        if name not in known and value not in (None, False, [], ""):
            raise QueryRefused(f"{shown(node)} is not answered with {name.strip('_').upper()}")
    return tuple(node.args.get(name) for name in names)


def shown(node: Expr) -> str:
    """A node as SQL, for a message."""
    text = node.sql(dialect="duckdb")
    return text if len(text) <= 200 else text[:200] + "…"


def walk(expression: Any) -> Iterator[Any]:
    """An expression and all parts of it; a repeated part, each time."""
    waiting = [expression]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += reversed(item)
        elif is_dataclass(item):
            yield item
            waiting += [getattr(item, field.name) for field in reversed(fields(item))]


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


def balanced(items: list[_T], connect: Callable[[_T, _T], _T]) -> _T:
    """Connected two by two, so that a thousand conditions nest ten deep."""
    while len(items) > 1:
        pairs = [items[i : i + 2] for i in range(0, len(items), 2)]
        items = [connect(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return items[0]


_TOO_DEEP = "{} more than {} levels deep; use IN (…) for long lists, and fewer brackets"


def parsed(text: str) -> list[Expr]:
    """The statements of a text, none of them larger than the limits above; refused before it takes long.

    Raises:
        SqlglotError: If it is not SQL.
        QueryRefused: If it is larger than these limits.
    """
    dialect, depth = DuckDB(), 0
    tokens = dialect.tokenize(text)
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth > MOST_BRACKETS:
            raise QueryRefused(_TOO_DEEP.format("brackets and CASE are nested", MOST_BRACKETS))
    try:
        statements = [item for item in dialect.parser().parse(tokens, text) if item is not None]
    except RecursionError:  # the parser's own: a long run of NOT, minus or CAST nests without brackets
        raise QueryRefused(_TOO_DEEP.format("the query is nested", MOST_DEPTH)) from None
    for statement in statements:
        _check_size(statement)
    return statements


def _check_size(node: Expr) -> None:
    """Refuse a query that is too large, or nested so deeply that a reader or engine could run out of stack.

    A chain of AND or OR, as long as the text may be, counts as one level.
    """
    waiting: list[tuple[Expr, int]] = [(node, 0)]
    selects = nodes = 0
    while waiting:
        item, depth = waiting.pop()
        nodes, selects = nodes + 1, selects + isinstance(item, exp.Query)
        if depth > MOST_DEPTH:
            raise QueryRefused(_TOO_DEEP.format("the query is nested", MOST_DEPTH))
        if nodes > MOST_PARTS:
            raise QueryRefused(f"the query has more than {MOST_PARTS:,} parts; ask for less at a time")
        if selects > MOST_SELECTS:
            raise QueryRefused(f"the query has more than {MOST_SELECTS} SELECTs; ask for less at a time")
        _check_number(item.args.get("joins"), "JOIN", MOST_JOINS)
        _check_number(item.expressions if isinstance(item, exp.Group) else None, "GROUP BY", MOST_KEYS)
        for child in item.iter_expressions():
            chained = type(child) is type(item) and isinstance(item, exp.And | exp.Or)
            waiting.append((child, depth if chained else depth + 1))


def _check_number(items: list[Expr] | None, name: str, most: int) -> None:
    if items is not None and len(items) > most:
        raise QueryRefused(f"expected at most {most} of {name}, got {len(items)}; ask for less at a time")


@dataclass
class Tally:
    """The repetitions in one query, of which a short text can make many."""

    parts: int = 0

    def add(self, expression: Any, times: int = 1) -> None:
        """Count `times` more of an expression, or of a node of the parser."""
        inside = expression.walk() if isinstance(expression, Expr) else walk(expression)
        self.parts += times * sum(1 for _ in islice(inside, MOST_PARTS))
        if self.parts > MOST_PARTS:
            raise QueryRefused(
                f"the query has more than {MOST_PARTS:,} parts, repetitions counted; ask for less at a time"
            )


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
