"""The rows of a join, on whatever engine: what `joining` describes, in Ibis."""

from __future__ import annotations

from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy
from sfumato.query.bounding import first_rows
from sfumato.query.compilation import Value
from sfumato.query.engines import Engine
from sfumato.query.joining import Join, Joined, joined_columns, private_table
from sfumato.query.measures import UNIT


def joined_rows(engine: Engine, joined: Joined | None, policy: Policy, *, salt: str) -> Value:
    """The rows that a query reads, under the names c0, c1, … and unit of `rows_policy`."""
    if joined is None or not joined.joins:
        return engine.declared(policy if joined is None else private_table(joined.table, policy))
    tables = list(joined_columns(joined, policy))
    rows = _numbered(engine.declared(private_table(joined.table, policy)), 0)
    places = _places(tables)
    for place, join in enumerate(joined.joins, 1):
        partner = _numbered(_partner(engine, join, policy, salt), place)
        key = f"t0_{UNIT}" if join.column is None else places[join.column]
        other = f"t{place}_{UNIT}" if join.column is None else places[f"{join.alias}.{_key(join, policy)}"]
        _check_alike(rows[key], partner[other], join)
        rows = rows.join(partner, rows[key] == partner[other], how="left" if join.left else "inner")
        rows = rows.select(*(name for name in rows.columns if name != f"t{place}_{UNIT}"))
    unit = {UNIT: rows[f"t0_{UNIT}"]} if f"t0_{UNIT}" in rows.columns else {}
    return rows.select(**{f"c{i}": rows[name] for i, name in enumerate(places.values())}, **unit)


def _places(tables: list[tuple[str, dict[str, Column]]]) -> dict[str, str]:
    """Where each column is before the last step: t1_c0 is the first column of the second table."""
    return {
        f"{alias}.{name}": f"t{place}_c{i}"
        for place, (alias, columns) in enumerate(tables)
        for i, name in enumerate(columns)
    }


def _numbered(table: Value, place: int) -> Value:
    return table.select(**{f"t{place}_{name}": table[name] for name in table.columns})


def _key(join: Join, policy: Policy) -> str:
    return policy.public[join.table].key


def _partner(engine: Engine, join: Join, policy: Policy, salt: str) -> Value:
    if join.column is not None:
        return engine.public[join.table]
    one = private_table(join.table, policy)
    return first_rows(engine.declared(one), one.unit.rows, salt=salt)


def _check_alike(one: Value, other: Value, join: Join) -> None:
    """The schema is public: what is stored in two types is refused before anything is charged."""
    kinds = [str(value.type()).removeprefix("!") for value in (one, other)]
    if kinds[0] != kinds[1]:
        raise InvalidInput(
            f"expected what joins {join.table} to be stored in one type on both sides, got {kinds[0]} and "
            f"{kinds[1]}; convert one of them"
        )
