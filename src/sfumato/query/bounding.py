"""The engine's part: filter, bound each unit's contribution, sum in whole numbers. Noise is added elsewhere.

The results are exact sums of which one unit moves a known, public amount. With rows = m (in all groups
together) and groups = k:

1. rows are filtered, and their values clipped and put in fixed point;
2. each unit's rows are added up for each group (never row by row: no window over rows);
3. where a unit is in several groups, these are put in an order of its own, by a salted hash; it counts in the
   first k, and until its m rows are used up;
4. a unit with more rows than count is scaled down to as many rows of its mean;
5. units are added up for each group.

On DuckDB, where groups are public and a unit counts with few rows, `choosing` takes the place of 2 to 4: it
picks the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import ibis

from sfumato.policy import Key, Policy
from sfumato.query import choosing
from sfumato.query.choosing import own_hash, own_number, secret, top_bits
from sfumato.query.expressions import Expression, Value, built_in, clip, whole, whole_quotient
from sfumato.query.measures import CELL, DITHER, KEPT, ROWS, UNIT, UNITS, Counted, Measure, total
from sfumato.query.plan import GroupKey, Query, key_value

OWN_HASH = ("duckdb",)  # engines whose own hash is several times quicker than md5, which all have
_TURN = 12  # letters of the hash
_DITHERED = 20  # bits to round by
_LARGEST_SUM = 10**18 - 1  # 2²⁹ rows of a unit stay below it
_COUNTS = (ibis.expr.operations.CountStar, ibis.expr.operations.Count)


@dataclass(frozen=True)
class Bounding:
    """A query whose contributions are to be bounded.

    `keys` holds the public values of each key; None where one has none. `policy` is that of the rows, and
    `salt` a secret text for the choice among a unit's groups.
    """

    query: Query
    measures: Sequence[Measure]
    policy: Policy
    keys: Sequence[Sequence[Key]] | None
    salt: str

    @property
    def names(self) -> list[str]:
        return self.query.key_names

    @property
    def linear(self) -> list[Measure]:
        return [measure for measure in self.measures if not isinstance(measure, Counted)]

    def sums(self, table: Value) -> Value:
        """One row for each group: its bounded rows and units, and the columns of each linear measure."""
        linear, names, keys, unit = self.linear, self.names, self.keys, self.policy.unit
        rows = self._filtered(table)
        if unit.column is None:
            totals = _totals(rows, linear)
            found = rows.group_by(names).agg(**totals) if names else rows.agg(**totals)
            return _in_categories(_held_back(found.mutate(**{UNITS: found[ROWS]}), names), names, keys)
        if keys is not None and rows.get_backend().name in OWN_HASH and choosing.applies(linear, unit, keys):
            chosen = choosing.chosen_rows(rows, names, linear, unit, keys, self.salt)
            found = chosen.group_by(choosing.GROUP).agg(**_totals(chosen, linear))
            return choosing.with_keys(found, names, keys)
        units = _unit_totals(_in_categories(rows, names, keys), [UNIT, *names], linear)
        return self._add_units(_bounded_units(units, names, self.policy, self.salt))

    def sums_by_unit(self, table: Value, where: Expression | None) -> Value:
        """One row for each unit: its rows that count, and the columns of each linear measure."""
        alone = replace(self, query=Query(outputs=(), where=where))
        return _unit_totals(alone._filtered(table), [UNIT], self.linear)

    def sums_of_units(self, units: Value, where: Expression | None, listed: Collection[str]) -> Value:
        """Return `sums` from `sums_by_unit` with the keys' columns beside them: each unit is in one group.

        Columns that are `listed` hold a public value, or NULL, already.
        """
        done = [isinstance(key, GroupKey) and key.column in listed for key in self.query.keys]
        known: Sequence[Sequence[Key] | None] = self.keys or [None] * len(done)
        keys = [None if told else values for told, values in zip(done, known, strict=True)]
        rows = replace(self, query=replace(self.query, where=where))._declared(units)
        grouped = _in_categories(rows, self.names, keys)
        return self._add_units(_bounded_units(grouped, (), self.policy, self.salt))

    def cell_counts(self, table: Value, measure: Counted) -> Value:
        """One row for each group and cell: how many bounded rows, or different values, there are."""
        rows = self._declared(table).mutate(**{CELL: measure.cell(table, self.policy)})
        groups, unit = self.names, self.policy.unit
        names = [*groups, CELL]
        rows = _in_categories(rows.filter(rows[CELL].notnull()), groups, self.keys)
        if unit.column is None:
            kept = rows.group_by(names).agg(**{KEPT: rows.count()})
        else:
            units = rows.group_by([UNIT, *names]).agg(**{ROWS: rows.count()})
            if measure.distinct:
                units = units.mutate(**{ROWS: whole(1)})  # a value that a unit has twice is one value
            kept = _within_rows(units, names, unit.rows, groups=None, salt=self.salt)
        if not measure.distinct:
            return kept.group_by(names).agg(**{ROWS: kept[KEPT].sum()})
        different = {ROWS: kept[CELL].nunique()}
        found = kept.group_by(groups).agg(**different) if groups else kept.agg(**different)
        return found.mutate(**{CELL: whole(0)})

    def _declared(self, table: Value) -> Value:
        """The rows that count, with the keys beside them; rows without unit or key belong nowhere."""
        named = zip(self.names, self.query.keys, strict=True)
        keys = {name: key_value(key, table, self.policy) for name, key in named}
        rows, where = table.mutate(**keys), self.query.where
        wanted = [] if where is None else [where.sql(rows, self.policy)]
        if self.policy.unit.column is not None:
            wanted += [rows[name].notnull() for name in (*keys, UNIT)]
        return rows.filter(*wanted) if wanted else rows

    def _filtered(self, table: Value) -> Value:
        """The rows that count, with each measure's values beside the keys and the unit."""
        rows = self._declared(table)
        values: dict[str, Value] = {}
        for position, measure in enumerate(self.linear):
            values |= measure.row_values(position, rows, self.policy)
        kept = [*self.names, *([UNIT] if self.policy.unit.column is not None else [])]
        return rows.select(*kept, **values) if values else rows

    def _add_units(self, units: Value) -> Value:
        units = units.mutate(**{DITHER: _dither(units, self.salt)})
        bounded: dict[str, Value] = {}
        for position, measure in enumerate(self.linear):
            bounded |= measure.unit_totals(position, units)
        kept = units.mutate(**bounded)
        totals = {ROWS: total(kept[KEPT]), UNITS: kept.count()} | {name: total(kept[name]) for name in bounded}
        return kept.group_by(self.names).agg(**totals) if self.names else kept.agg(**totals)


def _held_back(found: Value, names: Sequence[str]) -> Value:
    """Keys that no optimizer can filter by before adding up: on every row that costs as much as the sums."""
    some = found[ROWS] > 0
    return found.mutate(**{name: some.ifelse(found[name], ibis.null(found[name].type())) for name in names})


def _totals(rows: Value, linear: Sequence[Measure]) -> dict[str, Value]:
    found = {ROWS: rows.count()}
    for position, measure in enumerate(linear):
        found |= measure.row_totals(position, rows)
    return found


def _unit_totals(rows: Value, names: Sequence[str], linear: Sequence[Measure]) -> Value:
    """The totals of each unit (and group), in whole numbers of 64 bits.

    Engines add up in wider numbers, which are slow. Ibis takes a sum for 64 bits and drops a plain cast, so
    that it goes through a decimal; one of 18 digits is stored in 64 bits. Counts are that wide already.
    """
    totals, most = _totals(rows, linear), whole(_LARGEST_SUM)
    units = rows.group_by(list(names)).agg(**totals)
    wide = [name for name, value in totals.items() if not isinstance(value.op(), _COUNTS)]
    narrow = {name: clip(units[name], -most, most).cast("decimal(18, 0)").cast("int64") for name in wide}
    return units.select(*names, **{name: narrow.get(name, units[name]) for name in totals})


def _in_categories(rows: Value, names: Sequence[str], keys: Sequence[Sequence[Key] | None] | None) -> Value:
    """The rows whose keys are public values; where these are None, whose keys are not NULL."""
    for name, values in zip(names, keys or [None] * len(names), strict=True):
        if values is None:
            rows = rows.filter(rows[name].notnull())
        elif rows[name].type().is_boolean():
            wanted = [rows[name] if value else ~rows[name] for value in values]
            rows = rows.filter(wanted[0] if len(wanted) == 1 else rows[name].notnull())
        else:
            rows = rows.filter(rows[name].isin(list(values)))
    return rows


def _bounded_units(units: Value, names: Sequence[str], policy: Policy, salt: str) -> Value:
    """Each unit's totals in each group, with `kept`: as how many rows they count."""
    if not names:
        most = whole(policy.unit.rows)
        return units.mutate(kept=(units[ROWS] > most).ifelse(most, units[ROWS]))
    return _within_rows(units, names, policy.unit.rows, groups=policy.unit.groups, salt=salt)


def first_rows(rows: Value, most: int, *, salt: str) -> Value:
    """At most so many rows of each unit, in the order of a salted hash of all that a row holds."""
    rows = rows.filter(rows[UNIT].notnull())
    names = list(rows.columns)
    if most == 1 and rows.get_backend().name in OWN_HASH:
        return _least(rows)
    rows = rows.mutate(turn=_turn(rows, names, salt))
    order = ibis.window(group_by=UNIT, order_by=["turn", *names])
    numbered = rows.mutate(place=ibis.row_number().over(order))
    return numbered.filter(numbered["place"] < most).select(*names)


def _least(rows: Value) -> Value:
    """The row with the least values of each unit, found without sorting; NULL comes last."""
    names = [name for name in rows.columns if name != UNIT]
    if len(names) < 2:
        return rows.group_by(UNIT).agg(**{name: rows[name].min() for name in names})
    found = rows.group_by(UNIT).agg(least=ibis.struct({name: rows[name] for name in names}).min())
    return found.select(UNIT, **{name: found["least"][name] for name in names})


def _turn(units: Value, names: Sequence[str], salt: str) -> Value:
    """Where a unit's group stands among its groups: by a hash of a secret salt and of its own values.

    Which hash it is matters to fairness only, not to privacy: the order depends on no other unit.
    """
    if units.get_backend().name in OWN_HASH:
        return own_hash(ibis.struct({"salt": ibis.literal(salt), **{name: units[name] for name in names}}))
    label = ibis.literal(salt)
    for name in names:
        text = units[name].cast("string")
        label = (
            label + ibis.literal("|") + text.length().cast("string").fill_null("") + ":" + text.fill_null("")
        )
    return built_in("md5", "string", label).substr(0, _TURN)


def _within_rows(units: Value, names: Sequence[str], most: int, *, groups: int | None, salt: str) -> Value:
    """Fill up each unit's `most` rows group by group, in the order of a salted hash.

    Groups of one hash, which a hostile unit may have found, are in the order of their keys: other rows of the
    table must not decide between them.
    """
    units = units.mutate(turn=_turn(units, (UNIT, *names), salt))
    order_by = ["turn", *names]
    so_far = ibis.cumulative_window(group_by=UNIT, order_by=order_by)
    order = ibis.window(group_by=UNIT, order_by=order_by)
    # With room for no more rows than groups, the rows alone keep the groups within their limit.
    place = {"place": ibis.row_number().over(order)} if groups is not None and groups < most else {}
    units = units.mutate(before=units[ROWS].sum().over(so_far) - units[ROWS], **place)
    kept = clip(whole(most) - units["before"], whole(0), units[ROWS])
    units = units.mutate(kept=kept.cast("int64"))
    counted = units["kept"] > 0
    return units.filter(counted & (units["place"] < groups) if place else counted)


def _dither(units: Value, salt: str) -> Value:
    """A whole number from 0 to below the unit's rows, by the engine's hash of a secret salt and the unit."""
    hashed = _BITS_OF[units.get_backend().name](units[UNIT], salt)
    return whole_quotient(hashed * units[ROWS], whole(2**_DITHERED))


def _lowest(name: str, unit: Value, salt: str) -> Value:
    return built_in(name, "int64", unit.cast("string"), secret(salt)) & whole(2**_DITHERED - 1)


_BITS_OF: dict[str, Callable[[Value, str], Value]] = {
    "duckdb": lambda unit, salt: top_bits(own_number(unit, salt), _DITHERED),
    "postgres": partial(_lowest, "hashtextextended"),
    "pyspark": partial(_lowest, "xxhash64"),
}
