"""Which rows of a unit count, chosen in one pass over a hash table of units, without a sort: DuckDB only.

Each row becomes a number of 63 bits, from the highest:

    turn      a hash of the secret salt, the unit and the row's group: in which order the unit's groups come
    group     its group's number among all public groups
    tie       a hash of the secret salt, the unit and the row's own values
    values    the values of the row that one measure reads

and a unit keeps its m smallest numbers. So its groups are filled up one after another, and where room ends
within a group, its rows are taken by hash. Then rows beyond its k-th group are dropped. Which rows a unit
keeps depends on the salt and on its own rows alone, and no group comes sooner than another. Several measures
make one list each; turn, group and tie agree in all of them, so that rows stay together.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import ibis

from sfumato.policy import Key, Unit
from sfumato.query.expressions import Value, built_in, whole
from sfumato.query.measures import UNIT, Measure, UnitCount

_MOST_ROWS = 16  # a unit's list is as long from its first row on
_MOST_LISTED = 256  # values that are looked up in a list
_MOST_GROUPS = 1 << 16
_BITS, _LEAST_HASH, _MOST_HASH = 63, 10, 31
GROUP = "number"
_MIX, _PACKED = "mix", "packed"


def applies(measures: Sequence[Measure], unit: Unit, keys: Sequence[Sequence[Key]] | None) -> bool:
    """Whether rows can be packed: public groups, few rows a unit, and values that fit."""
    if not keys or unit.rows > _MOST_ROWS or any(isinstance(item, UnitCount) for item in measures):
        return False
    if not all(_contiguous(values) or listable(values) for values in keys):
        return False
    groups = math.prod(len(values) for values in keys)
    return groups <= _MOST_GROUPS and Packing.of(measures, groups).turn >= _LEAST_HASH


@dataclass(frozen=True)
class Packing:
    """How many bits each part of a row's number takes; `fields` has the columns of each list, in order."""

    group: int
    values: int
    fields: tuple[dict[str, int], ...]

    @classmethod
    def of(cls, measures: Sequence[Measure], groups: int) -> Packing:
        fields = tuple(reach for place, item in enumerate(measures) if (reach := item.row_reach(place)))
        widths = [sum(map(_width, reach.values())) for reach in fields]
        return cls(max(1, (groups - 1).bit_length()), max(widths, default=0), fields)

    @property
    def turn(self) -> int:
        return min(_MOST_HASH, (_BITS - self.group - self.values) // 2)

    @property
    def tie(self) -> int:
        return min(_MOST_HASH, _BITS - self.turn - self.group - self.values)


def _width(reach: int) -> int:
    return (reach + 1).bit_length()  # reach + 1 stands for NULL


def chosen_rows(
    rows: Value,
    names: Sequence[str],
    measures: Sequence[Measure],
    unit: Unit,
    keys: Sequence[Sequence[Key]],
    salt: str,
) -> Value:
    """The rows that count, with the number of their group in place of its keys, and the measures' values."""
    groups = math.prod(len(values) for values in keys)
    packing = Packing.of(measures, groups)
    numbered = _numbered(rows, names, keys).mutate(**{_MIX: own_number(rows[UNIT], salt)})
    packed = numbered.select(UNIT, **_packed(numbered, packing))
    lists = {name: _least(packed[name], whole(unit.rows)) for name in packed.columns if name != UNIT}
    units = packed.group_by(UNIT).agg(**lists)
    if unit.groups < min(unit.rows, groups):
        units = _in_first_groups(units, list(lists), unit, packing)
    return _unpacked(units.select(**{name: units[name].unnest() for name in lists}), packing)


def with_keys(found: Value, names: Sequence[str], keys: Sequence[Sequence[Key]]) -> Value:
    """The keys of a group, from its number."""
    values, number, stride = {}, found[GROUP], 1
    for name, known in reversed(list(zip(names, keys, strict=True))):
        ahead = number % whole(stride * len(known)) - number % whole(stride)  # a multiple of the stride
        values[name] = _element(_listed(known), ahead // whole(stride) + whole(1))
        stride *= len(known)
    return found.mutate(**values).drop(GROUP)


def _numbered(rows: Value, names: Sequence[str], keys: Sequence[Sequence[Key]]) -> Value:
    """The rows whose keys are public values, with the number of their group."""
    places = [f"place{number}" for number in range(len(keys))]
    found = {place: _place(rows[name], known) for place, name, known in zip(places, names, keys, strict=True)}
    rows = rows.mutate(**found)
    ends = [(rows[place], len(known)) for place, known in zip(places, keys, strict=True)]
    number = functools.reduce(lambda number, end: number * whole(end[1]) + end[0], ends, whole(0))
    return rows.filter(*(place.between(0, size - 1) for place, size in ends)).mutate(**{GROUP: number})


def listable(known: Sequence[Key]) -> bool:
    """Whether there are few enough values to look one up in their list, row by row."""
    return len(known) <= _MOST_LISTED


def in_list(value: Value, known: Sequence[Key]) -> Value:
    """A value's place in a list, from 1 on, or NULL: whole numbers are compared and kept sooner than texts."""
    return _position(_listed(known), value).nullif(whole(0))


def from_list(place: Value, known: Sequence[Key]) -> Value:
    return _element(_listed(known), place)


def _place(value: Value, known: Sequence[Key]) -> Value:
    """Where a key stands in the list of public values; below 0 or NULL if it is not in it."""
    if _contiguous(known):
        return value.cast("int64") - whole(int(known[0]))
    return _position(_listed(known), value) - whole(1)


def _contiguous(known: Sequence[Key]) -> bool:
    numbers = [int(value) for value in known if not isinstance(value, str)]
    return len(numbers) == len(known) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _listed(known: Sequence[Key]) -> Value:
    return ibis.array([ibis.literal(value, _TYPES[type(value)]) for value in known])


_TYPES: dict[type, str] = {str: "string", int: "int64", bool: "boolean"}


def _packed(rows: Value, packing: Packing) -> dict[str, Value]:
    """One column for each list: turn, group, tie and values, one behind the other."""
    turn = top_bits(own_hash(rows[_MIX] ^ rows[GROUP].cast("uint64")), packing.turn)
    codes = [_codes(rows, fields) for fields in packing.fields]
    mixed = rows[_MIX]
    for code in codes:
        mixed = own_hash(mixed ^ code.cast("uint64"))
    tie = top_bits(mixed, packing.tie)
    place = turn << whole(packing.group) | rows[GROUP]
    above = (place << whole(packing.tie) | tie) << whole(packing.values)
    return {f"{_PACKED}{place}": above | code for place, code in enumerate(codes or [whole(0)])}


def _codes(rows: Value, fields: dict[str, int]) -> Value:
    code = None
    for name, reach in fields.items():
        value = rows[name].coalesce(whole(reach + 1))
        code = value if code is None else code << whole(_width(reach)) | value
    return code


def _in_first_groups(units: Value, names: Sequence[str], unit: Unit, packing: Packing) -> Value:
    """The lists up to the last row of the k-th group; they are in order of turn and group."""
    below = whole(packing.tie + packing.values)
    turns = [_element(units[names[0]], whole(place + 1)) >> below for place in range(unit.rows)]
    kept, before = whole(unit.groups), whole(0)
    for place in range(1, unit.rows):
        before = before + (turns[place] != turns[place - 1]).cast("int64")
        if place >= unit.groups:
            kept = kept + (before < unit.groups).cast("int64").coalesce(0)
    return units.mutate(
        **{name: built_in("list_slice", "array<int64>", units[name], whole(1), kept) for name in names}
    )


def _unpacked(rows: Value, packing: Packing) -> Value:
    first = rows[f"{_PACKED}0"]
    columns = {GROUP: (first >> whole(packing.tie + packing.values)) & whole((1 << packing.group) - 1)}
    for place, fields in enumerate(packing.fields):
        shift = 0
        for name, reach in reversed(fields.items()):
            mask = whole((1 << _width(reach)) - 1)
            code = (rows[f"{_PACKED}{place}"] >> whole(shift)) & mask
            columns[name] = code.nullif(whole(reach + 1))
            shift += _width(reach)
    return rows.select(**columns)


def top_bits(hashed: Value, bits: int) -> Value:
    """The highest bits, at most 31; Ibis takes a shifted uint64 for an int64, so that it is cast twice."""
    return (hashed >> ibis.literal(64 - bits, "uint64")).cast("int32").cast("int64")


def own_number(unit: Value, salt: str) -> Value:
    """A number of the unit's own that is secret."""
    return own_hash(own_hash(unit) ^ secret(salt).cast("uint64"))


def secret(salt: str) -> Value:
    """A salt as a whole number of 63 bits."""
    return whole(int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "big") >> 1)


def own_hash(value: Value) -> Value:
    """DuckDB's hash as it is; Ibis would cast it, at a fifth of the whole query."""
    return built_in("hash", "uint64", value)


def _position(known: Value, value: Value) -> Value:
    return built_in("list_position", "int64", known, value)


def _element(of: Value, place: Value) -> Value:
    return built_in("list_extract", of.type().value_type, of, place)


@ibis.udf.agg.builtin(name="min", signature=(("int64", "int64"), "array<int64>"))  # type: ignore[untyped-decorator]
def _least(of: Value, most: Value) -> Value:
    """The smallest values in order, as many as `most`."""
    raise AssertionError
