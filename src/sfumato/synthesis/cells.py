"""Declared columns → cells: a public, finite list of values for each column, and one cell for missing values.

Cells come from the policy alone: its categories, its bounds, or true and false. The last cell of a column holds
missing values, and values outside the declared categories.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.policy import Column, Policy
from sfumato.randomness import Sampler
from sfumato.storage import write_whole

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MOST_CELLS = 64
"""Of a number or a date; longer ranges are cut into as many bins of one width, or fewer."""

MOST_COLUMNS = 64
MOST_CATEGORIES = 4096


@dataclass(frozen=True, kw_only=True)
class CellColumn:
    """One column as cells 0, …, size − 2, and size − 1 for missing values.

    >>> CellColumn(name="city", type="text", values=("Delft", "Utrecht")).label(1)
    'Utrecht'
    """

    name: str  # the column
    type: str  # its type, as the policy has it
    values: tuple[Any, ...] | None = None  # one value for each cell; None if cells are bins of numbers
    lower: float = 0.0  # where the first bin begins
    upper: float = 0.0  # where the last one ends
    width: float = 0.0  # the width of a bin

    @property
    def size(self) -> int:
        """How many cells there are, with that of missing values."""
        return self.missing + 1

    @property
    def missing(self) -> int:
        if self.values is not None:
            return len(self.values)
        span = self.upper - self.lower
        return max(1, round(span / self.width)) if self.type == "real" else int(span // self.width) + 1

    def label(self, cell: int, last: int | None = None) -> str:
        """A cell in words, or a row of bins up to the last one."""
        if cell == self.missing:
            return "missing"
        if self.values is not None:
            return str(self.values[cell])
        ends = [self.lower + at * self.width for at in (cell, (cell if last is None else last) + 1)]
        shown: list[Any] = [ends[0], min(ends[1], self.upper)]
        if self.type == "date":
            shown = [datetime.date.fromordinal(int(day)) for day in shown]
        return f"{shown[0]} to {shown[1]}"

    def to_json(self) -> dict[str, Any]:
        values = None if self.values is None else [str(v) if self.type == "date" else v for v in self.values]
        return {
            "name": self.name,
            "type": self.type,
            "values": values,
            "lower": self.lower,
            "upper": self.upper,
            "width": self.width,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CellColumn:
        """As `to_json` wrote it: a column that a policy could declare; ValueError or TypeError elsewhere."""
        values, name, kind = data["values"], data["name"], data["type"]
        if not isinstance(name, str) or set(data) != {field.name for field in fields(cls)}:
            raise ValueError("expected the fields of a column")
        if values is None:
            ends = [_bound(kind, data[end]) for end in ("lower", "upper")]
            Column(name=name, type=kind, lower=ends[0], upper=ends[1])
            found = cls(**{**data, "width": _validate.positive("width", data["width"])})
        else:
            Column(name=name, type=kind, categories=tuple(values))
            found = cls(name=name, type=kind, values=tuple(map(_day, values) if kind == "date" else values))
        if found.missing > MOST_CATEGORIES:
            raise ValueError("expected fewer cells")
        return found


def _bound(kind: str, value: Any) -> Any:
    return datetime.date.fromordinal(_validate.integer("bound", value)) if kind == "date" else value


def cell_columns(
    policy: Policy, names: Sequence[str] | None = None, *, leave_out: Sequence[str] = ()
) -> tuple[tuple[CellColumn, ...], tuple[str, ...]]:
    """The policy's columns as cells, or those named, and the names of those left out on purpose.

    Raises:
        InvalidInput: If a name is not the policy's, or a column has neither categories nor bounds.

    >>> from sfumato.accounting import Budget
    >>> from sfumato.policy import Column
    >>> ill = Column(name="ill", type="boolean")
    >>> policy = Policy(table="people", source="people.csv", columns={"ill": ill}, budget=Budget(epsilon=1))
    >>> [column.name for column in cell_columns(policy)[0]]
    ['ill']
    """
    used, left_out = policy.used_columns(leave_out=leave_out, only=names)
    columns = tuple(found for column in used if (found := _cells(column)) is not None)
    if not columns:
        raise InvalidInput("expected at least one column to synthesize, got none; leave fewer out")
    for column in columns:
        if column.missing > MOST_CATEGORIES:
            raise InvalidInput(
                f"expected at most {MOST_CATEGORIES} categories of {column.name}, got {column.missing}; "
                "declare coarser ones"
            )
    if len(columns) > MOST_COLUMNS:
        raise InvalidInput(
            f"expected at most {MOST_COLUMNS} columns, got {len(columns)}; name the ones to synthesize with "
            "--columns"
        )
    return columns, left_out


def declared_cells(policy: Policy) -> tuple[CellColumn, ...]:
    """Return every column that has cells, which rules may name."""
    return tuple(found for column in policy.columns.values() if (found := _cells(column)) is not None)


def _cells(column: Column) -> CellColumn | None:
    if column.categories is not None:
        return _listed(column, column.categories)
    if column.type == "boolean":
        return _listed(column, (False, True))
    if column.days is not None:
        first, last = (day.toordinal() for day in column.days)
        if last - first < MOST_CELLS:
            return _listed(column, tuple(range(first, last + 1)))
        return _binned(column, first, last)
    if column.bounds is None:
        return None
    lower, upper = column.bounds
    if column.type == "real":
        return CellColumn(
            name=column.name, type="real", lower=lower, upper=upper, width=(upper - lower) / MOST_CELLS
        )
    if upper - lower < MOST_CELLS:
        return _listed(column, tuple(range(int(lower), int(upper) + 1)))
    return _binned(column, int(lower), int(upper))


def _listed(column: Column, values: tuple[Any, ...]) -> CellColumn:
    if column.type == "date":
        values = tuple(_day(value) for value in values)
    return CellColumn(name=column.name, type=column.type, values=values)


def _day(value: Any) -> datetime.date:
    return datetime.date.fromordinal(value) if isinstance(value, int) else datetime.date.fromisoformat(value)


def _binned(column: Column, lower: int, upper: int) -> CellColumn:
    """Bins of a whole width, so that every bin of a whole number has as many values, save the last."""
    width = -(-(upper - lower + 1) // MOST_CELLS)
    return CellColumn(name=column.name, type=column.type, lower=lower, upper=upper, width=width)


# Merging: a cell whose noisy count is within the noise tells nothing, and would only bring noise into every
# marginal that it is part of. It reads noisy counts alone: post-processing

TELLING = 3.0
"""Standard deviations of noise from which on a count says something."""

CERTAIN = 4.0
"""The same for missing values, as a column without any must not get some."""


@dataclass(frozen=True)
class Buckets:
    """Which bucket each cell of a column belongs to, and how its cells share a bucket."""

    place: Integers  # (cells,)
    shares: Floats  # (buckets, cells); each row adds up to 1
    column: str

    @property
    def size(self) -> int:
        return len(self.shares)

    def counts(self, cells: Floats) -> Floats:
        """Counts of buckets from those of cells."""
        return np.asarray(np.bincount(self.place, weights=cells, minlength=self.size), dtype=np.float64)

    def mean_spread(self, sigma: float) -> float:
        """The mean noise of a bucket where that of each cell is σ, by which a fit weighs."""
        return float(sigma * self._roots.mean())

    def spread(self, mean: float) -> Floats:
        """The noise of each bucket where the mean one is this: a bucket of many cells has more."""
        return np.asarray(mean * self._roots / self._roots.mean())

    @property
    def _roots(self) -> Floats:
        return np.sqrt(self.counts(np.ones(len(self.place))))


def merged(column: CellColumn, noisy: Floats, sigma: float) -> Buckets:
    """The buckets of one column from its noisy counts."""
    counts = np.maximum(noisy, 0.0)
    has_missing = noisy[column.missing] >= CERTAIN * sigma
    if not has_missing:
        counts[column.missing] = 0.0
    rare = counts < TELLING * sigma
    rare[column.missing] = not has_missing
    if rare[: column.missing].all():
        rare[int(np.argmax(noisy[: column.missing]))] = False
    place = _adjacent(counts, TELLING * sigma) if column.values is None else _together(rare)
    if not has_missing:  # rows that miss a value, which are few, go where most are
        place[column.missing] = place[int(np.argmax(counts[: column.missing]))]
    elif column.values is None:
        place[column.missing] = place[: column.missing].max() + 1
    return Buckets(place, _shares(place, counts, column.missing if not has_missing else None), column.name)


def coarser(column: CellColumn, fine: Buckets, counts: Floats, most: int) -> Buckets:
    """A column in at most so many buckets, two or more, by the noisy counts of its own ones.

    Neighbours of an ordered column are joined until each bucket holds about as much, and the rarest ones of
    another column. Missing values of an ordered column stay apart: in two buckets it says whether there is a
    value, and nothing else.
    """
    ordered = column.type in ("integer", "real", "date")
    gone = int(fine.place[column.missing])
    apart = ordered and fine.size > 1 and bool((fine.shares[gone, : column.missing] == 0).all())
    mass = np.maximum(counts, 0.0) + 1e-9
    values = np.delete(np.arange(fine.size), gone if apart else [])
    group = np.full(fine.size, most - 1)
    group[values] = (_even if ordered else _commonest)(mass[values], most - apart)
    group = np.unique(group, return_inverse=True)[1]
    weights = np.zeros((int(group.max()) + 1, fine.size))
    weights[group, np.arange(fine.size)] = mass
    shares = (weights / weights.sum(axis=1, keepdims=True)) @ fine.shares
    return Buckets(group[fine.place], shares, fine.column)


def _even(mass: Floats, most: int) -> Integers:
    """Neighbours together, about as much in each group."""
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    return np.minimum(np.floor(middle * most), most - 1).astype(np.int64)


def _commonest(mass: Floats, most: int) -> Integers:
    """The largest ones by themselves, and the rest together."""
    rank = np.empty(len(mass), dtype=np.int64)
    rank[np.argsort(-mass, kind="stable")] = np.arange(len(mass))
    return np.minimum(rank, most - 1)


def _together(rare: npt.NDArray[np.bool_]) -> Integers:
    """Every telling cell by itself, and the rest in one bucket."""
    place = np.cumsum(~rare) - 1
    place[rare] = int((~rare).sum())
    return place.astype(np.int64)


def _adjacent(counts: Floats, least: float) -> Integers:
    """Neighbouring bins are joined until each bucket holds at least so many; the last cell is the caller's."""
    place, bucket, held = np.zeros(len(counts), dtype=np.int64), 0, 0.0
    for cell in range(len(counts) - 1):
        place[cell] = bucket
        held += counts[cell]
        if held >= least and cell < len(counts) - 2:
            bucket, held = bucket + 1, 0.0
    if held < least and bucket > 0:
        place[place == bucket] = bucket - 1
    return place


def _shares(place: Integers, counts: Floats, never: int | None) -> Floats:
    shares = np.zeros((int(place.max()) + 1, len(place)))
    shares[place, np.arange(len(place))] = counts + 1e-9  # a bucket of nothing is shared equally
    if never is not None:
        shares[:, never] = 0.0
    return shares / shares.sum(axis=1, keepdims=True)


def merge_table(counts: npt.NDArray[np.int64], buckets: Sequence[Buckets]) -> npt.NDArray[np.int64]:
    """Counts of combinations of buckets: sums of those of cells, so that one person moves them no further."""
    for axis, bucket in enumerate(buckets):
        moved = np.moveaxis(counts, axis, 0)
        joined = np.zeros((bucket.size, *moved.shape[1:]), dtype=np.int64)
        np.add.at(joined, bucket.place, moved)
        counts = np.moveaxis(joined, 0, axis)
    return np.ascontiguousarray(counts)


# Cells → a table of the declared types and ranges

FORMATS = (".csv", ".parquet")
_TYPES = {
    "integer": pa.int64(),
    "real": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
}
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def to_table(columns: Sequence[CellColumn], cells: Mapping[str, Integers], sampler: Sampler) -> pa.Table:
    """A value for each cell: its own, or one drawn evenly from its bin; NULL where it is missing."""
    return pa.table({column.name: _values(column, cells[column.name], sampler) for column in columns})


def _values(column: CellColumn, cells: Integers, sampler: Sampler) -> pa.Array:
    missing = cells == column.missing
    if column.values is not None:
        return pa.array([*column.values, None], type=_TYPES[column.type]).take(pa.array(cells))
    first = column.lower + np.where(missing, 0, cells) * column.width
    if column.type == "real":
        drawn: Any = _decimals(column, first, sampler)
    else:
        room = np.minimum(column.width, column.upper - first + 1)
        drawn = (first + np.floor(sampler.uniform(len(cells)) * np.maximum(room, 1))).astype(np.int64)
    if column.type == "date":
        return pa.array((drawn - _EPOCH).astype(np.int32), type=pa.int32(), mask=missing).cast(pa.date32())
    return pa.array(drawn, type=_TYPES[column.type], mask=missing)


def _decimals(column: CellColumn, first: Floats, sampler: Sampler) -> Floats:
    """One of a bin's decimal numbers, of which it has a hundred or more: 60556, and not 60556.38881696.

    As many decimals as the bins and the declared bounds make sense of; nothing is read off the data.
    """
    places = min(15, max(0, math.ceil(-math.log10(column.width / 100))))
    scale = 10.0**places
    last = np.minimum(first + column.width, column.upper)
    low, high = np.ceil(first * scale), np.ceil(last * scale)  # without the right end, which is the next bin's
    drawn = sampler.uniform(len(first))
    if not np.all(high > low) or float(np.abs(high).max(initial=0.0)) >= 2.0**52:
        return np.asarray(np.minimum(first + drawn * column.width, column.upper))
    found = (low + np.floor(drawn * (high - low))) / scale
    return np.clip(found, column.lower, column.upper)


def new_place(place: Path) -> Path:
    """The place of a table that is not there yet, with an ending that we write."""
    _validate.one_of("the file's ending", place.suffix.lower(), FORMATS)
    if place.exists() or not place.parent.is_dir():
        raise InvalidInput(f"expected a new file in a folder that exists, got {place}; choose another --out")
    return place


def write_table(table: pa.Table, place: Path) -> None:
    """Whole or not at all, as the ending says."""
    _validate.one_of("the file's ending", place.suffix.lower(), FORMATS)
    sink = pa.BufferOutputStream()
    if place.suffix.lower() == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, sink)
    else:
        from pyarrow import csv

        csv.write_csv(table, sink)
    write_whole(place, sink.getvalue().to_pybytes(), readable=True)
