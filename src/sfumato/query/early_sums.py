"""A join that is cheaper the other way round: rows are added up for each person first, and joined then.

That gives the same sums where the joined tables have one row of a person and alone say in which group the
person is: then all rows of a person are in one group, and no rows have to be put in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sfumato.policy import Key, Policy
from sfumato.query import bounding
from sfumato.query.choosing import listable
from sfumato.query.engines import Engine
from sfumato.query.expressions.base import Expression, Value, columns_of
from sfumato.query.expressions.conditions import Every
from sfumato.query.joined_rows import with_partners
from sfumato.query.joining import Joined, private_table, rows_policy
from sfumato.query.keys import GroupKey, expression_of
from sfumato.query.measures import Measure
from sfumato.query.plan import Query, columns_used


def early_sums(
    engine: Engine,
    query: Query,
    measures: Sequence[Measure],
    policy: Policy,
    *,
    keys: Sequence[Sequence[Key]] | None,
    salt: str,
) -> Value | None:
    """The sums of a query, in the cheaper order; None where that would not be the same."""
    joined = query.joined
    if joined is None or not joined.joins or query.per_person is not None:
        return None
    own = {f"{joined.alias}.{name}" for name in private_table(joined.table, policy).columns}
    conditions = _conjuncts(query.where)
    before = tuple(item for item in conditions if own.issuperset(columns_of(item)))
    after = tuple(item for item in conditions if item not in before)
    if not _is_the_same(query, joined, policy, own, after):
        return None
    rows = rows_policy(joined, policy)
    # The first table's columns have the same numbers in the join.
    first = engine.declared(private_table(joined.table, policy))
    units = bounding.sums_by_unit(first, Every(before) if before else None, measures, rows)
    listed = _listed(engine, query, rows, keys, after)
    units = with_partners(engine, units, joined, policy, used=columns_used(query), salt=salt, listed=listed)
    rest = replace(query, where=Every(after) if after else None)
    return bounding.sums_of_units(units, rest, measures, rows, keys=_not_listed(query, keys, listed), salt=salt)


def _not_listed(
    query: Query, keys: Sequence[Sequence[Key]] | None, listed: Mapping[str, Sequence[Key]]
) -> Sequence[Sequence[Key] | None] | None:
    if keys is None:
        return None
    plain = [isinstance(key, GroupKey) and key.column in listed for key in query.keys]
    return [None if done else values for done, values in zip(plain, keys, strict=True)]


def _listed(
    engine: Engine,
    query: Query,
    policy: Policy,
    keys: Sequence[Sequence[Key]] | None,
    after: Sequence[Expression],
) -> Mapping[str, Sequence[Key]]:
    """The text columns that are grouped by and otherwise unread, with the values that have a group."""
    if keys is None or engine.name not in bounding.OWN_HASH:
        return {}
    filtered = {name for item in after for name in columns_of(item)}
    plain = {
        key.column: values
        for key, values in zip(query.keys, keys, strict=True)
        if isinstance(key, GroupKey) and policy.columns[key.column].type == "text" and listable(values)
    }
    read = [name for key in query.keys for name in columns_of(expression_of(key))]
    return {name: known for name, known in plain.items() if name not in filtered and read.count(name) == 1}


def _conjuncts(where: Expression | None) -> tuple[Expression, ...]:
    if where is None:
        return ()
    return where.parts if isinstance(where, Every) else (where,)


def _is_the_same(
    query: Query, joined: Joined, policy: Policy, own: set[str], after: Sequence[Expression]
) -> bool:
    """Whether a person finds one partner, who says the group, while the rows say what is added up."""
    private = [join for join in joined.joins if join.column is None]
    one_partner = all(private_table(join.table, policy).unit.rows == 1 for join in private)
    looked_up = {join.column for join in joined.joins if join.column is not None}
    grouped = {name for key in query.keys for name in columns_of(expression_of(key))}
    filtered = {name for item in after for name in columns_of(item)}
    measured = {name for item in query.aggregates for of in (item.of, item.other) for name in columns_of(of)}
    by_person = private_table(joined.table, policy).unit.column is not None
    return by_person and one_partner and not (looked_up | grouped | filtered) & own and own.issuperset(measured)
