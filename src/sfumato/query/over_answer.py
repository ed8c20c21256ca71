"""A SELECT around a private answer: SELECT … FROM (SELECT ward, COUNT(*) AS n … GROUP BY ward) WHERE n > 10.

It reads what is released anyway, so that it costs nothing: arithmetic, WHERE, windows, ORDER BY and LIMIT, or
one row of aggregates over the answer's rows.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.postprocessing import OVER_ALL, Places, PostProcessing, as_sql, rewritten
from sfumato.query.reading import constant, parts, shown, whole_constant
from sfumato.query.refusal import QueryRefused

_CLAUSES = ("expressions", "where", "qualify", "order", "limit", "offset", "from_")


def over_answer(select: exp.Select, name: str, inner: PostProcessing) -> PostProcessing:
    """What a SELECT computes from an answer that it calls `name`."""
    if select.args.get("group") or select.args.get("having"):
        raise QueryRefused("an answer is not grouped again; group in the query inside, and filter with WHERE")
    if select.args.get("joins"):
        raise QueryRefused("an answer is not joined; joins stand in the query inside")
    parts(select, *_CLAUSES)
    items = _items(select.args["expressions"], inner)
    columns = {column.lower(): f"o{place}" for place, column in enumerate(inner.names)}
    places = Places(
        answer=name.lower(), columns=columns, aliases={alias.lower(): node for node, alias in items}
    )
    return PostProcessing(
        names=tuple(alias for _, alias in items),
        outputs=tuple(as_sql(rewritten(node, places, aliased=False)) for node, _ in items),
        having=_clause(select, "where", places) or "TRUE",
        qualify=_clause(select, "qualify", places),
        order=tuple(_ordered_by(item, items, places) for item in _order(select)),
        limit=whole_constant(select.args.get("limit"), "LIMIT"),
        offset=whole_constant(select.args.get("offset"), "OFFSET") or 0,
        inner=inner,
        one_row=any(_has_total(node) for node, _ in items),
    )


def _items(expressions: list[Expr], inner: PostProcessing) -> list[tuple[Expr, str]]:
    """What is selected, and its names; a star stands for all columns of the answer."""
    found: list[tuple[Expr, str]] = []
    for item in expressions:
        if type(item) is exp.Star:
            parts(item)
            found += [(exp.column(exp.to_identifier(name, quoted=True)), name) for name in inner.names]
        elif type(item) is exp.Alias:
            node, alias = parts(item, "this", "alias")
            found.append((node, str(alias.name)))
        else:
            found.append((item, _name(item, inner)))
    return found


def _name(item: Expr, inner: PostProcessing) -> str:
    """A column as the answer inside spells it; anything else in small letters."""
    if type(item) is not exp.Column:
        return shown(item).lower()
    return next((name for name in inner.names if name.lower() == item.name.lower()), item.name.lower())


def _has_total(node: Expr) -> bool:
    """Whether rows of the answer are added up, beside windows."""
    totals = [item for item in node.find_all(*OVER_ALL) if type(item.parent) is not exp.Window]
    return bool(totals)


def _clause(select: exp.Select, name: str, places: Places) -> str:
    clause = select.args.get(name)
    return "" if clause is None else as_sql(rewritten(parts(clause, "this")[0], places))


def _order(select: exp.Select) -> list[Expr]:
    order = select.args.get("order")
    return [] if order is None else list(parts(order, "expressions")[0])


def _ordered_by(item: Expr, items: list[tuple[Expr, str]], places: Places) -> tuple[str, str]:
    """An expression and its direction; a number or a name of the SELECT list stands for what is there."""
    node, descending, nulls_first = parts(item, "this", "desc", "nulls_first")
    number = constant(node)
    if number is not None and number.is_integer() and 1 <= number <= len(items):
        node = items[int(number) - 1][0]
    elif type(node) is exp.Column and not node.table:
        node = next((found for found, alias in items if alias.lower() == node.name.lower()), node)
    direction = f"{'DESC' if descending else 'ASC'} NULLS {'FIRST' if nulls_first else 'LAST'}"
    return as_sql(rewritten(node, places, aliased=False)), direction
