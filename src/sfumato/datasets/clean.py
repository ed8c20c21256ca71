"""Files in which no row affects another, for engines to read: made from the holder's file, once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.datasets import lines
from sfumato.datasets import lines as calendar
from sfumato.datasets.private_copy import PrivateCopy
from sfumato.datasets.text_table import Rows, TextForm, is_text, rows_of
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

REPAIRED = "bytes that are not UTF-8, each read as U+FFFD"
MOVED = "a day outside the years 1 to 9999, read as the nearest one inside"
_SHOWN = 20  # line numbers of each fault that are kept
BATCH = 1 << 16  # rows
MOST_CHARACTERS = 1000
"""Of a text; engines get one character more, by which they tell that a text is longer."""
_ENCODED = 1 << 28  # bytes of a row group, beyond which few rows are read at a time
_FEW = 1 << 8


@dataclass
class Tally:
    """The findings in a file: PRIVATE, for the holder's log and screen."""

    rows: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[int]] = field(default_factory=dict)

    @property
    def dropped(self) -> int:
        """Lines that are no rows."""
        return sum(self.faults.get(words, 0) for words in lines.IN_WORDS.values())

    def add(self, part: Rows) -> None:
        self.rows += part.table.num_rows
        for fault, numbers in part.faults.items():
            self.note(lines.IN_WORDS[fault], numbers)
        self.note(REPAIRED, part.repaired)

    def note(self, words: str, numbers: lines.Integers) -> None:
        """Count lines of which something is to be said, and keep the numbers of the first ones."""
        if numbers.size:
            self.faults[words] = self.faults.get(words, 0) + int(numbers.size)
            kept = self.places.setdefault(words, [])
            kept += numbers[: _SHOWN - len(kept)].tolist()

    def in_words(self) -> str:
        """Counts alone, in a sentence."""
        return "; ".join(f"{count:,}: {words}" for words, count in self.faults.items()) or "nothing is wrong"


def clean_copy(
    path: Path,
    way: object,
    rows: Callable[[Tally], Iterator[pa.Table]],
    *,
    report: Callable[[Tally], None],
) -> Path:
    """Return the private Parquet copy of a file, made now if there is none.

    Engines read this copy only: metadata, encodings and code in the original file reach no engine.

    Args:
        path: The file.
        way: The other inputs of the copy: the declared columns, and how they are read.
        rows: Reads the file, and counts its findings in a tally.
        report: Hears that tally when a copy is made.
    """
    copy = PrivateCopy.of(path, repr(way))
    if not copy.is_made():
        tally = Tally()
        copy.write(rows(tally))
        report(tally)
    copy.remove_stale()
    return copy.path


def text_rows(path: Path, form: TextForm, columns: Sequence[str], tally: Tally) -> Iterator[pa.Table]:
    """The declared columns of a text file, as text, some rows at a time."""
    for part in rows_of(path, form, columns):
        tally.add(part)
        yield part.table


def read_rows(path: Path, form: TextForm, columns: Sequence[str]) -> pa.Table:
    """The declared columns of a file in memory; of a text file, a row for each line that is not blank."""
    import pyarrow as pa

    if not path.is_file():
        raise DataUnavailable(f"there is no file {path}; give the path of a CSV or Parquet file")
    if is_text(path):
        return pa.concat_tables(part.table for part in rows_of(path, form, columns, keep_faulty=True))
    return pa.concat_tables(parquet_rows(path, columns, Tally()))


def parquet_types(path: Path) -> list[tuple[str, pa.DataType]]:
    """The name and type of each column, by the file's schema alone."""
    schema = _parquet(path).schema_arrow
    return [(one.name, one.type) for one in schema]


def parquet_rows(path: Path, columns: Sequence[str], tally: Tally) -> Iterator[pa.Table]:
    """The declared columns that a Parquet file has, under the policy's names, some rows at a time.

    Values are read, and nothing that the file says of them, such as the least and the largest.
    """
    import pyarrow as pa

    found: dict[str, list[tuple[str, pa.DataType]]] = {}
    for name, kind in parquet_types(path):
        found.setdefault(name.lower(), []).append((name, kind))
    stored = {column: found[column.lower()] for column in columns if column.lower() in found}
    if any(len(same) > 1 for same in stored.values()):
        raise InvalidInput(
            f"expected each declared column once in {path.name}, in whatever letter case; rename one"
        )
    schema = pa.schema([one for (one,) in stored.values()])
    held: list[pa.Table] = []
    for part in chain([schema.empty_table()], _batches(path, schema.names)):
        held.append(_read(path, part.rename_columns(list(stored)), tally))
        if sum(one.num_rows for one in held) >= BATCH:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _read(path: Path, part: pa.Table, tally: Tally) -> pa.Table:
    """The part in plain types; a file may hold values that its own types do not allow."""
    import pyarrow as pa

    try:
        return plain(part, tally)
    except (OverflowError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataCorrupted(
            f"{path} has a column whose values cannot be read in its type; write it in a plainer type"
        ) from error


def _parquet(path: Path, **options: Any) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, **options)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataCorrupted(f"{path} is not a sound Parquet file; check that it is whole") from error


def _batches(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    import pyarrow as pa

    try:
        if columns:
            file, rows = _in_parts(path, columns)
            for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                # They come in the file's order.
                yield pa.Table.from_batches([batch.select(list(columns))])
    except (OSError, pa.ArrowException) as error:
        raise DataCorrupted(f"{path} is not a sound Parquet file; check that it is whole") from error


def _in_parts(path: Path, columns: Sequence[str]) -> tuple[Any, int]:
    """The file, with texts that repeat kept once where it keeps them so, and how many rows to read at once."""
    file = _parquet(path)
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    parts = [group.column(place) for group in groups for place in range(group.num_columns)]
    parts = [part for part in parts if part.path_in_schema in columns]
    plainly = {
        part.path_in_schema
        for part in parts
        if not any("DICTIONARY" in one for one in part.encodings)
        or any("DELTA" in one for one in part.encodings)
    }
    texts = [one.name for one in file.schema_arrow if one.name in columns and one.name not in plainly]
    texts = [name for name in texts if _is_stored_text(file.schema_arrow.field(name).type)]
    largest = max((part.total_uncompressed_size for part in parts), default=0)
    return _parquet(path, read_dictionary=texts), BATCH if largest <= _ENCODED else _FEW


def _is_stored_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    kinds = pa.types
    texts = (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_binary,
             kinds.is_large_binary, kinds.is_binary_view)  # fmt: skip
    return any(holds(kind) for holds in texts)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which engines get a stored one; None for one that no declared column is read from."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_dictionary(kind):
        return plain_type(kind.value_type)
    if kind == pa.uuid() or _is_stored_text(kind):
        return pa.large_string()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if kinds.is_float16(kind):
        return pa.float32()
    same = (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_date,
            kinds.is_timestamp, kinds.is_null)  # fmt: skip
    return kind if any(holds(kind) for holds in same) else None


def plain(table: pa.Table, tally: Tally) -> pa.Table:
    """The table in the types that engines read, each text in UTF-8 and each day in the calendar.

    A value is repaired by itself; the tally counts rows from 1.

    Raises:
        InvalidInput: A column is of no such type.
    """
    import pyarrow as pa

    changed: set[int] = set()
    moved: set[int] = set()
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        kind = plain_type(column.type)
        if kind is None:
            raise InvalidInput(
                f"expected column {name} to hold texts, numbers, dates or truth values, got {column.type}; "
                "convert it, or correct [columns]"
            )
        if pa.types.is_large_string(kind):
            values, places = _texts_in_utf8(column)
            changed.update(places)
        else:
            values = _in_calendar(column.cast(kind), moved)
        table = table.set_column(place, name, values)
    for words, rows in ((REPAIRED, changed), (MOVED, moved)):
        tally.note(words, np.array(sorted(rows), dtype=np.int64) + tally.rows + 1)
    tally.rows += table.num_rows
    return table


def _in_calendar(column: pa.ChunkedArray, moved: set[int]) -> pa.ChunkedArray:
    if calendar.is_in_calendar(column):
        return column
    days = calendar.in_calendar(column)
    moved.update(_different(column, days))
    return days


def _different(one: pa.ChunkedArray, other: pa.ChunkedArray) -> list[int]:
    import pyarrow.compute as pc

    places: list[int] = pc.indices_nonzero(pc.not_equal(one, other)).to_pylist()
    return places


def _texts_in_utf8(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, list[int]]:
    """The start of each text of a column, and the places of those that were repaired."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == pa.uuid() or (
        pa.types.is_dictionary(column.type) and column.type.value_type == pa.uuid()
    ):
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        return pa.chunked_array([texts], pa.large_string()), []
    stored = pa.chunked_array([_start(chunk) for chunk in column.chunks], pa.large_binary())
    with contextlib.suppress(pa.ArrowInvalid):
        texts = stored.cast(pa.large_string())  # it looks at every byte
        return pc.utf8_slice_codeunits(texts, 0, MOST_CHARACTERS + 1) if _are_long(stored) else texts, []
    found = stored.to_pylist()
    decoded = [
        None if value is None else value.decode(errors="replace")[: MOST_CHARACTERS + 1] for value in found
    ]
    pairs = zip(decoded, found, strict=True)
    changed = [
        place
        for place, (text, value) in enumerate(pairs)
        if text is not None and not value.startswith(text.encode())
    ]
    return pa.chunked_array([decoded], pa.large_string()), changed


def _start(texts: pa.Array) -> pa.Array:
    """The bytes of each text in which the characters are that are kept; of texts kept once, cut once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(texts.type):
        return pa.DictionaryArray.from_arrays(texts.indices, _start(texts.dictionary)).dictionary_decode()
    stored = texts.cast(pa.large_binary())
    return pc.binary_slice(stored, 0, 4 * (MOST_CHARACTERS + 1)) if _are_long(stored) else stored


def _are_long(stored: pa.Array | pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc

    longest = pc.max(pc.binary_length(stored)).as_py()
    return longest is not None and longest > MOST_CHARACTERS
