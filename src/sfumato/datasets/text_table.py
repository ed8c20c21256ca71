"""A text file of people as a table: which columns it has is declared, and every row is read by itself."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np

from sfumato.datasets import lines
from sfumato.datasets.lines import Fault, Integers, Lines
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")


@dataclass(frozen=True, kw_only=True)
class TextForm:
    """How a text file is written: public, and never guessed from its rows.

    `fields` names its columns in order; without it the first line does. `header` says whether the first line
    holds names. `missing` lists the texts that stand for no value, which an empty one does by default.
    """

    delimiter: str = ","
    header: bool = True
    fields: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            raise InvalidInput(
                f"expected table.delimiter to be one ASCII character, got table.delimiter={self.delimiter!r}"
            )
        if not isinstance(self.header, bool):
            raise InvalidInput(f"expected table.header to be true or false, got table.header={self.header!r}")
        for name, values in (("fields", self.fields or ()), ("missing", self.missing)):
            if not all(isinstance(value, str) for value in values):
                raise InvalidInput(f"expected table.{name} to be a list of texts, got table.{name}={values!r}")
        if self.fields is not None and len(_lowered(self.fields)) < len(self.fields):
            raise InvalidInput("expected table.fields to be different names in any letter case")
        if self.fields == () or (self.fields is None and not self.header):
            raise InvalidInput("expected table.fields to name the columns of a file without a header")


@dataclass(frozen=True)
class Rows:
    """Some rows as Arrow text columns, the number of each one's line, and the lines that are no rows."""

    table: pa.Table
    numbers: Integers
    faults: Mapping[Fault, Integers]
    repaired: Integers


def is_text(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def rows_of(
    path: Path,
    form: TextForm,
    columns: Sequence[str],
    *,
    keep_faulty: bool = False,
    block: int = lines.BLOCK,
) -> Iterator[Rows]:
    """The declared columns, as text, some rows at a time; one even if there are none.

    *Guarantees*: beside the header, each line gives one row or none, independent of the other lines. With
    `keep_faulty` a line that cannot be read gives a row without values, so that the row count hides the faults.
    """
    with _opened(path) as file:
        found = _readable(path, lines.blocks(file, size=block))
        first, text = _first_line(found) if form.header else (b"", next(found, b""))
        names = _names(path, form, first, columns)
        number = 1 + form.header
        for part in chain([text], found):
            judged = lines.judge(part, fields=len(names), delimiter=form.delimiter)
            yield _rows(judged, names, form, columns, number, keep_faulty=keep_faulty)
            number += judged.ends.size


def header_of(path: Path, form: TextForm) -> Sequence[str]:
    """The names in the first line, for the holder."""
    with _opened(path) as file:
        first, _ = _first_line(_readable(path, lines.blocks(file)))
    names = lines.split(first, form.delimiter)
    if names is None:
        raise InvalidInput(
            f"expected {path.name} to begin with a line of column names, got one with odd quotes"
        )
    return names


def _opened(path: Path) -> BinaryIO:
    try:
        return cast(BinaryIO, gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb"))
    except OSError as error:
        raise DataUnavailable(f"{path} cannot be read ({error.strerror or error})") from error


def _readable(path: Path, found: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks; a damaged archive is no file at all."""
    try:
        yield from found
    except (EOFError, OSError, zlib.error) as error:
        raise DataCorrupted(f"{path} is damaged or cannot be read to its end; make it again") from error


def _first_line(found: Iterator[bytes]) -> tuple[bytes, bytes]:
    text = next(found, b"\n")
    first, _, rest = text.partition(b"\n")
    return first, rest


def _names(path: Path, form: TextForm, first: bytes, columns: Sequence[str]) -> Sequence[str]:
    """The file's columns. No message quotes the first line: without a header it is a private row."""
    found = lines.split(first, form.delimiter) if form.header else form.fields
    names = [name.strip() for name in found or ()]
    if form.fields is not None and list(_lowered(names)) != list(_lowered(form.fields)):
        raise InvalidInput(
            f"expected the first line of {path.name} to hold the names in table.fields; "
            "correct them, or say header = false in [table] if the file has no line of names"
        )
    counts = [[name.lower() for name in names].count(column.lower()) for column in columns]
    absent = [column for column, count in zip(columns, counts, strict=True) if count != 1]
    if absent:
        raise InvalidInput(
            f"expected a column {', '.join(absent)} once in the first line of {path.name}; correct the "
            "policy's [columns], or set table.fields and header = false if the file has no line of names"
        )
    return names if form.fields is None else form.fields


def _lowered(names: Sequence[str]) -> dict[str, None]:
    return dict.fromkeys(name.strip().lower() for name in names)


def _rows(
    judged: Lines,
    names: Sequence[str],
    form: TextForm,
    columns: Sequence[str],
    number: int,
    *,
    keep_faulty: bool,
) -> Rows:
    text = judged.emptied(len(names), form.delimiter) if keep_faulty else judged.good()
    kept = judged.faults != Fault.BLANK if keep_faulty else judged.faults == Fault.NONE
    table = _parsed(text, names, form, columns)
    if table.num_rows != np.count_nonzero(kept):
        raise DataCorrupted("the lines of a file were not read one by one; nothing was asked or charged")
    faults = {fault: np.flatnonzero(judged.faults == fault) + number for fault in lines.IN_WORDS}
    return Rows(table, np.flatnonzero(kept) + number, faults, judged.repaired + number)


def _parsed(text: bytes, names: Sequence[str], form: TextForm, columns: Sequence[str]) -> pa.Table:
    """Lines that are known to be rows, by Arrow's reader; it decides nothing any more."""
    import pyarrow as pa
    from pyarrow import csv

    places = {name.lower(): f"f{place}" for place, name in enumerate(names)}
    wanted = [places[column.lower()] for column in columns]
    schema = pa.schema([(column, pa.string()) for column in columns])
    if not text:
        return schema.empty_table()
    labels = [f"f{place}" for place in range(len(names))]
    text = lines.MARK + text  # Arrow removes one mark from the first line: this one, not the line's own
    found = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(column_names=labels, block_size=len(text) + 1, use_threads=False),
        parse_options=csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(labels, pa.string()),
            include_columns=wanted,
            null_values=list(form.missing),
            strings_can_be_null=True,
            check_utf8=False,
        ),
    )
    return found.rename_columns(list(columns)).cast(schema)
