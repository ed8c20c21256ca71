"""The rows of a join, on whatever engine: what `joining` describes, in Ibis."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sfumato.errors import InvalidInput
from sfumato.policy import Key, Policy
from sfumato.query.bounding import first_rows
from sfumato.query.choosing import from_list, in_list
from sfumato.query.engines import Engine
from sfumato.query.expressions.base import Value
from sfumato.query.joining import Join, Joined, joined_columns, private_table
from sfumato.query.measures import UNIT


def joined_rows(
    engine: Engine, joined: Joined | None, policy: Policy, *, used: Collection[str], salt: str
) -> Value:
    """The rows that a query reads, under the names c0, c1, … and unit that `rows_policy` numbers."""
    if joined is None:
        return engine.declared(policy, used)
    first = engine.declared(private_table(joined.table, policy))
    return with_partners(engine, first, joined, policy, used=used, salt=salt)


def with_partners(
    engine: Engine,
    first: Value,
    joined: Joined,
    policy: Policy,
    *,
    used: Collection[str],
    salt: str,
    listed: Mapping[str, Sequence[Key]] | None = None,
) -> Value:
    """Rows of the first table, or sums of them for each unit, beside the used columns of the others.

    `listed` has the columns of which only some values matter; on DuckDB others become NULL.
    """
    places = _places(joined, policy)
    wanted = {places[name]: values for name, values in (listed or {}).items()}
    needed = {places[name] for name in _needed(joined, policy) | (places.keys() & used)}
    rows, start = first, 0
    sizes = [len(columns) for _, columns in joined_columns(joined, policy)]
    for size, join in zip(sizes, joined.joins, strict=False):
        start += size
        partner = _partner(engine, join, policy, start=start, needed=needed, salt=salt, listed=wanted)
        key = UNIT if join.column is None else places[join.column]
        other = _PERSON if join.column is None else places[_key(join, policy)]
        _check_alike(rows[key], partner[other], join)
        rows = rows.join(partner, rows[key] == partner[other], how="left" if join.left else "inner")
        rows = rows.select(*(name for name in rows.columns if name != _PERSON))
    return rows


_PERSON = "person"  # of the table that is being joined


def _places(joined: Joined, policy: Policy) -> dict[str, str]:
    """What each column of the join is called: as `rows_policy` numbers them."""
    names = [f"{alias}.{name}" for alias, columns in joined_columns(joined, policy) for name in columns]
    return {name: f"c{place}" for place, name in enumerate(names)}


def _needed(joined: Joined, policy: Policy) -> set[str]:
    """The columns that public tables are joined on."""
    keys = [(join.column, _key(join, policy)) for join in joined.joins if join.column is not None]
    return {name for pair in keys for name in pair}


def _key(join: Join, policy: Policy) -> str:
    return f"{join.alias}.{policy.public[join.table].key}"


def _partner(
    engine: Engine,
    join: Join,
    policy: Policy,
    *,
    start: int,
    needed: Collection[str],
    salt: str,
    listed: Mapping[str, Sequence[Key]],
) -> Value:
    """The needed columns of a joined table, numbered from `start`, and the person of a private one."""
    one = None if join.column is not None else private_table(join.table, policy)
    table = engine.public[join.table] if one is None else engine.declared(one)
    count = sum(name != UNIT for name in table.columns)
    columns = {f"c{start + i}": f"c{i}" for i in range(count) if f"c{start + i}" in needed}
    if one is None:
        return table.select(**{name: table[stored] for name, stored in columns.items()})
    table = table.select(**{name: table[stored] for name, stored in columns.items()}, **{UNIT: table[UNIT]})
    coded = {name: values for name, values in listed.items() if name in columns}
    table = table.mutate(**{name: in_list(table[name], values) for name, values in coded.items()})
    cut = first_rows(table, one.unit.rows, salt=salt)
    cut = cut.mutate(**{name: from_list(cut[name], values) for name, values in coded.items()})
    return cut.select(*columns, **{_PERSON: cut[UNIT]})


def _check_alike(one: Value, other: Value, join: Join) -> None:
    """The schema is public: what is stored in two types is refused before anything is charged."""
    kinds = [str(value.type()).removeprefix("!") for value in (one, other)]
    if kinds[0] != kinds[1]:
        raise InvalidInput(
            f"expected what joins {join.table} to be stored in one type on both sides, got {kinds[0]} and "
            f"{kinds[1]}; convert one of them"
        )
