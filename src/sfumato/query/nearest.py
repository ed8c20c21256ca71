"""The nearest query that is answered: the question without the parts that cannot be.

Each condition, key and column of a refused query is tried by itself. A refused part is replaced by the
suggestion of its refusal, or left out, and the result is suggested only if it is answered as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import errors, exp
from sqlglot.expressions import Expr

from sfumato.query.reading import QueryRefused, connected, parsed

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
            return found.sql(dialect="duckdb")
    return ""


def _parsed(text: str) -> exp.Select | None:
    """A refusal's own suggestion, if it is a query."""
    try:
        found = parsed(text) if text.upper().startswith("SELECT") else []
    except (errors.SqlglotError, QueryRefused):
        return None
    return found[0] if len(found) == 1 and isinstance(found[0], exp.Select) else None


def _items(select: exp.Select) -> list[str]:
    return [item.sql(dialect="duckdb") for item in select.expressions]


def _count(source: exp.Select) -> exp.Select:
    return source.copy().select(exp.Count(this=exp.Star()), append=False, copy=False)


def _source(select: exp.Select, attempt: Attempt) -> exp.Select | None:
    """FROM and its joins, or FROM alone, as far as rows of it can be counted."""
    for names in (("from_", "joins"), ("from_",)):
        found = exp.Select(**{name: _copied(select.args[name]) for name in names if select.args.get(name)})
        if attempt(_count(found)) is None:
            return found
    return None


def _copied(value: Expr | list[Expr]) -> Expr | list[Expr]:
    return [item.copy() for item in value] if isinstance(value, list) else value.copy()


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
        elif (own := _parsed(refused.nearest)) is not None:
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
