"""Reading of the parsed text: every argument of every node is asked for by name, or the query is refused.

A parser knows more SQL than this language answers. An argument that no code asked for would be passed over in
silence (BETWEEN SYMMETRIC, LIMIT 10%, a table's column aliases), and the answer would be to another question.
So nodes are taken apart by `parts` alone.

A refusal names the nearest query that is answered: the question without the parts that cannot be. Each
condition, key and column of a refused query is tried by itself. A refused part is replaced by the suggestion of
its refusal, or left out, and the result is suggested only if it is answered as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any, TypeVar

from sqlglot import errors, exp
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

    >>> str(QueryRefused("MAX(age) is one person's value", nearest="SELECT AVG(age) FROM people"))
    "MAX(age) is one person's value; you could ask: SELECT AVG(age) FROM people"
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
    exp.Count: {"big_int"}, exp.Greatest: {"ignore_nulls"}, exp.Least: {"ignore_nulls"}, exp.Cast: {"_type"},
    exp.Div: {"typed", "safe"}, exp.Literal: {"is_string"}, exp.Identifier: {"quoted"},
    exp.DataType: {"nested"}, exp.Ordered: {"nulls_first"},
}  # fmt: skip


def parts(node: Expr, *names: str) -> tuple[Any, ...]:
    """The named arguments of a node; any other argument is refused."""
    known = {*names, *_SET_BY_THE_PARSER.get(type(node), ())}
    for name, value in node.args.items():
        if name not in known and value not in (None, False, [], ""):
            raise QueryRefused(f"{shown(node)} is not answered with {name.strip('_').upper()}")
    return tuple(node.args.get(name) for name in names)


def as_sql(node: Expr) -> str:
    return node.sql(dialect="duckdb")


def shown(node: Expr) -> str:
    """A node as SQL, for a message."""
    text = as_sql(node)
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
        keys = item.expressions if isinstance(item, exp.Group) else ()
        joins = item.args.get("joins") or ()
        sizes = {"parts": (nodes, MOST_PARTS), "SELECTs": (selects, MOST_SELECTS),
                 "JOINs": (len(joins), MOST_JOINS), "keys of GROUP BY": (len(keys), MOST_KEYS)}  # fmt: skip
        for name, (size, most) in sizes.items():
            if size > most:
                raise QueryRefused(f"the query has more than {most:,} {name}; ask for less at a time")
        for child in item.iter_expressions():
            chained = type(child) is type(item) and isinstance(item, exp.And | exp.Or)
            waiting.append((child, depth if chained else depth + 1))


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
        found = constant(parts(node, "this")[0])
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


def ordinal(node: Expr, most: int) -> int | None:
    """The whole number from 1 to `most` that a node is, as in ORDER BY 1; None for any other node."""
    number = constant(node)
    return int(number) if number is not None and number.is_integer() and 1 <= number <= most else None


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


def unaliased(item: Expr) -> tuple[Expr, str]:
    """The selected node, and the name it is given, if any."""
    if type(item) is not exp.Alias:
        return item, ""
    inside, alias = parts(item, "this", "alias")
    return inside, str(alias.name)


# ---- the nearest query that is answered

Attempt = Callable[[exp.Select], QueryRefused | None]
"""Why a SELECT is refused; None if it is answered."""
_MOST_TRIED = 40
_KEPT_LAST = ("having", "order", "limit")


def nearest_query(select: exp.Select, refused: QueryRefused, attempt: Attempt) -> str:
    """The nearest query in SQL, or nothing."""
    own = _parsed(refused.nearest)
    candidates: Iterable[exp.Select | None] = (own,)
    source = _source(select, attempt)
    if source is not None:
        repaired = _repaired(select, source, attempt)
        same = repaired is None or _items(repaired) == _items(select)
        candidates = (_grafted(own, repaired) if same else None, repaired, own)
    for found in candidates:
        if found is not None and attempt(found) is None:
            return as_sql(found)
    return ""


def _parsed(text: str) -> exp.Select | None:
    """A refusal's own suggestion, if it is a query."""
    try:
        found = parsed(text) if text.upper().startswith("SELECT") else []
    except (errors.SqlglotError, QueryRefused):
        return None
    return found[0] if len(found) == 1 and isinstance(found[0], exp.Select) else None


def _items(select: exp.Select) -> list[str]:
    return list(map(as_sql, select.expressions))


def _count(source: exp.Select) -> exp.Select:
    return source.copy().select(exp.Count(this=exp.Star()), append=False, copy=False)


def _source(select: exp.Select, attempt: Attempt) -> exp.Select | None:
    """FROM and its joins, or FROM alone, as far as rows of it can be counted."""
    for names in (("from_", "joins"), ("from_",)):
        found = select.copy()
        for other in [name for name in found.args if name not in names]:
            found.set(other, None)
        if attempt(_count(found)) is None:
            return found
    return None


def _grafted(own: exp.Select | None, repaired: exp.Select | None) -> exp.Select | None:
    """The suggestion of the refusal, for the rows that were asked for."""
    if own is None or repaired is None or _items(own) == ["COUNT(*)"]:
        return None
    found = repaired.copy()
    for name in ("expressions", "group"):
        found.set(name, own.args.get(name))
    for name in _KEPT_LAST:
        found.set(name, None)
    return found


def _repaired(select: exp.Select, source: exp.Select, attempt: Attempt) -> exp.Select | None:
    where, group = select.args.get("where"), select.args.get("group")
    conditions = connected(where.this, exp.And) if where is not None else []
    if len(conditions) + len(select.expressions) > _MOST_TRIED:
        return None
    found = source.copy()
    for item in conditions:
        refused = attempt(_count(source).where(item.copy()))
        own = None if refused is None else _parsed(refused.nearest)
        if refused is None:
            found = found.where(item.copy())
        elif own is not None and own.args.get("where") and attempt(own) is None:
            found = found.where(own.args["where"].this.copy())
    named = {item.alias: item.unalias() for item in select.expressions if item.alias}
    nodes = [named.get(node.name, node) for node in (group.expressions if group is not None else [])]
    keys, instead = _keys(nodes, source, attempt)
    items = _selected(select.expressions, keys, instead, source, attempt)
    if not any(item.find(exp.AggFunc) for item in items):
        items.append(exp.Count(this=exp.Star()))
    found = found.select(*items, append=False)
    if keys:
        found = found.group_by(*keys, append=False)
    return _with_the_rest(found, select, attempt)


def _keys(nodes: list[Expr], source: exp.Select, attempt: Attempt) -> tuple[list[Expr], dict[str, list[Expr]]]:
    """The keys that are answered, and the replacements of others."""
    keys: list[Expr] = []
    instead: dict[str, list[Expr]] = {}
    for node in nodes:
        refused = attempt(_count(source).group_by(node.copy()))
        own = None if refused is None else _parsed(refused.nearest)
        if refused is None:
            keys.append(node.copy())
        elif own is not None and own.args.get("group"):
            instead[node.sql()] = own.args["group"].expressions
            keys += own.args["group"].expressions
    return keys, instead


def _selected(
    items: list[Expr], keys: list[Expr], instead: dict[str, list[Expr]], source: exp.Select, attempt: Attempt
) -> list[Expr]:
    """The answered items of the SELECT list, or the suggestions of their refusals; new keys come first."""
    found: list[Expr] = []
    for item in items:
        alone = source.copy().select(item.copy())
        grouped = alone.group_by(*(key.copy() for key in keys)) if keys else alone
        refused = attempt(grouped.select(exp.alias_(exp.Count(this=exp.Star()), "rows_of_it")))
        if refused is None:
            found.append(item.copy())
        elif item.unalias().sql() in instead:
            found += instead[item.unalias().sql()]
        else:
            own = _parsed(refused.nearest)
            own = _count(source) if own is None else own
            found += own.expressions
            keys[:0] = own.args["group"].expressions if own.args.get("group") else []
    unique: dict[str, Expr] = {}
    for node in found:
        unique.setdefault(node.unalias().sql(), node)
    return list(unique.values())


def _with_the_rest(found: exp.Select, select: exp.Select, attempt: Attempt) -> exp.Select:
    for name in _KEPT_LAST:
        if select.args.get(name):
            more = found.copy()
            more.set(name, select.args[name].copy())
            found = more if attempt(more) is None else found
    return found
