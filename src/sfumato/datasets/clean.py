"""Files in which no row affects another, for engines to read: made from what the holder has, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.datasets import calendar, lines
from sfumato.datasets.private_copy import PrivateCopy
from sfumato.datasets.text_table import Rows, TextForm, is_text, rows_of
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

REPAIRED = "bytes that are not UTF-8, each read as U+FFFD"
MOVED = "a day outside the years 1 to 9999, read as the nearest one inside"
_SHOWN = 20  # line numbers of each fault that are kept
_BATCH = 1 << 16  # rows


@dataclass
class Tally:
    """What was found in a file: PRIVATE, for the holder's log and screen."""

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


def clean_text(path: Path, form: TextForm, columns: Sequence[str], *, report: Callable[[Tally], None]) -> Path:
    """The declared columns of a text file as Parquet; `report` hears what was found when the copy is made."""
    copy = PrivateCopy.of(path, repr((form, tuple(columns))))
    if not copy.is_made():
        tally = Tally()
        copy.write(_tallied(rows_of(path, form, columns), tally))
        report(tally)
    return copy.path


def _tallied(parts: Iterator[Rows], tally: Tally) -> Iterator[pa.Table]:
    for part in parts:
        tally.add(part)
        yield part.table


def read_rows(path: Path, form: TextForm, columns: Sequence[str]) -> pa.Table:
    """The declared columns of a file in memory; of a text file, a row for each line that is not blank."""
    import pyarrow as pa

    if not path.is_file():
        raise DataUnavailable(f"there is no file {path}; give the path of a CSV or Parquet file")
    if is_text(path):
        return pa.concat_tables(part.table for part in rows_of(path, form, columns, keep_faulty=True))
    schema, tally = _declared_schema(path, columns), Tally()
    parts = [repaired(_as_table(batch), tally) for batch in _batches(path, schema.names)]
    found = {name.lower(): name for name in columns}
    return pa.concat_tables(parts or [schema.empty_table()]).rename_columns(
        [found[name.lower()] for name in schema.names]
    )


def clean_parquet(
    paths: Sequence[Path], columns: Sequence[str], *, report: Callable[[Tally], None]
) -> list[Path]:
    """Parquet files of texts in UTF-8 and days of the calendar: the files themselves, or copies."""
    schemas = [_declared_schema(path, columns) for path in paths]
    for path, schema in zip(paths, schemas, strict=True):
        if [(one.name.lower(), one.type) for one in schema] != [
            (one.name.lower(), one.type) for one in schemas[0]
        ]:
            raise InvalidInput(f"expected {path} to have the column types of {paths[0]}; convert it first")
    return [_sound(path, schema, report) for path, schema in zip(paths, schemas, strict=True)]


def _declared_schema(path: Path, columns: Sequence[str]) -> pa.Schema:
    """The declared columns that the file has, in the policy's order."""
    import pyarrow as pa

    schema = _parquet(path).schema_arrow
    found = {one.name.lower(): one for one in schema}
    wanted = [column.lower() for column in columns]
    if any([name.lower() for name in schema.names].count(name) > 1 for name in wanted):
        raise InvalidInput(
            f"expected each declared column once in {path.name}, in whatever letter case; rename one"
        )
    return pa.schema([found[name] for name in wanted if name in found])


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataCorrupted(f"{path} is not a sound Parquet file; check that it is whole") from error


def _sound(path: Path, schema: pa.Schema, report: Callable[[Tally], None]) -> Path:
    copy = PrivateCopy.of(path, repr(("parquet", "calendar", schema.names)))
    if copy.is_sound():
        return path
    if not copy.is_made():
        doubtful = [one.name for one in schema if _is_text(one.type) or calendar.limits(one.type)]
        if not _has_old_times(path, schema) and all(is_sound(part) for part in _batches(path, doubtful)):
            copy.mark_sound()
            return path
        tally = Tally()
        copy.write(_repaired(path, schema, tally))
        report(tally)
    return copy.path


def tally_parquet(path: Path, columns: Sequence[str], tally: Tally) -> None:
    """Count a file's rows, and those with a text that is not UTF-8 or a day that no calendar has."""
    names = [one.name for one in _declared_schema(path, columns)]
    for batch in _batches(path, names):
        if is_sound(batch):
            tally.rows += batch.num_rows
        else:
            repaired(_as_table(batch), tally)


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches([batch])


def batches_of(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """The declared columns that a Parquet file has, under the policy's names, some rows at a time."""
    found = {one.lower(): one for one in columns}
    names = _declared_schema(path, columns).names
    for batch in _batches(path, names):
        yield batch.rename_columns([found[name.lower()] for name in names])


def _batches(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa

    try:
        if columns:
            for batch in _parquet(path).iter_batches(batch_size=_BATCH, columns=list(columns)):
                yield batch.select(list(columns))  # they come in the file's order
    except (OSError, pa.ArrowException) as error:
        raise DataCorrupted(f"{path} is not a sound Parquet file; check that it is whole") from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)


def _has_old_times(path: Path, schema: pa.Schema) -> bool:
    """Whether a declared column is stored as INT96, which engines convert each in their own way."""
    stored = _parquet(path).schema
    columns = (stored.column(place) for place in range(len(stored)))
    return any(one.physical_type == "INT96" and one.path in schema.names for one in columns)


def is_sound(rows: pa.RecordBatch | pa.Table) -> bool:
    """Whether all texts are UTF-8, and all days those of the calendar."""
    import pyarrow as pa

    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return all(map(calendar.is_in_calendar, rows.columns))


def _repaired(path: Path, schema: pa.Schema, tally: Tally) -> Iterator[pa.Table]:
    for batch in _batches(path, schema.names):
        yield repaired(_as_table(batch), tally)


def repaired(table: pa.Table, tally: Tally) -> pa.Table:
    """The table with every text and every day repaired by itself; the tally counts rows from 1."""
    changed: set[int] = set()
    moved: set[int] = set()
    for place, column in enumerate(table.columns):
        if _is_text(column.type):
            texts, places = _texts_in_utf8(column)
            table = table.set_column(place, table.field(place).name, texts)
            changed.update(places)
        elif not calendar.is_in_calendar(column):
            days = calendar.in_calendar(column)
            table = table.set_column(place, table.field(place).name, days)
            moved.update(_different(column, days))
    for words, rows in ((REPAIRED, changed), (MOVED, moved)):
        tally.note(words, np.array(sorted(rows), dtype=np.int64) + tally.rows + 1)
    tally.rows += table.num_rows
    return table


def _different(one: pa.ChunkedArray, other: pa.ChunkedArray) -> list[int]:
    import pyarrow.compute as pc

    places: list[int] = pc.indices_nonzero(pc.not_equal(one, other)).to_pylist()
    return places


def _texts_in_utf8(column: pa.ChunkedArray) -> tuple[pa.Array, list[int]]:
    """The texts of a column, and the places of those that were repaired."""
    import pyarrow as pa

    plain = column.combine_chunks()
    if pa.types.is_dictionary(plain.type):
        plain = plain.dictionary_decode()
    found = plain.cast(pa.large_binary()).to_pylist()
    texts = [None if value is None else value.decode(errors="replace") for value in found]
    pairs = zip(texts, found, strict=True)
    changed = [
        place for place, (text, value) in enumerate(pairs) if text is not None and text.encode() != value
    ]
    return pa.array(texts, type=pa.string()), changed
