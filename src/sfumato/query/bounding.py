"""The engine's part: filter, bound what each unit contributes, sum in whole numbers. Noise is added elsewhere.

What comes out are exact sums of which one unit moves a known, public amount. With rows = m (in all groups
together) and groups = k:

1. rows are filtered, and their values clipped and put in fixed point;
2. each unit's rows are added up for each group (never row by row: no window over rows);
3. where a unit is in several groups, these are put in an order of its own, by a salted hash; it counts in the
   first k, and until its m rows are used up;
4. a unit with more rows than count is scaled down to as many rows of its mean (a sum on its own is clipped);
5. units are added up for each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ibis

from sfumato.query.compilation import (
    Value,
    clip,
    compiled,
    multiples,
    steps_above,
    whole_quotient,
)
from sfumato.query.keys import key_value
from sfumato.query.plan import Cells, ClippedSum, Measure, Moments, Query
from sfumato.query.policy import Key, Policy

UNIT = "unit"
ROWS, UNITS, CELL = "rows", "units", "cell"
_TURN = 12  # letters of the hash: as many as DuckDB sorts without looking elsewhere


@ibis.udf.scalar.builtin(name="md5")  # type: ignore[untyped-decorator]
def _md5(text: str) -> str:
    """Every engine has its own."""
    raise AssertionError


def sums(
    table: Value,
    query: Query,
    measures: Sequence[Measure],
    policy: Policy,
    *,
    keys: Sequence[Sequence[Key]] | None,
    salt: str,
) -> Value:
    """One row for each group: its bounded rows and units, and the columns of each measure (never of Cells)."""
    linear = [measure for measure in measures if not isinstance(measure, Cells)]
    names = key_names(query)
    rows = _filtered(table, query, linear, policy)
    if policy.unit.column is None:
        totals = _totals(rows, linear)
        found = rows.group_by(names).agg(**totals) if names else rows.agg(**totals)
        return _in_categories(_held_back(found.mutate(**{UNITS: found[ROWS]}), names), names, keys)
    rows = _in_categories(rows, names, keys)
    units = rows.group_by([UNIT, *names]).agg(**_totals(rows, linear))
    return _add_units(_bounded_units(units, names, policy, salt), names, linear)


def cell_counts(
    table: Value,
    query: Query,
    cells: Cells,
    policy: Policy,
    *,
    keys: Sequence[Sequence[Key]] | None,
    salt: str,
) -> Value:
    """One row for each group and cell: how many bounded rows have their value there."""
    rows = _declared(table, query, policy).mutate(**{CELL: _cell(cells, table, policy)})
    names = [*key_names(query), CELL]
    rows = _in_categories(rows.filter(rows[CELL].notnull()), names[:-1], keys)
    if policy.unit.column is None:
        return rows.group_by(names).agg(**{ROWS: rows.count()})
    units = rows.group_by([UNIT, *names]).agg(**{ROWS: rows.count()})
    kept = _within_rows(units, names, policy.unit.rows, groups=None, salt=salt)
    return kept.group_by(names).agg(**{ROWS: kept["kept"].sum()})


def key_names(query: Query) -> list[str]:
    return [f"key{i}" for i in range(len(query.keys))]


def _held_back(found: Value, names: Sequence[str]) -> Value:
    """Keys that no optimizer can filter by before adding up: on every row that costs as much as the sums."""
    some = found[ROWS] > 0
    return found.mutate(**{name: some.ifelse(found[name], ibis.null(found[name].type())) for name in names})


def _declared(table: Value, query: Query, policy: Policy) -> Value:
    """The rows that count, with the keys beside them; rows without unit or key belong nowhere."""
    keys = {name: key_value(key, table, policy) for name, key in zip(key_names(query), query.keys, strict=True)}
    rows = table.mutate(**keys)
    wanted = [] if query.where is None else [compiled(query.where, rows, policy)]
    if policy.unit.column is not None:
        wanted += [rows[name].notnull() for name in (*keys, UNIT)]
    return rows.filter(*wanted) if wanted else rows


def _filtered(table: Value, query: Query, linear: Sequence[Measure], policy: Policy) -> Value:
    """The rows that count, with each measure's value in fixed point as column x0, x1, …"""
    rows = _declared(table, query, policy)
    values = {
        f"x{i}": _row_value(measure, rows, policy)
        for i, measure in enumerate(linear)
        if isinstance(measure, ClippedSum) or (isinstance(measure, Moments) and measure.of is not None)
    }
    kept = [*key_names(query), *([UNIT] if policy.unit.column is not None else [])]
    if not kept and not values:
        return rows
    return rows.select(*kept, **values) if values else rows


def _cell(cells: Cells, table: Value, policy: Policy) -> Value:
    """The cell of the public grid in which a value lies."""
    return steps_above(cells.of, cells.lower, cells.width, cells.cells - 1, table, policy)


def _row_value(measure: Moments | ClippedSum, rows: Value, policy: Policy) -> Value:
    assert measure.of is not None
    fixed = measure.fixed
    if isinstance(measure, ClippedSum):
        return multiples(measure.of, fixed.first, fixed.grid, fixed.last, rows, policy)
    if measure.degree == 0:
        return compiled(measure.of, rows, policy).notnull().ifelse(1, ibis.null("int64"))
    return steps_above(measure.of, fixed.lower, fixed.grid, fixed.span, rows, policy)


def _totals(rows: Value, linear: Sequence[Measure]) -> dict[str, Value]:
    found = {ROWS: rows.count()}
    for position, measure in enumerate(linear):
        found |= _row_totals(position, measure, rows)
    return found


def _row_totals(position: int, measure: Measure, rows: Value) -> dict[str, Value]:
    """The sums over rows that a measure is made of, by name."""
    if not _has_values(measure):
        return {}
    value = rows[f"x{position}"]
    if isinstance(measure, ClippedSum):
        return {f"s{position}": _sum(value)}
    assert isinstance(measure, Moments)
    found = {f"n{position}": value.count()}
    if measure.degree == 1:
        found[f"s{position}"] = _sum(value)
    if measure.degree == 2:
        span = ibis.literal(measure.span, "int64")
        found[f"h{position}"] = _sum(_square_over(value, measure.span))
        found[f"l{position}"] = _sum(_square_over(span - value, measure.span))
    return found


def _square_over(value: Value, span: int) -> Value:
    """⌊v²/R⌋ through doubles: v² < 2⁵³ is exact, and the quotient is rounded alike on every engine."""
    double = value.cast("float64")
    return (double * double / ibis.literal(span, "int64").cast("float64")).floor().cast("int64")


def _sum(value: Value) -> Value:
    return value.sum().coalesce(0).cast("int64")


def _has_values(measure: Measure) -> bool:
    return isinstance(measure, ClippedSum) or (isinstance(measure, Moments) and measure.of is not None)


def _in_categories(rows: Value, names: Sequence[str], keys: Sequence[Sequence[Key]] | None) -> Value:
    if keys is None:
        return rows.filter(*(rows[name].notnull() for name in names)) if names else rows
    for name, values in zip(names, keys, strict=True):
        if rows[name].type().is_boolean():
            wanted = [rows[name] if value else ~rows[name] for value in values]
            rows = rows.filter(wanted[0] if len(wanted) == 1 else rows[name].notnull())
        else:
            rows = rows.filter(rows[name].isin(list(values)))
    return rows


def _bounded_units(units: Value, names: Sequence[str], policy: Policy, salt: str) -> Value:
    """Each unit's totals in each group, with `kept`: as how many rows they count."""
    if not names:
        most = ibis.literal(policy.unit.rows, "int64")
        return units.mutate(kept=(units[ROWS] > most).ifelse(most, units[ROWS]))
    return _within_rows(units, names, policy.unit.rows, groups=policy.unit.groups, salt=salt)


def _within_rows(units: Value, names: Sequence[str], most: int, *, groups: int | None, salt: str) -> Value:
    """Fill up each unit's `most` rows group by group, in the order of a salted hash."""
    label = ibis.literal(salt)
    for name in (UNIT, *names):
        label = label + ibis.literal("|") + units[name].cast("string")
    units = units.mutate(turn=_md5(label).substr(0, _TURN))
    so_far = ibis.cumulative_window(group_by=UNIT, order_by="turn")
    order = ibis.window(group_by=UNIT, order_by="turn")
    # With room for no more rows than groups, the rows alone keep the groups within their limit.
    place = {"place": ibis.row_number().over(order)} if groups is not None and groups < most else {}
    units = units.mutate(before=units[ROWS].sum().over(so_far) - units[ROWS], **place)
    room = ibis.literal(most, "int64") - units["before"]
    kept = clip(room, ibis.literal(0, "int64"), units[ROWS])
    units = units.mutate(kept=kept.cast("int64"))
    counted = units["kept"] > 0
    return units.filter(counted & (units["place"] < groups) if place else counted)


def _add_units(units: Value, names: Sequence[str], linear: Sequence[Measure]) -> Value:
    counts = {
        f"k{i}": _kept_count(i, units) for i, measure in enumerate(linear) if isinstance(measure, Moments)
    }
    counted = units.mutate(**{name: value for name, value in counts.items() if value is not None})
    scaled = {
        name: value for i, measure in enumerate(linear) for name, value in _scaled(i, measure, counted).items()
    }
    bounded = counted.mutate(**scaled)
    totals = {ROWS: _sum(bounded["kept"]), UNITS: bounded.count()} | {
        name: _sum(bounded[name]) for name in scaled
    }
    return bounded.group_by(list(names)).agg(**totals) if names else bounded.agg(**totals)


def _kept_count(position: int, units: Value) -> Value | None:
    """As how many values a unit's values count: in proportion to its rows."""
    if f"n{position}" not in units.columns:
        return None
    count, kept, rows = units[f"n{position}"], units["kept"], units[ROWS]
    return (kept == rows).ifelse(count, whole_quotient(count * kept, rows))


def _scaled(position: int, measure: Measure, units: Value) -> dict[str, Value]:
    """A unit's totals as if it had `kept` rows: scaled for moments, clipped for sums."""
    if not _has_values(measure):
        return {}
    if isinstance(measure, ClippedSum):
        kept, low, high = units["kept"], min(measure.fixed.first, 0), max(measure.fixed.last, 0)
        return {f"s{position}": clip(units[f"s{position}"], kept * _whole(low), kept * _whole(high))}
    assert isinstance(measure, Moments)
    count, kept_count = units[f"n{position}"], units[f"k{position}"]
    letters = {0: "", 1: "s", 2: "hl"}[measure.degree]
    shares = {
        f"{letter}{position}": _share(units[f"{letter}{position}"], count, kept_count) for letter in letters
    }
    return {f"n{position}": kept_count, **shares}


def _share(total: Value, count: Value, kept: Value) -> Value:
    """⌊total · kept / count⌋ without overflow: the quotient and the remainder are scaled apart."""
    divisor = (count > 0).ifelse(count, _whole(1))
    scaled = whole_quotient(total, divisor) * kept + whole_quotient((total % divisor) * kept, divisor)
    return (kept == count).ifelse(total, scaled)


def _whole(value: int) -> Any:
    return ibis.literal(value, "int64")
