"""FROM and JOIN → which tables are read, and what their names mean.

A private table comes first. Others are joined on the person, public ones on their key, by INNER or LEFT JOIN.
Every other join is refused: one person's rows could reach those of others, or grow without bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp
from sqlglot.expressions import Expr

from sfumato.policy import Column, Policy, PublicTable
from sfumato.query.joining import Join, Joined, check_partners, rows_policy
from sfumato.query.names import Names, Tables, quoted
from sfumato.query.reading import parts, shown
from sfumato.query.refusal import QueryRefused


@dataclass(frozen=True)
class Source:
    """What a SELECT reads; `joined` is None for the one table of a policy."""

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
    """The name of the table after FROM, and what the query calls it."""
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
    """A table's name with its schema, and its alias; None for what is no table's name."""
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
