"""WITH and sub-queries in FROM: which SELECT stands inside which."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.query.reading import parts
from sfumato.query.refusal import QueryRefused


def inlined(select: exp.Select) -> exp.Select:
    """The same SELECT with every name of WITH replaced by its sub-query, of which each is used once."""
    common = select.args.get("with_")
    if common is None:
        return select
    known: dict[str, exp.Select] = {}
    used: set[str] = set()
    for table in parts(common, "expressions")[0]:
        inner, alias = parts(table, "this", "alias")
        name = str(parts(alias, "this")[0].name)
        known[name.lower()] = _substituted(_one_select(inner), known, used)
    outer = select.copy()
    outer.set("with_", None)
    found = _substituted(outer, known, used)
    unused = [name for name in known if name not in used]
    if unused:
        raise QueryRefused(f"WITH names {', '.join(unused)}, which no FROM reads; leave it out")
    return found


def _substituted(select: exp.Select, known: dict[str, exp.Select], used: set[str]) -> exp.Select:
    source = select.args.get("from_")
    table = None if source is None else source.this
    if type(table) is exp.Subquery and type(table.this) is exp.Select:
        _substituted(table.this, known, used)
    if type(table) is not exp.Table or table.args.get("db") or table.name.lower() not in known:
        return select
    _, alias = parts(table, "this", "alias")
    named = exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)) if alias is None else alias.copy()
    used.add(table.name.lower())
    select.set("from_", exp.From(this=exp.Subquery(this=known[table.name.lower()].copy(), alias=named)))
    return select


def sub_query(select: exp.Select) -> tuple[exp.Select, exp.Select, str] | None:
    """The outer SELECT over a plain name, the inner SELECT, and that name; None without a sub-query in FROM."""
    source = select.args.get("from_")
    if source is None or type(source.this) is not exp.Subquery:
        return None
    inner, alias = parts(source.this, "this", "alias")
    name = "people" if alias is None else str(parts(alias, "this")[0].name)
    outer = select.copy()
    outer.set("from_", exp.From(this=exp.Table(this=exp.to_identifier(name, quoted=True))))
    return outer, _one_select(inner), name


def _one_select(node: Expr) -> exp.Select:
    if type(node) is not exp.Select:
        raise QueryRefused("a sub-query is one SELECT")
    return node
