"""Joins: of private tables on the person and nothing else, and with public tables on their key.

A joined row is made of rows of one person and of public rows. So a person who comes or goes takes along their
own joined rows and changes nobody else's, and these are bounded after the join like rows of any table. Before
it, every private table but the first is cut to the rows of a person that its policy lets count, so that no
person's rows multiply without limit. A public table has each value of its key once: a row finds one partner or
none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy
from sfumato.query.refusal import QueryRefused

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
    """What a query reads: a private table, and what is joined to it."""

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
