"""Cells → a table of the declared types and ranges."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.randomness import Sampler
from sfumato.storage import write_whole
from sfumato.synthesis.cells import CellColumn

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

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
    """A value for each cell: its own, or one drawn evenly from its bin; NULL for what is missing."""
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
