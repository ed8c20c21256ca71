"""The names of a query: FROM and JOIN, and the columns and people of their tables.

A private table comes first, and others are joined on the person and nothing else. A joined row is made of rows
of one person and of public rows. So a person who comes or goes takes along their own joined rows and changes no
other person's, and these are bounded after the join like rows of any table. Before it, every private table but
the first is cut to the rows of a person that its policy lets count, so that no person's rows multiply without
limit. A public table has each value of its key once: a row finds one partner or none. Every other join is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.expressions import Expr

from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy, PublicTable
from sfumato.query.reading import QueryRefused, Tally, as_sql, parts, shown

MOST_PARTNERS = 1000  # with more, the sum over one person's joined rows could leave 64 bits
_RESERVED = {name.upper() for name in DuckDB.Generator.RESERVED_KEYWORDS} | {"VALUES", "SELECT"}


def quoted(name: str) -> str:
    """A name as SQL takes it, in quotes where it needs them."""
    plain = name.isascii() and name.isidentifier() and name.upper() not in _RESERVED
    return name if plain else as_sql(exp.to_identifier(name, quoted=True))


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


@dataclass(frozen=True)
class Tables:
    """The names of the tables, in lower case: each one's columns and where they are in the policy.

    `units` names the person column of those tables where every row has it, and `absent` in those that
    were joined with LEFT JOIN. `merged` holds the names that USING makes one column.
    """

    columns: Mapping[str, Mapping[str, str]]
    units: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)

    def places(self, table: str, name: str) -> list[str]:
        """The columns that a name may mean; `table` is empty where the query names none."""
        if not table and name in self.merged:
            return [self.merged[name]]
        tables = [self.columns[table]] if table else list(self.columns.values())
        return [columns[name] for columns in tables if name in columns]

    def is_unit(self, table: str, name: str) -> bool:
        if table:
            return self.units.get(table) == name
        return name in self.units.values() and not self.places("", name)


def _first_table(alias: str, policy: Policy, prefix: str = "") -> Tables:
    unit = policy.unit.column
    return Tables(
        {alias.lower(): {name.lower(): f"{prefix}{name}" for name in policy.columns}},
        units={} if unit is None else {alias.lower(): unit.lower()},
    )


@dataclass(frozen=True, kw_only=True)
class Names:
    """The policy of the rows, and the alias of their table; with `tables`, it is a join of these.

    `source` is the text after FROM, for suggestions.
    """

    policy: Policy
    table: str
    tables: Tables | None = None
    source: str = ""
    tally: Tally = field(default_factory=Tally, compare=False)

    @cached_property
    def _known(self) -> Tables:
        return self.tables or _first_table(self.table, self.policy)

    def repeated(self, expression: Any, *, times: int = 1) -> None:
        """Count an expression that stands so many times more in the plan than in the text."""
        self.tally.add(expression, times)

    def column(self, node: Expr) -> Column:
        """The declared column that a node names."""
        table, name = self._name(node)
        if self.is_unit(node):
            raise QueryRefused(
                f"column {name} says who a row belongs to; it can only be counted",
                nearest=self.example(f"COUNT(DISTINCT {as_sql(node)})"),
            )
        places = self._known.places(table, name.lower())
        if len(places) > 1:
            raise QueryRefused(f"column {name} is in several tables; write {' or '.join(places)}")
        if not places:
            self._refuse_absent(table, name)
            known = self.policy.columns if self.tables is not None else map(quoted, self.policy.columns)
            raise QueryRefused(f"there is no column {name} in the policy, which has {', '.join(known)}")
        return self.policy.columns[places[0]]

    def _refuse_absent(self, table: str, name: str) -> None:
        """Refuse the person of a table after LEFT JOIN: whether there is a row shows in its other columns."""
        if self._known.absent.get(table) != name.lower():
            return
        other = f"{quoted(table)}.{quoted(next(iter(self._known.columns[table])))}"
        raise QueryRefused(
            f"column {name} of {table} says who a row belongs to, and is neither compared nor counted after "
            f"LEFT JOIN; that there is no row shows in a column that no row lacks: {other} IS NULL",
            nearest=f"{self.example()} WHERE {other} IS NULL",
        )

    def _name(self, node: Expr) -> tuple[str, str]:
        """The table, in lower case or empty, and the column that a node names."""
        if type(node) is not exp.Column or type(node.this) is not exp.Identifier:
            raise QueryRefused(f"expected a column, got {shown(node)}")
        identifier, table = parts(node, "this", "table")
        called = "" if table is None else str(parts(table, "this")[0]).lower()
        if called and called not in self._known.columns:
            raise QueryRefused(f"{shown(node)} is not in the table {', '.join(self._known.columns)}")
        return called, str(parts(identifier, "this")[0])

    def is_unit(self, node: Expr) -> bool:
        if type(node) is not exp.Column:
            return False
        table, name = self._name(node)
        return self._known.is_unit(table, name.lower())

    # ---- suggestions

    def written(self, name: str) -> str:
        """A column of the policy as a query names it."""
        if self.tables is None:
            return quoted(name)
        return next(
            f"{quoted(table)}.{quoted(column)}"
            for table, columns in self.tables.columns.items()
            for column, place in columns.items()
            if place == name
        )

    def example(self, items: str = "COUNT(*)", *, by: str = "") -> str:
        """A query of the same tables."""
        shown_items = f"{by}, {items}" if by else items
        text = f"SELECT {shown_items} FROM {self.source or quoted(self.policy.table)}"
        return text + (f" GROUP BY {by}" if by else "")

    def example_people(self) -> str:
        unit = self.policy.unit.column
        if unit is None:
            return self.example()
        own = quoted(unit) if self.tables is None else f"{quoted(self.table)}.{quoted(unit)}"
        return self.example(f"COUNT(DISTINCT {own})")

    def example_group_by(self) -> str:
        listed = (name for name, column in self.policy.columns.items() if column.categories is not None)
        return self.example(by=next(map(self.written, listed), ""))

    def example_for(self, name: str) -> str:
        """The nearest answerable query about one column."""
        column, written = self.policy.columns[name], self.written(name)
        if column.bounds is not None:
            return self.example(f"AVG({written})")
        if column.type != "real" and (column.categories is not None or self.policy.budget.delta > 0):
            return self.example(by=written)
        return self.example(f"COUNT({written})")

    def example_for_node(self, node: Expr) -> str:
        return self.example_for(self.column(node).name) if type(node) is exp.Column else ""

    def example_instead(self, node: Expr) -> str:
        """In place of a function that is not known: groups of the one column that it reads."""
        columns = list(node.find_all(exp.Column))
        if len(columns) != 1:
            return ""
        column = self.column(columns[0])
        if column.type == "date":
            return self.example(by=f"DATE_TRUNC('month', {self.written(column.name)})")
        if column.bounds is None:
            return self.example_for(column.name)
        return self.example(by=f"BIN({self.written(column.name)}, 10)")


# ---- FROM and JOIN


@dataclass(frozen=True)
class Source:
    """The tables of a SELECT; `joined` is None for the one table of a policy."""

    joined: Joined | None
    names: Names


def parse_from(select: exp.Select, policy: Policy) -> Source:
    """The tables of a SELECT, or QueryRefused."""
    name, alias = _table(select.args.get("from_"), policy)
    one = private_table(name, policy)
    joined = Joined(one.table, alias)
    joins = list(select.args.get("joins") or [])
    if not joins:
        return Source(joined if policy.tables else None, Names(policy=one, table=alias))
    tables = _first_table(alias, one, f"{alias}.")
    for node in joins:
        joined, tables = _with_join(node, joined, tables, policy)
    private = (private_table(join.table, policy) for join in joined.joins if join.column is None)
    most = math.prod(partner.unit.rows for partner in private)
    if most > MOST_PARTNERS:
        raise QueryRefused(
            f"a row could find {most:,} partners, and at most {MOST_PARTNERS:,} are added up; join fewer "
            "private tables, or the holder can lower their rows in [tables]"
        )
    text = " ".join([as_sql(select.args["from_"]).strip().removeprefix("FROM "), *map(_sql, joins)])
    return Source(joined, Names(policy=rows_policy(joined, policy), table=alias, tables=tables, source=text))


def _table(source: Expr | None, policy: Policy) -> tuple[str, str]:
    """The name of the table after FROM, and its alias in the query."""
    names = policy.private_names
    found = _named(parts(source, "this")[0] if source is not None else None)
    if found is None or policy.private(found[0]) is None:
        several = f"tables {', '.join(names)}" if len(names) > 1 else f"table {names[0]}"
        public = "; public tables are joined to it" if policy.public else ""
        raise QueryRefused(
            f"only the {several} can be asked, not a function or a file{public}",
            nearest=f"SELECT COUNT(*) FROM {quoted(names[0])}",
        )
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
    low = alias.lower()
    if low in tables.columns:
        raise QueryRefused(f"two joined tables are called {alias}; give one of them another name with AS")
    private = policy.private(name)
    if private is not None:
        _check_person(node, alias, private, tables, joined)
        join, columns = Join(private.table, alias, left), private.columns
        known = "absent" if left else "units"
        person = {**getattr(tables, known), low: str(private.unit.column).lower()}
        tables = replace(tables, **{known: person})
    else:
        public = next(table for known, table in policy.public.items() if known.lower() == name.lower())
        so_far = tables if joined.joins else None
        names = Names(policy=rows_policy(joined, policy), table=joined.alias, tables=so_far)
        column = _public_column(node, alias, public, names)
        place = column.name if joined.joins else f"{joined.alias}.{column.name}"
        join, columns = Join(public.name, alias, left, place), public.columns
        if isinstance(_sides(node), str):
            tables = replace(tables, merged={**tables.merged, public.key.lower(): place})
    own = {item.lower(): f"{alias}.{item}" for item in columns}
    return replace(joined, joins=(*joined.joins, join)), replace(tables, columns={**tables.columns, low: own})


def _partner(node: Expr, policy: Policy) -> tuple[str, str, bool]:
    """The joined table's name and alias, and whether rows without a partner stay."""
    side, kind = (str(node.args.get(name) or "").upper() for name in ("side", "kind"))
    kinds = (("", ""), ("", "INNER"), ("LEFT", ""), ("LEFT", "OUTER"))
    if node.args.get("method") or (side, kind) not in kinds:
        raise QueryRefused(
            f"{_sql(node)} is not answered: joins are INNER or LEFT, so that each row belongs to one person; "
            "write JOIN or LEFT JOIN"
        )
    table = parts(node, "this", "side", "kind", "on", "using")[0]
    found = _named(table)
    known = [*(policy.tables or ()), *policy.public]
    joinable = [*policy.private_names, *policy.public]
    if found is None or found[0].lower() not in map(str.lower, joinable):
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
        first = _written(joined.alias, tables.units[joined.alias.lower()])
        raise QueryRefused(
            f"{_sql(node)} is not answered: private tables are joined on the person and nothing else, as "
            f"{first} = {_written(alias, own)}; other conditions go into WHERE"
        )


def _public_column(node: Expr, alias: str, public: PublicTable, names: Names) -> Column:
    """The column so far that is compared with a public table's key, of one type with it."""
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
    column, wanted = names.column(others[0]), public.columns[public.key].type
    if column.type != wanted:
        raise QueryRefused(
            f"column {column.name} is {column.type} and the key of {public.name} is {wanted}: they are joined "
            "in one type; the holder can declare both alike"
        )
    return column


def _written(alias: str, name: str) -> str:
    return f"{quoted(alias)}.{quoted(name)}"


def _sql(node: Expr) -> str:
    return as_sql(node).strip()


# ---- WITH and sub-queries


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
