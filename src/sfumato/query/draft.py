"""A first policy for a file, with blanks for public knowledge.

Only names and types of columns are taken from the file: never a value, and no name that may be one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
    otherwise = ""  # a table of one column is rare; one whose values another character separates is not
    if len(first) == 1:
        otherwise = f"; it is read as one column: if not {delimiter!r} separates its values, give --delimiter"
    # No message shows the line, which may be a person's.
    if header is None and not all(
        _NAME.fullmatch(name) and (len(name) == 1 or _guessed([name]) == "text") for name in first
    ):
        raise InvalidInput(
            f"expected {path.name} to begin with a line of column names, and its first line looks like "
            "data; use --no-header if it is a row, --header if it holds the names of the columns" + otherwise
        )
    names = [f"c{place}" for place in range(1, len(first) + 1)] if header is False else first
    if len({name.lower() for name in names} - {""}) < len(names):
        raise InvalidInput(
            f"expected different column names in the first line of {path.name}; rename them, or "
            "use --no-header if it is a row"
        )
    sample = _sample(path, TextForm(delimiter=delimiter, header=header is not False, fields=tuple(names)))
    kinds = [_guessed(values) for values in sample]
    # A line of texts above columns of texts could be a row; so could one with a text that occurs below it.
    occurs = any(name in values for name, values in zip(names, sample, strict=True))
    if header is None and (occurs or all(kind == "text" for kind in kinds)):
        raise InvalidInput(
            f"expected the first line of {path.name} to differ from its rows, and it may be one of them; use "
            "--header if it holds the names of the columns, --no-header if it is a row" + otherwise
        )
    return dict(zip(names, kinds, strict=True))


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


UNIT_NAMES = ("person", "user", "patient", "customer", "member", "client")
"""Names of people; alone, or with id or number behind them: patient_id, PatientID, "Patient no"."""
_BEHIND = ("", "id", "no", "nr", "number", "key")


@dataclass(frozen=True)
class Draft:
    """A policy's text, and the blanks that the holder must still fill in."""

    text: str
    blanks: tuple[str, ...]


def draft_policy(
    path: str | Path, *, header: bool | None = None, delimiter: str = ",", table: str | None = None
) -> Draft:
    r"""Draft a policy from a file's column names and types.

    No value of the data gets into it: bounds and categories are blanks, and a first line that may be a person's
    row is refused unless `header` tells its role; without one (False) columns are called c1, c2, …. A text
    file does not say its types: each is guessed as the one that nine in ten values of the first rows fit, so
    that no single row decides, and the draft says that the holder has to confirm it.

    Args:
        path: A text, Parquet or DuckDB file.
        header: Whether the first line of a text file holds the names of its columns.
        delimiter: The character between the values of a text file.
        table: The name of the table in a DuckDB file; by default the name of the file.

    Returns:
        The policy's text, and the blanks that the holder must still fill in.

    Raises:
        InvalidInput: If the first line may be a person's row and `header` is not given.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = Path(folder) / "people.csv"
    ...     _ = place.write_text("\n".join(["age,city", *["40,Delft"] * 20]))
    ...     draft = draft_policy(place, header=True)
    >>> any("bounds" in blank or "lower" in blank for blank in draft.blanks)
    True
    """
    path = Path(path)
    columns = columns_of(path, header=header, delimiter=delimiter, table=table)
    unit = next((name for name in columns if tells_people_apart(name)), None)
    form = _form(list(columns), header, delimiter) if is_text(path) else ""
    sections = [_head(path, table or _table_name(path)) + form, _unit(unit, list(columns)), _budget(path)]
    blanks = ["[budget] epsilon and delta: how much may be lost in all; check the drafted values"]
    if header is False:
        blanks.append("[table] fields: the names of the columns in order; rename their sections too")
    if unit is None:
        blanks.append("[unit]: the column that tells people apart, unless every row is one person")
    else:
        blanks.append("[unit] rows and groups: how much of one person counts")
    if is_text(path):
        blanks.append("[columns] type: each is a guess; confirm it")
    for place, (name, kind) in enumerate(columns.items()):
        if name != unit:
            text, blank = _column(name, kind, guessed=is_text(path), proposed=unit is None and place == 0)
            sections.append(text)
            blanks += [blank] if blank else []
    return Draft("\n\n".join(sections) + "\n", tuple(blanks))


def tells_people_apart(name: str) -> bool:
    """Whether a column is called as if it did; a guess that the holder confirms."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    return plain == "id" or plain in {f"{who}{behind}" for who in UNIT_NAMES for behind in _BEHIND}


_GUESSED = (
    "# The types of columns are a guess from most of the first rows. Confirm each, then delete its comment.\n"
)
_STORED = "# The types of columns are those that the file declares; check them.\n"


def _head(path: Path, table: str) -> str:
    return (
        "# A policy is public: write down only what is known without looking at the data.\n"
        f"{_GUESSED if is_text(path) else _STORED}"
        f"[table]\nname = {_quoted(table)}\nsource = {_quoted(path.name)}\n"
        "# public_size = 10000    # about how many rows, if public: for expected errors, and train needs it\n"
        '# version = "1"          # change it with the data; with it, --again gives an answer a second time'
    )


def _form(names: list[str], header: bool | None, delimiter: str) -> str:
    """How a text file is written, where it is not as usual."""
    said = "" if delimiter == "," else f"\ndelimiter = {_quoted(delimiter)}"
    fields = f"\nheader = false\nfields = [{', '.join(map(_quoted, names))}]"
    return said + (fields if header is False else "")


def _table_name(path: Path) -> str:
    name = "".join(letter if letter.isalnum() else "_" for letter in path.name.split(".")[0])
    return name if name[:1].isalpha() else f"t_{name}"


def _unit(unit: str | None, columns: list[str]) -> str:
    if unit is None:
        return (
            f"[unit]\n# column = {_quoted(columns[0])}"
            "    # what tells people apart; leave out only if every row is one person"
        )
    return (
        f"[unit]\ncolumn = {_quoted(unit)}\n"
        "rows = 1      # most rows of one person that count: noise grows with it\n"
        "groups = 1    # most groups of a GROUP BY in which one person counts"
    )


def _budget(path: Path) -> str:
    return (
        "[budget]\nepsilon = 1.0\ndelta = 1e-6    # well below 1 / number of people\n"
        f"ledger = {_quoted(path.name.split('.')[0] + '.ledger.db')}"
    )


# What is filled in, or may be, of a column of each type, and the blank that names it.
_NUMBER = (
    "# lower =     # fill in from public knowledge, not from the data\n# upper =",
    "lower and upper: from public knowledge; without them no SUM, AVG, MEDIAN",
)
_FILLED = {
    "integer": _NUMBER,
    "real": _NUMBER,
    "date": (
        "# lower = 2000-01-01    # optional, from public knowledge\n# upper = 2029-12-31",
        "lower and upper: days, optional; without them GROUP BY month or year spends δ",
    ),
    "text": (
        '# categories = ["", ""]    # fill in from public knowledge, not from the data',
        "categories: the public list of values; without it GROUP BY spends δ to find them",
    ),
}


def _column(name: str, kind: str, *, guessed: bool, proposed: bool) -> tuple[str, str]:
    """A column's section, and its blanks; `proposed` if it may be the person column."""
    confirm = "    # a guess: integer, real, text, boolean or date?" if guessed else ""
    head = f"[columns.{_quoted(name)}]\ntype = {_quoted(kind)}{confirm}"
    if proposed:
        head = f"# Delete this section if [unit] column is {_quoted(name)}.\n{head}"
    if kind == "boolean" or (kind == "text" and proposed):
        return head, ""
    text, blank = _FILLED[kind]
    return f"{head}\n{text}", f"[columns.{name}] {blank}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML
