"""Columns → cells, by the policy's declarations and nothing else.

Each column that a model learns from has a fixed number of cells; a row is in one of them. Categories have a
cell each, numbers and dates one for each part of the range between their bounds, and a value that is missing,
or none of the categories, is in a cell of its own, the last one.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato import interruption
from sfumato.errors import DataError, InvalidInput
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Column, Policy, Unit
from sfumato.query.engines import Engine, open_engine
from sfumato.query.expressions import column_name
from sfumato.query.measures import UNIT
from sfumato.randomness import Sampler

if TYPE_CHECKING:
    import pyarrow as pa


Cells = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
FINE = 256
"""Parts of a range at first; `sums.join_cells` joins them where few rows are."""

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
        """Return all declared columns but the target and those left out.

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
    """The values in the column's type; texts of a file are read value by value, or are missing."""
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


# The target


@dataclass(frozen=True, kw_only=True)
class Target:
    """The column that a model predicts: `classes` are its declared categories, or None for a number."""

    column: Column
    classes: tuple[Any, ...] | None

    @classmethod
    def of(cls, policy: Policy, name: str) -> Target:
        """The declared column `name`; InvalidInput, with the remedy, where it cannot be learned."""
        if policy.unit.column is not None and name.lower() == policy.unit.column.lower():
            raise InvalidInput(f"expected a target other than {name}, which tells people apart")
        column = policy.column(name)
        if column is None:
            section = f"tables.{policy.table}.columns" if policy.tables else "columns"
            raise InvalidInput(
                f"expected the target to be one of {', '.join(policy.columns)}, got {name!r}; or declare it "
                f"as [{section}.{name}]"
            )
        classes = categories_of(column)
        if classes is None and column.bounds is None:
            raise InvalidInput(
                f"expected categories or bounds of the target {column.name}, got neither; declare the classes "
                f"as columns.{column.name}.categories, or lower and upper of a number"
            )
        if classes is not None and len(classes) < 2:
            raise InvalidInput(
                f"expected at least two categories of the target {column.name}, got one; a model of one class "
                "has nothing to learn"
            )
        return cls(column=column, classes=classes)

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def outputs(self) -> int:
        """How many scores a model gives: one for two classes and for a number."""
        return 1 if self.classes is None or len(self.classes) == 2 else len(self.classes)

    def encode(self, table: pa.Table) -> Floats:
        """Numbers of classes, or numbers scaled to ±1 and clipped; NaN where there is none."""
        values = table[self.name]
        if self.classes is not None:
            places = places_among(values, self.classes).astype(np.float64)
            return np.where(places < 0, np.nan, places)
        low, high = range_of(self.column)
        return np.clip(2 * (numbers_of(values, self.column) - low) / (high - low) - 1, -1, 1)

    def decode(self, scaled: Floats) -> Floats:
        """Numbers in their own units, from ±1."""
        low, high = range_of(self.column)
        return low + (np.clip(scaled, -1, 1) + 1) / 2 * (high - low)


# Rows of any engine: planned before the charge, read after it


_private_log = logging.getLogger("sfumato.private.query")


@dataclass(frozen=True)
class Source:
    """A table that an engine has planned to read: declared columns, sanitized, each row by itself."""

    engine: Engine
    expression: Any
    columns: tuple[str, ...]

    @classmethod
    def open(cls, policy: Policy, columns: Sequence[str], *, data: Any = None) -> Source:
        """Check the file or the database, and the columns in it; no row is looked at yet."""
        engine = open_engine(policy, data=data)
        declared = engine.declared(policy)
        wanted = {name: declared[name] for name in (column_name(column, policy) for column in columns)}
        if policy.unit.column is not None:
            wanted[UNIT] = declared[UNIT]
        expression = declared.select(**wanted)
        engine.prepare(expression)
        return cls(engine, expression, tuple(columns))

    def read(self) -> tuple[pa.Table, pa.ChunkedArray | None]:
        """All rows, and whose they are; an engine's error text may quote a row and is not shown."""
        try:
            found = self.engine.connection.to_pyarrow(self.expression)
        except Exception as error:
            interruption.check()
            _private_log.error("the rows could not be read", exc_info=error)
        else:
            units = found[UNIT] if UNIT in found.column_names else None
            return found.select(range(len(self.columns))).rename_columns(list(self.columns)), units
        raise DataError(
            f"the {self.engine.name} engine could not read the table; its message may quote private rows and "
            "goes to the log 'sfumato.private.query' only"
        )


def public_rows(policy: Policy, place: str | Path, columns: Sequence[str]) -> pa.Table:
    """Rows of a public file that is written as the policy says, such as those to measure on.

    Raises:
        InvalidInput: The file is a source of the policy: figures from private rows are not public.
    """
    private = (policy.source, *(one.source for one in policy.tables.values()))
    if Path(place).resolve() in [Path(source).resolve() for source in private]:
        raise InvalidInput(
            "expected public rows to measure on, got the policy's own table; a figure from private rows is a "
            "release of its own: leave --test-data out"
        )
    kept = {name: column for name, column in policy.columns.items() if name in columns}
    beside = replace(policy, source=str(place), columns=kept, unit=Unit(), tables={}, public={})
    return Source.open(beside, columns).read()[0]


def within_bound(units: pa.ChunkedArray, rows: int, sampler: Sampler) -> npt.NDArray[np.bool_]:
    """Return which rows count: at most `rows` of each unit, by a secret draw of each row; none without a
    unit.
    """
    codes = units.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    order = np.lexsort((sampler.uniform(codes.size), codes))
    ordered = codes[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if codes.size else np.zeros(0, int)
    lengths = np.diff(np.append(first, codes.size))
    rank = np.arange(codes.size) - np.repeat(first, lengths)
    kept = np.zeros(codes.size, dtype=np.bool_)
    kept[order] = (rank < rows) & (ordered >= 0)
    return kept
