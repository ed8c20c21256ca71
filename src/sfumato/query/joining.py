"""FROM and JOIN: private tables on the person and nothing else, public tables on their key, and sub-queries.

A private table comes first. A joined row is made of rows of one person and of public rows. So a person who
comes or goes takes along their own joined rows and changes no other person's, and these are bounded after the
join like rows of any table. Before it, every private table but the first is cut to the rows of a person that
its policy lets count, so that no person's rows multiply without limit. A public table has each value of its key
once: a row finds one partner or none. Every other join is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy, PublicTable
from sfumato.query.names import Names, Tables, quoted
from sfumato.query.reading import QueryRefused, parts, shown

MOST_PARTNERS = 1000  # with more, the sum over one person's joined rows could leave 64 bits


@dataclass(frozen=True)
class Join:
    """One JOIN: on the person, or (`column`) of a column so far with the key of a public table."""

    table: str
    alias: str
    left: bool = False
    column: str | None = None


@dataclass(frozen=True)
class Joined:
    """The tables that a query reads: a private one, and those joined to it."""

    table: str
    alias: str
    joins: tuple[Join, ...] = ()

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.alias, *(join.alias for join in self.joins)


def rows_policy(joined: Joined | None, policy: Policy) -> Policy:
    """The policy of the rows that a query reads; columns of joined tables are called ALIAS.NAME."""
    if joined is None or not joined.joins:
        return policy if joined is None else private_table(joined.table, policy)
    columns: dict[str, Column] = {}
    for alias, found in joined_columns(joined, policy):
        named = {f"{alias}.{name}": replace(column, name=f"{alias}.{name}") for name, column in found.items()}
        if columns.keys() & named.keys():
            raise QueryRefused("two of the joined tables have one name; give each a name of its own with AS")
        columns |= named
    one = private_table(joined.table, policy)
    multiplied = any(join.column is None for join in joined.joins)
    unit = replace(policy.unit, column=one.unit.column) if multiplied else one.unit
    try:
        # Made anew: how the sources are written down is not how this table is.
        return Policy(table=one.table, source=one.source, columns=columns, budget=policy.budget, unit=unit)
    except InvalidInput as error:
        raise QueryRefused(f"the tables cannot be joined: {error}") from None


def check_partners(joined: Joined, policy: Policy) -> None:
    """Refuse joins in which one row of a person could find too many partners."""
    most = math.prod(
        private_table(join.table, policy).unit.rows for join in joined.joins if join.column is None
    )
    if most > MOST_PARTNERS:
        raise QueryRefused(
            f"a row could find {most:,} partners, and at most {MOST_PARTNERS:,} are added up; join fewer "
            "private tables, or the holder can lower their rows in [tables]"
        )


def private_table(name: str, policy: Policy) -> Policy:
    """The policy of one private table, or QueryRefused."""
    found = policy.private(name)
    if found is None:
        raise QueryRefused(f"there is no private table {name} in the policy")
    return found


def joined_columns(joined: Joined, policy: Policy) -> Iterator[tuple[str, dict[str, Column]]]:
    """The alias of each table and its declared columns, in order."""
    yield joined.alias, dict(private_table(joined.table, policy).columns)
    for join in joined.joins:
        table = private_table(join.table, policy) if join.column is None else policy.public[join.table]
        yield join.alias, dict(table.columns)


@dataclass(frozen=True)
class Source:
    """The tables of a SELECT; `joined` is None for the one table of a policy."""

    joined: Joined | None
    names: Names


def parse_from(select: exp.Select, policy: Policy) -> Source:
    """The tables of a SELECT, or QueryRefused."""
    name, alias = _table(select.args.get("from_"), policy)
    one = policy.private(name)
    assert one is not None  # _table found it
    joined = Joined(one.table, alias)
    joins = list(select.args.get("joins") or [])
    if not joins:
        return Source(joined if policy.tables else None, Names(policy=one, table=alias))
    tables = Tables({alias.lower(): {item.lower(): f"{alias}.{item}" for item in one.columns}})
    if one.unit.column is not None:
        tables = replace(tables, units={alias.lower(): one.unit.column.lower()})
    for node in joins:
        joined, tables = _with_join(node, joined, tables, policy)
    check_partners(joined, policy)
    text = " ".join([_sql(select.args["from_"]).removeprefix("FROM "), *map(_sql, joins)])
    return Source(joined, Names(policy=rows_policy(joined, policy), table=alias, tables=tables, source=text))


def _table(source: Expr | None, policy: Policy) -> tuple[str, str]:
    """The name of the table after FROM, and its alias in the query."""
    names = policy.private_names
    several = f"tables {', '.join(names)}" if len(names) > 1 else f"table {names[0]}"
    refused = QueryRefused(
        f"only the {several} can be asked, not a function or a file; public tables are joined to it"
        if policy.public
        else f"only the {several} can be asked, not a function or a file",
        nearest=f"SELECT COUNT(*) FROM {quoted(names[0])}",
    )
    found = _named(parts(source, "this")[0] if source is not None else None)
    if found is None or policy.private(found[0]) is None:
        raise refused
    return found


def _named(table: Expr | None) -> tuple[str, str] | None:
    """A table's name with its schema, and its alias; None for any other node."""
    if type(table) is not exp.Table or type(table.this) is not exp.Identifier or table.args.get("sample"):
        return None
    _, alias, database = parts(table, "this", "alias", "db")
    name = f"{database.name}.{table.name}" if database is not None else table.name
    return name, table.name if alias is None else str(parts(alias, "this")[0].name)


def _with_join(node: Expr, joined: Joined, tables: Tables, policy: Policy) -> tuple[Joined, Tables]:
    name, alias, left = _partner(node, policy)
    if alias.lower() in tables.columns:
        raise QueryRefused(f"two joined tables are called {alias}; give one of them another name with AS")
    private = policy.private(name)
    if private is not None:
        _check_person(node, alias, private, tables, joined)
        join, columns = Join(private.table, alias, left), private.columns
        if private.unit.column is not None:
            known = "absent" if left else "units"
            person = {**getattr(tables, known), alias.lower(): private.unit.column.lower()}
            tables = replace(tables, **{known: person})
    else:
        public = next(table for known, table in policy.public.items() if known.lower() == name.lower())
        column = _public_column(node, alias, public, _names_so_far(joined, tables, policy))
        place = column.name if joined.joins else f"{joined.alias}.{column.name}"
        join, columns = Join(public.name, alias, left, place), public.columns
        if isinstance(_sides(node), str):
            tables = replace(tables, merged={**tables.merged, public.key.lower(): place})
    own = {item.lower(): f"{alias}.{item}" for item in columns}
    tables = replace(tables, columns={**tables.columns, alias.lower(): own})
    return replace(joined, joins=(*joined.joins, join)), tables


def _names_so_far(joined: Joined, tables: Tables, policy: Policy) -> Names:
    return Names(
        policy=rows_policy(joined, policy), table=joined.alias, tables=tables if joined.joins else None
    )


def _partner(node: Expr, policy: Policy) -> tuple[str, str, bool]:
    """The joined table's name and alias, and whether rows without a partner stay."""
    side, kind = (str(node.args.get(name) or "").upper() for name in ("side", "kind"))
    if node.args.get("method") or (side, kind) not in (
        ("", ""),
        ("", "INNER"),
        ("LEFT", ""),
        ("LEFT", "OUTER"),
    ):
        raise QueryRefused(
            f"{_sql(node)} is not answered: joins are INNER or LEFT, so that each row belongs to one person; "
            "write JOIN or LEFT JOIN"
        )
    table = parts(node, "this", "side", "kind", "on", "using")[0]
    found = _named(table)
    known = [*(policy.tables or ()), *policy.public]
    if found is None or (
        policy.private(found[0]) is None and found[0].lower() not in map(str.lower, policy.public)
    ):
        there = f"there are {', '.join(known)}" if known else "there is none"
        raise QueryRefused(
            f"joins take tables that the policy declares, and {shown(table)} is not among them ({there}); the "
            "holder can declare it as [public.NAME] or, for private rows of the same people, in [tables.NAME]"
        )
    return (*found, side == "LEFT")


def _sides(node: Expr) -> tuple[exp.Column, exp.Column] | str | None:
    """The two sides of ON a = b, or the name in USING(name); None for anything else."""
    on, using = node.args.get("on"), node.args.get("using")
    if using:
        return str(using[0].name) if len(using) == 1 else None
    while type(on) is exp.Paren:
        (on,) = parts(on, "this")
    if type(on) is not exp.EQ:
        return None
    left, right = parts(on, "this", "expression")
    return (left, right) if type(left) is exp.Column and type(right) is exp.Column else None


def _pair(column: exp.Column) -> tuple[str, str]:
    return column.table.lower(), column.name.lower()


def _check_person(node: Expr, alias: str, private: Policy, tables: Tables, joined: Joined) -> None:
    """Two private tables are joined where the person is the same, and nothing else is compared."""
    own = private.unit.column
    if own is None or not tables.units:
        raise QueryRefused("private tables are joined on the person; the holder can name it as unit.column")
    sides = _sides(node)
    if isinstance(sides, str):
        same = sides.lower() == own.lower() and own.lower() in tables.units.values()
    else:
        pairs = {_pair(side) for side in sides or ()}
        others = pairs - {(alias.lower(), own.lower())}
        same = len(pairs) == 2 and len(others) == 1 and others <= set(tables.units.items())
    if not same:
        first = tables.units[joined.alias.lower()]
        raise QueryRefused(
            f"{_sql(node)} is not answered: private tables are joined on the person and nothing else, as "
            f"{_written(joined.alias, first)} = {_written(alias, own)}; other conditions go into WHERE"
        )


def _public_column(node: Expr, alias: str, public: PublicTable, names: Names) -> Column:
    """The column so far that is compared with a public table's key."""
    sides, key = _sides(node), (alias.lower(), public.key.lower())
    if isinstance(sides, str):
        others = [exp.column(sides)] if sides.lower() == public.key.lower() else []
    else:
        others = [side for side in sides or () if _pair(side) != key]
    if len(others) != 1 or (not isinstance(sides, str) and _pair(others[0])[0] == alias.lower()):
        example = f"{_written(names.table, public.key)} = {_written(alias, public.key)}"
        raise QueryRefused(
            f"{_sql(node)} is not answered: the public table {public.name} is joined on its key, as {example}; "
            "other conditions go into WHERE"
        )
    column = names.column(others[0])
    _check_types(column, public)
    return column


def _check_types(column: Column, public: PublicTable) -> None:
    wanted = public.columns[public.key].type
    if column.type != wanted:
        raise QueryRefused(
            f"column {column.name} is {column.type} and the key of {public.name} is {wanted}: they are joined "
            "in one type; the holder can declare both alike"
        )


def _written(alias: str, name: str) -> str:
    return f"{quoted(alias)}.{quoted(name)}"


def _sql(node: Expr) -> str:
    return node.sql(dialect="duckdb").strip()


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
