"""The rows that a query aggregates, on any engine: of one table, of a join, or one row of each person.

Rows of a join may also be added up for each person before the join. That is cheaper, and gives the same sums
where the joined tables have one row of a person and alone say in which group the person is: then all rows of a
person are in one group, and no rows have to be put in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import ibis

from sfumato.errors import InvalidInput
from sfumato.policy import Key, Policy
from sfumato.query.bounding import OWN_HASH, Bounding, first_rows
from sfumato.query.choosing import from_list, in_list, listable
from sfumato.query.conditions import Every
from sfumato.query.engines import Engine
from sfumato.query.expressions import NUMBER, Expression, Range, Value, clip, columns_of, double, whole
from sfumato.query.measures import UNIT
from sfumato.query.names import Join, Joined, joined_columns, private_table, rows_policy
from sfumato.query.plan import (
    GroupKey,
    PerPerson,
    PersonValue,
    Query,
    columns_used,
    person_kind,
    person_policy,
    person_range,
)

_PERSON = "person"  # of the table that is being joined
Listed = Mapping[str, Sequence[Key]]
"""The columns of which only some values matter, and these; on DuckDB others become NULL."""


def rows_of(engine: Engine, asked: Bounding, policy: Policy) -> Value:
    """The rows that a query aggregates, under the names c0, c1, … and unit that its policy numbers."""
    query, joined = asked.query, asked.query.joined
    if joined is None:
        rows = engine.declared(policy, columns_used(query))
    else:
        first = engine.declared(private_table(joined.table, policy))
        rows = _with_partners(engine, first, joined, asked, policy, {})
    if query.per_person is None:
        return rows
    return person_table(rows, query.per_person, rows_policy(joined, policy))


def _with_partners(
    engine: Engine, first: Value, joined: Joined, asked: Bounding, policy: Policy, listed: Listed
) -> Value:
    """Rows of the first table, or sums of them for each unit, beside the used columns of the others."""
    tables = [[f"{alias}.{name}" for name in columns] for alias, columns in joined_columns(joined, policy)]
    names = [name for table in tables for name in table]
    places = {name: f"c{place}" for place, name in enumerate(names)}  # as `rows_policy` numbers them
    keys = {
        join.alias: f"{join.alias}.{policy.public[join.table].key}"
        for join in joined.joins
        if join.column is not None
    }
    used = columns_used(asked.query) | {*keys.values(), *(join.column for join in joined.joins)}
    rows = first
    for own, join in zip(tables[1:], joined.joins, strict=True):
        columns = {places[name]: f"c{place}" for place, name in enumerate(own) if name in used}
        coded = {places[name]: listed[name] for name in own if name in used and name in listed}
        partner = _partner(engine, join, policy, columns, coded, asked.salt)
        key = UNIT if join.column is None else places[join.column]
        other = _PERSON if join.column is None else places[keys[join.alias]]
        _check_alike(rows[key], partner[other], join)
        rows = rows.join(partner, rows[key] == partner[other], how="left" if join.left else "inner")
        rows = rows.select(*(name for name in rows.columns if name != _PERSON))
    return rows


def _partner(
    engine: Engine, join: Join, policy: Policy, columns: Mapping[str, str], coded: Listed, salt: str
) -> Value:
    """The `columns` of a joined table, each from its own, and the person of a private one."""
    if join.column is not None:
        table = engine.public[join.table]
        return table.select(**{name: table[stored] for name, stored in columns.items()})
    one = private_table(join.table, policy)
    table = engine.declared(one)
    table = table.select(**{name: table[stored] for name, stored in columns.items()}, **{UNIT: table[UNIT]})
    table = table.mutate(**{name: in_list(table[name], values) for name, values in coded.items()})
    cut = first_rows(table, one.unit.rows, salt=salt)
    cut = cut.mutate(**{name: from_list(cut[name], values) for name, values in coded.items()})
    # A view, as two partners that give the same columns would be one table to Ibis.
    return cut.select(*columns, **{_PERSON: cut[UNIT]}).view()


def _check_alike(one: Value, other: Value, join: Join) -> None:
    """Refuse keys that are stored in two types before the charge: the schema is public."""
    kinds = [str(value.type()).removeprefix("!") for value in (one, other)]
    if kinds[0] != kinds[1]:
        raise InvalidInput(
            f"expected what joins {join.table} to be stored in one type on both sides, got {kinds[0]} and "
            f"{kinds[1]}; convert one of them"
        )


def early_sums(engine: Engine, asked: Bounding, policy: Policy) -> Value | None:
    """The sums of a query, in the cheaper order; None where that would not be the same."""
    query, joined = asked.query, asked.query.joined
    if joined is None or not joined.joins or query.per_person is not None:
        return None
    own = {f"{joined.alias}.{name}" for name in private_table(joined.table, policy).columns}
    conditions = query.where.parts if isinstance(query.where, Every) else filter(None, [query.where])
    conditions = tuple(conditions)
    before = tuple(item for item in conditions if own.issuperset(columns_of(item)))
    after = tuple(item for item in conditions if item not in before)
    if not _is_the_same(query, joined, policy, own, after):
        return None
    # The first table's columns have the same numbers in the join.
    first = engine.declared(private_table(joined.table, policy))
    units = asked.sums_by_unit(first, Every(before) if before else None)
    listed = _listed(engine, asked, after)
    units = _with_partners(engine, units, joined, asked, policy, listed)
    return asked.sums_of_units(units, Every(after) if after else None, listed)


def _listed(engine: Engine, asked: Bounding, after: Sequence[Expression]) -> Listed:
    """The text columns that are grouped by and otherwise unread, with the values that have a group."""
    if asked.keys is None or engine.name not in OWN_HASH:
        return {}
    keys, filtered = asked.query.keys, {name for item in after for name in columns_of(item)}
    plain = {
        key.column: values
        for key, values in zip(keys, asked.keys, strict=True)
        if isinstance(key, GroupKey) and asked.policy.columns[key.column].type == "text" and listable(values)
    }
    read = [name for key in keys for name in columns_of(key.of)]
    return {name: known for name, known in plain.items() if name not in filtered and read.count(name) == 1}


def _is_the_same(
    query: Query, joined: Joined, policy: Policy, own: set[str], after: Sequence[Expression]
) -> bool:
    """Whether a person finds one partner, who says the group, and the rows hold the added values."""
    private = [join for join in joined.joins if join.column is None]
    one_partner = all(private_table(join.table, policy).unit.rows == 1 for join in private)
    looked_up = {join.column for join in joined.joins if join.column is not None}
    grouped = {name for key in query.keys for name in columns_of(key.of)}
    filtered = {name for item in after for name in columns_of(item)}
    measured = {name for item in query.aggregates for of in (item.of, item.other) for name in columns_of(of)}
    by_person = private_table(joined.table, policy).unit.column is not None
    return by_person and one_partner and not (looked_up | grouped | filtered) & own and own.issuperset(measured)


# ---- one row of each person

_AGGREGATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "min": lambda of, by: of.min(),
    "max": lambda of, by: of.max(),
    "first": lambda of, by: of.argmin(_in_order(by, of), where=of.notnull() & by.notnull()),
    "last": lambda of, by: of.argmax(_in_order(by, of), where=of.notnull() & by.notnull()),
    "any": lambda of, by: of.any(),
    "all": lambda of, by: of.all(),
    "distinct": lambda of, by: of.nunique(),
}


def _in_order(by: Value, of: Value) -> Value:
    """Rows that are as early are in the order of their values: who else is in the table decides nothing."""
    return ibis.struct({"by": by, "of": of})


def person_table(rows: Value, inner: PerPerson, policy: Policy) -> Value:
    """The declared rows, added up to one row a person, under the names c0, c1, … and unit."""
    kept = rows.filter(rows[UNIT].notnull())
    if inner.where is not None:
        kept = kept.filter(inner.where.sql(kept, policy))
    # Columns first, which the aggregates then read: a constant has a value on every row too.
    columns = {
        f"{letter}{i}": part.sql(kept, policy)
        for i, value in enumerate(inner.values)
        for letter, part in (("v", value.of), ("b", value.by))
        if part is not None
    }
    kept = kept.select(UNIT, **columns)
    found = kept.group_by(UNIT).agg(
        **{f"c{i}": _total(i, value, kept, policy) for i, value in enumerate(inner.values)}
    )
    bounded = {f"c{i}": _bounded(found[f"c{i}"], value, policy) for i, value in enumerate(inner.values)}
    persons = found.select(UNIT, **bounded)
    if inner.having is None:
        return persons
    return persons.filter(inner.having.sql(persons, person_policy(inner, policy)))


def _total(place: int, value: PersonValue, rows: Value, policy: Policy) -> Value:
    if value.of is None:
        return rows.count()
    of = rows[f"v{place}"]
    if value.function == "count":
        return of.count()
    if value.function == "count_if":
        return of.sum() if of.type().is_integer() else of.ifelse(1, 0).sum()
    if value.function in ("sum", "avg"):
        total = _exact_sum(of, value.of.range(policy))
        return total if value.function == "sum" else total / of.count().nullif(0).cast("float64")
    return _AGGREGATIONS[value.function](of, rows[f"b{place}"] if value.by is not None else None)


_HALF = 46  # bits of each of the two whole numbers that a number is taken apart into


def _exact_sum(of: Value, found: Range) -> Value:
    """The sum of a person's numbers, to the last bit the same in every order of addition.

    Sums of doubles round by the order of the rows, and that depends on who else is in the table: one person
    could tip the sums of others over a threshold. So whole numbers are added up: a number x below 2ᵉ as ⌊x/s⌋
    with s = 2ᵉ⁻⁴⁶, and the rest of it in steps of s·2⁻⁴⁶.
    """
    if found.whole:
        return _whole_sum(of)
    step = math.ldexp(1.0, math.frexp(found.size)[1] - _HALF)
    high = (of.cast("float64") * double(1 / step)).floor().cast("float64")
    low = ((of - high * double(step)) * double(2**_HALF / step)).floor()
    return _whole_sum(high) * double(step) + _whole_sum(low) * double(step / 2**_HALF)


def _whole_sum(of: Value) -> Value:
    """DuckDB and PostgreSQL add up 64 bits in wider numbers; Spark does so for decimals."""
    wide = "decimal(38, 0)" if of.get_backend().name == "pyspark" else "int64"
    return of.cast("int64").cast(wide).sum().cast("float64")


def _bounded(total: Value, value: PersonValue, policy: Policy) -> Value:
    if person_kind(value, policy) != NUMBER:
        return total
    found = person_range(value, policy)
    if found.whole:
        within = clip(total.cast("float64"), double(found.low), double(found.high)).floor().cast("int64")
        return clip(within, whole(int(found.low)), whole(int(found.high)))
    return found.snap(clip(total.cast("float64"), double(found.low), double(found.high)))
