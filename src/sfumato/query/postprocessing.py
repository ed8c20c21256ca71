"""Computation on the noisy answer, at no price: arithmetic on aggregates, HAVING, windows, ORDER BY.

A query that asks for more than keys and aggregates is taken apart: its aggregates are measured as if asked
alone, and the rest is run as SQL on the noisy answer, in a DuckDB of its own that holds nothing else and can
open nothing. No name of the user reaches it: keys are k0, k1, …, aggregates a0, a1, …

The intervals of computed columns come from simulation: noise of the known kind is added to the noisy answer
once more, many times, and the rest computed for each. As the noise is symmetric, that is how far off the truth
can be.

A SELECT around an answer, as SELECT … FROM (SELECT ward, COUNT(*) AS n … GROUP BY ward) WHERE n > 10, reads
only released values too: arithmetic, WHERE, windows, ORDER BY and LIMIT, or a row of aggregates over it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.reading import (
    QueryRefused,
    Tally,
    as_sql,
    balanced,
    connected,
    constant,
    ordinal,
    parts,
    shown,
    unaliased,
    whole_constant,
)

_LEVEL = 0.95  # of the intervals
_MOST_DRAWS, _LEAST_DRAWS, _MOST_ROWS, _MOST_VALUES = 200, 20, 200_000, 1_000_000
_WINDOWS = (
    exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Count, exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank,
    exp.CumeDist, exp.Ntile, exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.Median,
)  # fmt: skip
_ALLOWED = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Paren, exp.Literal, exp.Null, exp.Boolean,
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between,
    exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Abs, exp.Round, exp.Floor,
    exp.Ceil, exp.Ln, exp.Log, exp.Sqrt, exp.Exp, exp.Pow, exp.Star, exp.Ordered, exp.Order, exp.WindowSpec,
)  # fmt: skip

OVER_ALL = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Count, exp.Median)


@dataclass(frozen=True)
class PostProcessing:
    """SQL over the columns k0, k1, … and a0, a1, … of the noisy answer, or o0, o1, … of `inner`.

    `order` holds expressions and their directions. With `one_row`, the rows of the answer are added up.
    """

    names: tuple[str, ...]
    outputs: tuple[str, ...]
    having: str = "TRUE"
    qualify: str = ""
    order: tuple[tuple[str, str], ...] = ()
    limit: int | None = None
    offset: int = 0
    inner: PostProcessing | None = None
    one_row: bool = False

    def origin(self, place: int) -> str | None:
        """The key or aggregate that an output shows as it is: k0, a3, …."""
        output = self.outputs[place]
        if self.inner is None:
            return output if output[:1] in "ak" and output[1:].isdigit() else None
        return self.inner.origin(int(output[1:])) if output[:1] == "o" and output[1:].isdigit() else None


@dataclass(frozen=True)
class Places:
    """Where a query's values are found in the answer; around an answer, where its columns are.

    `find` gives the place of a key or an aggregate, as k0 or a3, or an expression to be rewritten in its place.
    """

    aliases: Mapping[str, Expr]
    find: Callable[[Expr], str | Expr | None] = lambda node: None
    answer: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


def rewritten(node: Expr, places: Places, *, aliased: bool = True) -> Expr:
    """Rewrite a node over the answer's columns; one that reads rows outside an aggregate is refused."""
    if isinstance(node, exp.Window):
        return _window(node, places)
    place = places.find(node)
    if place is not None:
        return exp.column(place) if isinstance(place, str) else rewritten(place, places, aliased=aliased)
    if isinstance(node, exp.Column):
        if node.name.lower() in places.columns and node.table.lower() in ("", places.answer):
            return exp.column(places.columns[node.name.lower()])
        named = places.aliases.get(node.name.lower()) if aliased and not node.table else None
        if named is None and places.answer:
            raise QueryRefused(
                f"{shown(node)} is no column of the answer, which has {', '.join(places.columns)}"
            )
        if named is None:
            raise QueryRefused(
                f"{shown(node)} is neither grouped by nor in an aggregate, and single rows are never shown"
            )
        places.tally.add(named)
        return exp.Paren(this=rewritten(named, places, aliased=False))
    if places.answer and isinstance(node, OVER_ALL):
        return _over_all(node, places)
    if not isinstance(node, _ALLOWED):
        raise QueryRefused(f"{shown(node)} is not answered: it is no arithmetic on the answer")
    if isinstance(node, exp.And | exp.Or):
        kind = type(node)
        chain = [rewritten(item, places, aliased=aliased) for item in connected(node, kind)]
        return balanced(
            chain, lambda left, right: kind(this=exp.Paren(this=left), expression=exp.Paren(this=right))
        )
    found = _with_children(node, lambda child: rewritten(child, places, aliased=aliased))
    if isinstance(node, exp.Div):
        found.set("expression", exp.Nullif(this=found.expression, expression=exp.Literal.number(0)))
    if isinstance(node, exp.Mul | exp.Mod):  # of whole numbers, these can fail
        found.set("this", exp.cast(found.this, "DOUBLE"))
    if isinstance(node, exp.Literal) and abs(constant(node) or 0.0) > _MOST_WHOLE:
        return exp.Literal.number(f"{constant(node)!r}")
    return found


def _over_all(node: Expr, places: Places) -> Expr:
    """Rows of the answer added up; where there are none, a row without values stands for them."""
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
        return exp.Count(this=exp.column("g"))
    return _with_children(node, lambda child: rewritten(child, places, aliased=False))


def _with_children(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, Expr) else value

    return type(node)(
        **{
            name: [changed(item) for item in value] if isinstance(value, list) else changed(value)
            for name, value in node.args.items()
        }
    )


def _window(node: exp.Window, places: Places) -> Expr:
    """A window over the answer: its function is the answer's, its argument may be an aggregate of rows."""
    function, partition, order, spec, _ = parts(node, "this", "partition_by", "order", "spec", "over")
    if not isinstance(function, _WINDOWS):
        raise QueryRefused(f"{shown(node)} is not answered: there is no such window over the answer")

    def inside(child: Expr) -> Expr:
        return rewritten(child, places)

    return exp.Window(
        this=_with_children(function, inside),
        partition_by=[exp.column("draw"), *(inside(item) for item in partition or [])],
        order=None if order is None else inside(order),
        spec=None if spec is None else _checked_frame(spec),
        over="OVER",
    )


def _checked_frame(spec: exp.WindowSpec) -> exp.WindowSpec:
    kind, start, start_side, end, end_side = parts(spec, "kind", "start", "start_side", "end", "end_side")
    for side in (start, end):
        number = constant(side) if isinstance(side, Expr) else 0.0
        if number is None or number < 0:
            raise QueryRefused(f"{shown(spec)} is not answered: the ends of a window are constants")
    return exp.WindowSpec(kind=kind, start=start, start_side=start_side, end=end, end_side=end_side)


Interval = tuple[float, float] | None


def draws_for(groups: int, numbers: int) -> int:
    """How often an answer is simulated, with so many noisy numbers for each group."""
    fitting = min(_MOST_ROWS // max(1, groups), _MOST_VALUES // max(1, groups * numbers))
    return max(_LEAST_DRAWS, min(_MOST_DRAWS, fitting))


def process(
    post: PostProcessing,
    keys: Sequence[Sequence[Any]],
    aggregates: Sequence[np.ndarray[Any, Any]],
    types: Sequence[type],
) -> tuple[list[int], list[list[tuple[Any, Interval]]]]:
    """The groups that are shown, in their order, and for each output their values with intervals.

    `keys` hold a value for each group, `aggregates` are (1 + draws, groups), the answer first. Only computed
    numbers have an interval: an aggregate that is shown as it was measured has its own.
    """
    draws = len(aggregates[0])
    with _sandbox() as connection:
        _load(connection, _answer(keys, aggregates, types), draws)
        found = connection.execute(_statement(post))
        kinds = [str(item[1]) for item in found.description][1:]
        shown_rows = found.fetchall()
        simulated = [kind in _NUMBERS and post.origin(place) is None for place, kind in enumerate(kinds)]
        ends = connection.execute(_intervals(post, simulated)).fetchall() if any(simulated) else []
    by_group = {int(row[0]): iter(row[1:]) for row in ends}
    order = [int(row[0]) for row in shown_rows]
    columns = []
    for place, wanted in enumerate(simulated):
        values = (_finite(row[1 + place]) for row in shown_rows)
        found_ends = {group: next(item) for group, item in by_group.items()} if wanted else {}
        intervals = (tuple(found_ends.get(group) or ()) or None for group in order)
        columns.append(list(zip(values, intervals, strict=True)))
    return order, columns


_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "FLOAT", "DOUBLE")


def _intervals(post: PostProcessing, simulated: Sequence[bool]) -> str:
    """Where the middle of all other draws lies, for each group and each output that is computed."""
    places = [place for place, wanted in enumerate(simulated) if wanted]
    finite = ", ".join(f"CASE WHEN isfinite(o{i}::DOUBLE) THEN o{i}::DOUBLE END AS o{i}" for i in places)
    levels = f"[{(1 - _LEVEL) / 2}::DOUBLE, {(1 + _LEVEL) / 2}::DOUBLE]"
    ends = (f"CASE WHEN COUNT(o{i}) >= {_LEAST_DRAWS} THEN quantile_cont(o{i}, {levels}) END" for i in places)
    return (
        f"SELECT g, {', '.join(ends)} FROM (SELECT g, {finite} FROM ({_rows(post)}) WHERE draw > 0) GROUP BY g"
    )


_MOST_WHOLE = 2.0**52  # beyond it a constant is a double: sums of whole numbers then stay within 64 bits
_TRIED_NUMBERS = (1.5, -1e6, 1e15)


def check(post: PostProcessing, keys: Sequence[Sequence[Any]], aggregates: int, types: Sequence[type]) -> None:
    """Have a made-up answer processed, so that a computation that fails is refused before the charge.

    `keys` has values that each key can have: the ends of a range, for numbers.
    """
    draws, groups = 2, len(_TRIED_NUMBERS)
    tried = [[values[place % len(values)] for place in range(groups)] for values in keys]
    numbers = [np.array([_TRIED_NUMBERS, _TRIED_NUMBERS[::-1]])] * aggregates
    try:
        with _sandbox() as connection:
            _load(connection, _answer(tried, numbers, types), draws)
            _check_texts(connection, _statement(post))
            connection.execute(_statement(post)).fetchall()
    except duckdb.Error as error:
        raise QueryRefused(f"the answer cannot be computed so: {str(error).splitlines()[0]}") from None


def _check_texts(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """Refuse a text that is taken for a number or a condition: by DuckDB's own plan, as some texts convert."""
    (plan,) = connection.execute("SELECT json_serialize_plan(?::VARCHAR)", [statement]).fetchall()[0]
    try:
        waiting: list[Any] = [json.loads(plan)]
    except ValueError:  # NaN and infinities are not JSON
        raise QueryRefused("the answer cannot be computed so: constants in it make no finite number") from None
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and node.get("type") == "OPERATOR_CAST":
            before, after = node["children"][0].get("return_type"), node["return_type"]
            if before is not None and before["id"] == "VARCHAR" != after["id"]:
                raise QueryRefused(
                    "the answer cannot be computed so: a text is taken for a number or a condition; compare it "
                    "with a text, as ward = '7'"
                )
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _load(connection: duckdb.DuckDBPyConnection, answer: pa.Table, draws: int) -> None:
    connection.register("given", answer)
    connection.execute("CREATE TABLE answer AS SELECT * FROM given")
    connection.execute(f"CREATE TABLE draws AS SELECT range AS draw FROM range({draws})")


def _sandbox() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"enable_external_access": "false", "threads": "1"})


def _statement(post: PostProcessing) -> str:
    """The answer itself, in its order."""
    outputs = ", ".join(f"o{i}" for i in range(len(post.outputs)))
    limit = f" LIMIT {post.limit}" if post.limit is not None else ""
    text = f"SELECT g, {outputs} FROM ({_rows(post)}) WHERE draw = 0"
    return f"{text} ORDER BY {_order(post)}{limit} OFFSET {post.offset}"


def _order(post: PostProcessing) -> str:
    return ", ".join([*(f"r{i} {direction}" for i, (_, direction) in enumerate(post.order)), "g"])


def _rows(post: PostProcessing) -> str:
    """Select draw, g, the outputs and the keys of their order, of every draw, before LIMIT."""
    source = "answer" if post.inner is None else f"({_limited(post.inner)})"
    values = [f"({output}) AS o{i}" for i, output in enumerate(post.outputs)]
    values += [f"({node}) AS r{i}" for i, (node, _) in enumerate(post.order)]
    if post.one_row:
        return (
            f"SELECT draws.draw, 0 AS g, {', '.join(values)} FROM draws LEFT JOIN {source} AS s "
            f"ON draws.draw = s.draw AND ({post.having}) GROUP BY draws.draw"
        )
    text = f"SELECT draw, g, {', '.join(values)} FROM {source} WHERE ({post.having})"
    return text + (f" QUALIFY ({post.qualify})" if post.qualify else "")


def _limited(post: PostProcessing) -> str:
    """The rows of each draw within LIMIT."""
    if post.limit is None and not post.offset:
        return _rows(post)
    last = "" if post.limit is None else f" AND place <= {post.offset + post.limit}"
    place = f"ROW_NUMBER() OVER (PARTITION BY draw ORDER BY {_order(post)}) AS place"
    return f"SELECT * FROM (SELECT *, {place} FROM ({_rows(post)})) WHERE place > {post.offset}{last}"


_ARROW = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}


def _answer(
    keys: Sequence[Sequence[Any]], aggregates: Sequence[np.ndarray[Any, Any]], types: Sequence[type]
) -> pa.Table:
    draws, groups = aggregates[0].shape
    group = np.tile(np.arange(groups), draws)
    columns: dict[str, Any] = {
        "draw": np.repeat(np.arange(draws), groups),
        "g": group,
        **{
            f"k{i}": pa.array(list(values), _ARROW[kind]).take(pa.array(group))
            for i, (values, kind) in enumerate(zip(keys, types, strict=True))
        },
        **{f"a{i}": values.astype(float).ravel() for i, values in enumerate(aggregates)},
    }
    return pa.table(columns)


def _finite(value: Any) -> Any:
    """An infinity or NaN is no value."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def over_answer(select: exp.Select, name: str, inner: PostProcessing) -> PostProcessing:
    """Plan the computation of a SELECT from an answer that it calls `name`."""
    if select.args.get("group") or select.args.get("having"):
        raise QueryRefused("an answer is not grouped again; group in the query inside, and filter with WHERE")
    if select.args.get("joins"):
        raise QueryRefused("an answer is not joined; joins stand in the query inside")
    parts(select, "expressions", "where", "qualify", "order", "limit", "offset", "from_")
    items = _items(select.args["expressions"], inner)
    columns = {column.lower(): f"o{place}" for place, column in enumerate(inner.names)}
    aliases = {alias.lower(): node for node, alias in items}
    places = Places(answer=name.lower(), columns=columns, aliases=aliases)
    totals = (total for node, _ in items for total in node.find_all(*OVER_ALL))
    one_row = any(type(total.parent) is not exp.Window for total in totals)
    return replace(from_select(select, items, places, filtered="where"), inner=inner, one_row=one_row)


def from_select(
    select: exp.Select, items: list[tuple[Expr, str]], places: Places, *, filtered: str
) -> PostProcessing:
    """Plan the computation of a SELECT: `items` holds its nodes and names, `filtered` names its filter."""

    def clause(name: str) -> str:
        found = select.args.get(name)
        return "" if found is None else as_sql(rewritten(parts(found, "this")[0], places))

    order = select.args.get("order")
    ordered = () if order is None else parts(order, "expressions")[0]
    return PostProcessing(
        names=tuple(name for _, name in items),
        outputs=tuple(as_sql(rewritten(node, places, aliased=False)) for node, _ in items),
        having=clause(filtered) or "TRUE",
        qualify=clause("qualify"),
        order=tuple(_ordered_by(item, items, places) for item in ordered),
        limit=whole_constant(select.args.get("limit"), "LIMIT"),
        offset=whole_constant(select.args.get("offset"), "OFFSET") or 0,
    )


def _items(expressions: list[Expr], inner: PostProcessing) -> list[tuple[Expr, str]]:
    """The selected nodes and their names; a star stands for all columns of the answer."""
    found: list[tuple[Expr, str]] = []
    for item in expressions:
        if type(item) is exp.Star:
            parts(item)
            found += [(exp.column(exp.to_identifier(name, quoted=True)), name) for name in inner.names]
        else:
            node, alias = unaliased(item)
            # A column as the answer inside spells it; anything else in small letters.
            spelled = (
                name for name in inner.names if type(node) is exp.Column and name.lower() == node.name.lower()
            )
            found.append((node, alias or next(spelled, shown(node).lower())))
    return found


def _ordered_by(item: Expr, items: list[tuple[Expr, str]], places: Places) -> tuple[str, str]:
    """An expression and its direction; a number or a name of the SELECT list stands for its item."""
    node, descending, nulls_first = parts(item, "this", "desc", "nulls_first")
    number = ordinal(node, len(items))
    if number is not None:
        node = items[number - 1][0]
    elif places.answer and type(node) is exp.Column and not node.table:
        node = next((found for found, alias in items if alias.lower() == node.name.lower()), node)
    direction = f"{'DESC' if descending else 'ASC'} NULLS {'FIRST' if nulls_first else 'LAST'}"
    return as_sql(rewritten(node, places, aliased=not places.answer)), direction
