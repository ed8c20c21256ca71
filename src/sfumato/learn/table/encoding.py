"""Columns → cells, by what the policy declares and by nothing else.

Each column that a model learns from has a fixed number of cells; a row is in one of them. Categories have a
cell each, numbers and dates one for each part of the range between their bounds, and a value that is missing,
or none of the categories, is in a cell of its own, the last one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidInput
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Column, Policy

if TYPE_CHECKING:
    import pyarrow as pa

Cells = npt.NDArray[np.int64]
FINE = 256
"""Parts of a range at first; `binning` joins them where few rows are."""

_EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """One column: how its values become the numbers of cells."""

    column: Column

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def parts(self) -> int:
        """Cells of known values; the next one is for all others."""
        values = categories_of(self.column)
        if values is not None:
            return len(values)
        low, high = range_of(self.column)
        return int(high - low) + 1 if self._one_a_value else FINE

    @property
    def cells(self) -> int:
        return self.parts + 1

    @property
    def ordered(self) -> bool:
        """Whether neighbouring cells hold neighbouring values."""
        return self.column.type in ("integer", "real", "date")

    def encode(self, values: pa.ChunkedArray) -> Cells:
        """The cell of each value; a row is judged by itself, and nothing is an error."""
        places = self._places(typed(values, self.column))
        return np.where((places < 0) | (places >= self.parts), self.parts, places)

    def order(self) -> Cells:
        """The cells of known values, lowest first."""
        values = categories_of(self.column)
        if values is None or not self.ordered:
            return np.arange(self.parts)
        return np.argsort(np.array(values))

    def _places(self, values: pa.ChunkedArray) -> Cells:
        known = categories_of(self.column)
        if known is not None:
            return places_among(values, known)
        low, high = range_of(self.column)
        numbers = numbers_of(values, self.column)
        with np.errstate(invalid="ignore"):
            inside = np.clip(numbers, low, high) - low
            parts = inside if self._one_a_value else inside / (high - low) * self.parts
            parts = np.minimum(np.floor(parts), self.parts - 1)
        return np.where(np.isnan(numbers), -1, parts).astype(np.int64)

    @property
    def _one_a_value(self) -> bool:
        low, high = range_of(self.column)
        return self.column.type != "real" and high - low < FINE


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The columns that a model learns from, and those that were left out on purpose."""

    encoders: tuple[Encoder, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, policy: Policy, target: str, *, leave_out: Sequence[str] = ()) -> Encoding:
        """Everything the policy declares but the target and what is left out.

        Raises:
            InvalidInput: Nothing is left to learn from, or a column has neither bounds nor categories.
        """
        columns, left_out = policy.used_columns(leave_out=leave_out)
        if target in left_out:
            raise InvalidInput(f"expected --leave-out to name other columns than the target, got {target}")
        used = tuple(Encoder(column=column) for column in columns if column.name != target)
        if not used:
            raise InvalidInput(
                f"expected a column beside {target} to learn from, got none; declare one in the policy"
            )
        return cls(encoders=used, left_out=left_out)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(encoder.name for encoder in self.encoders)

    def encode(self, table: pa.Table) -> Cells:
        """(rows, columns) numbers of cells, column after column in memory."""
        cells = np.empty((table.num_rows, len(self.encoders)), dtype=np.int64, order="F")
        for place, encoder in enumerate(self.encoders):
            cells[:, place] = encoder.encode(table[encoder.name])
        return cells


def categories_of(column: Column) -> tuple[Any, ...] | None:
    if column.categories is None and column.type == "boolean":
        return False, True
    return column.categories


def range_of(column: Column) -> tuple[float, float]:
    """The bounds as numbers; those of dates in days."""
    if column.days is not None:
        first, last = ((day - _EPOCH).days for day in column.days)
        return float(first), float(last)
    if column.bounds is None:
        raise InvalidInput(f"expected lower and upper of columns.{column.name}, got none; declare them")
    return column.bounds


def typed(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """The values in the column's type; what a text file holds is read value by value, or is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == "date" and pa.types.is_timestamp(values.type):
        return values.cast(pa.date32(), safe=False)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values
    if column.type == "text":
        return pc.utf8_trim(values, " ") if column.trimmed else values
    read = _READERS[column.type]
    kinds = {"integer": pa.int64(), "real": pa.float64(), "boolean": pa.bool_(), "date": pa.date32()}
    return pa.chunked_array([pa.array([_read(text, read) for text in values.to_pylist()], kinds[column.type])])


def _read(text: str | None, read: Callable[[str], Any]) -> Any:
    try:
        return None if text is None else read(text.strip())
    except (ValueError, KeyError):
        return None


def _whole(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        value = float(text)
        number = int(value) if value.is_integer() else _LARGEST
    return number if abs(number) < _LARGEST else None


_LARGEST = 2**63
_TRUTHS = {word: word in TRUE_WORDS for word in (*TRUE_WORDS, *FALSE_WORDS)}
_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _whole,
    "real": float,
    "boolean": lambda text: _TRUTHS[text.lower()],
    "date": datetime.date.fromisoformat,
}


def places_among(values: pa.ChunkedArray, known: tuple[Any, ...]) -> Cells:
    """The place of each value in `known`, −1 for any other."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = values.cast(pa.string()) if isinstance(known[0], str) else values
    places = pc.index_in(plain, value_set=pa.array(known, type=plain.type))
    return places.fill_null(-1).to_numpy().astype(np.int64)


def numbers_of(values: pa.ChunkedArray, column: Column) -> npt.NDArray[np.float64]:
    """The values as doubles, NaN for none; days of dates."""
    import pyarrow as pa

    plain = values.cast(pa.int32()) if column.type == "date" else values
    return plain.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
