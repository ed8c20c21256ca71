"""The names and types of a file's columns, for a draft: never a value, and no name that may be one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sfumato.datasets.clean import parquet_types, plain_type
from sfumato.datasets.text_table import TextForm, header_of, is_text, rows_of
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.query.sources import columns_of_table, files_of, is_database

_KINDS = {
    "integer": re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER|\d+)?$", re.IGNORECASE),
    "real": re.compile(r"(HALF)?FLOAT|DOUBLE|DECIMAL", re.IGNORECASE),
    "boolean": re.compile(r"BOOL", re.IGNORECASE),
    "date": re.compile(r"DATE|TIMESTAMP", re.IGNORECASE),
}  # as DuckDB and Arrow call their types
PATTERNS = {
    "boolean": re.compile(r"(?i:true|false|yes|no|y|n)"),
    "integer": re.compile(r"[+-]?[0-9]{1,18}"),
    "real": re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    "date": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
}
_NAME = re.compile(r"[^\W\d][\w .\-/()%]{0,63}")
_SAMPLE = 1000  # rows that types are guessed from
_MOST = 0.9  # the share of a column's values that a type must fit, so that no single row decides


def columns_of(
    path: Path, *, header: bool | None, delimiter: str = ",", table: str | None = None
) -> dict[str, str]:
    """Each column's name and guessed type, in order.

    `header` says whether a text file begins with names; None lets that pass only if it cannot be a row.
    """
    if is_text(path):
        if not path.is_file():
            raise DataUnavailable(f"no file at {path}; give a CSV or Parquet file")
        return _text_columns(path, header, delimiter)
    return _schema(path, table)


def _text_columns(path: Path, header: bool | None, delimiter: str) -> dict[str, str]:
    first = [name.strip() for name in header_of(path, TextForm(delimiter=delimiter))]
    if header is None:
        _check_names(path, first, delimiter)
    names = [f"c{place}" for place in range(1, len(first) + 1)] if header is False else first
    if len({name.lower() for name in names} - {""}) < len(names):
        raise InvalidInput(
            f"expected different column names in the first line of {path.name}; rename them, or "
            "use --no-header if it is somebody's row"
        )
    sample = _sample(path, TextForm(delimiter=delimiter, header=header is not False, fields=tuple(names)))
    kinds = [_guessed(values) for values in sample]
    if header is None:
        _refuse_a_row(path, names, kinds, sample, delimiter)
    return dict(zip(names, kinds, strict=True))


def _check_names(path: Path, names: Sequence[str], delimiter: str) -> None:
    """Names that look like names; no message shows the line, which may be somebody's."""
    if not all(_NAME.fullmatch(name) and (len(name) == 1 or _guessed([name]) == "text") for name in names):
        raise InvalidInput(
            f"expected {path.name} to begin with a line of column names, and its first line looks like "
            "data; use --no-header if it is somebody's row, --header if it holds the names of the columns"
            + _if_otherwise_separated(names, delimiter)
        )


def _refuse_a_row(
    path: Path, names: Sequence[str], kinds: Sequence[str], sample: Sequence[list[str]], delimiter: str
) -> None:
    """A line of texts above columns of texts could be a row; so could one whose text occurs below it."""
    occurs = any(name in values for name, values in zip(names, sample, strict=True))
    if occurs or all(kind == "text" for kind in kinds):
        raise InvalidInput(
            f"expected the first line of {path.name} to differ from its rows, and it may be one of them; use "
            "--header if it holds the names of the columns, --no-header if it is somebody's row"
            + _if_otherwise_separated(names, delimiter)
        )


def _if_otherwise_separated(names: Sequence[str], delimiter: str) -> str:
    """A table of one column is rare; one whose values are separated by another character is not."""
    if len(names) > 1:
        return ""
    return (
        f"; it is read as one column: if not {delimiter!r} separates its values, say what does with --delimiter"
    )


def _sample(path: Path, form: TextForm) -> list[list[str]]:
    """The values of the first rows, column by column: seen here, and nowhere else."""
    assert form.fields is not None
    first = next(rows_of(path, form, form.fields, block=1 << 18)).table.slice(0, _SAMPLE)
    return [[value for value in column.to_pylist() if value is not None] for column in first.columns]


def _guessed(values: Sequence[str]) -> str:
    """The first type that most values fit; a draft says that it is a guess."""
    least = _MOST * len(values)
    fitting = (
        kind for kind, pattern in PATTERNS.items() if sum(map(bool, map(pattern.fullmatch, values))) >= least
    )
    return next(fitting, "text") if values else "text"


def _schema(path: Path, table: str | None) -> dict[str, str]:
    first = files_of(str(path))[0]
    if is_database(str(path)):
        kinds = {name: kind or "" for name, kind in columns_of_table(first, table or path.stem).items()}
    else:
        kinds = {name: str(plain_type(kind)) for name, kind in parquet_types(first)}
    return {name: _kind(kind) for name, kind in kinds.items()}


def _kind(type_name: str) -> str:
    return next((kind for kind, names in _KINDS.items() if names.match(type_name)), "text")
