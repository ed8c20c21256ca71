"""A first policy for a CSV or Parquet file, with blanks where only public knowledge will do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import duckdb

from sfumato.errors import DataUnavailable, InvalidInput

_KINDS = {
    "integer": ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
                "UBIGINT", "HUGEINT"),
    "real": ("FLOAT", "DOUBLE", "DECIMAL"),
    "boolean": ("BOOLEAN",),
    "date": ("DATE", "TIMESTAMP"),
}  # fmt: skip
UNIT_NAMES = (
    "person",
    "person_id",
    "user",
    "user_id",
    "patient",
    "patient_id",
    "customer",
    "customer_id",
    "id",
)


@dataclass(frozen=True)
class Draft:
    """A policy's text, and what the holder must still fill in."""

    text: str
    blanks: tuple[str, ...]


def draft_policy(path: str | Path) -> Draft:
    """Draft a policy from a file's column names and types.

    No value of the data gets into it: bounds and categories are blanks. The types of a CSV file are guessed
    from its first rows, which the draft says; the holder checks them.
    """
    path = Path(path)
    columns = _columns(path)
    unit = next((name for name in columns if name.lower() in UNIT_NAMES), None)
    sections = [_head(path), _unit(unit, list(columns)), _budget(path)]
    blanks = ["[budget] epsilon and delta: how much may be lost in all; check the drafted values"]
    if unit is None:
        blanks.append("[unit]: the column that tells people apart, unless every row is one person")
    else:
        blanks.append("[unit] rows and groups: how much of one person counts")
    for name, kind in columns.items():
        if name != unit:
            text, blank = _column(name, kind)
            sections.append(text)
            blanks += [blank] if blank else []
    return Draft("\n\n".join(sections) + "\n", tuple(blanks))


def _columns(path: Path) -> dict[str, str]:
    if not path.exists():
        raise DataUnavailable(f"no file at {path}; give a CSV or Parquet file")
    if path.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InvalidInput(f"expected a .csv or .parquet file, got {path.name}")
    reader = (
        "read_csv(?, sample_size=1000, ignore_errors=true)"
        if path.suffix.lower() == ".csv"
        else "read_parquet(?)"
    )
    with duckdb.connect() as connection:
        rows = connection.execute(f"DESCRIBE SELECT * FROM {reader}", [str(path)]).fetchall()
    return {str(row[0]): _kind(str(row[1])) for row in rows}


def _kind(type_name: str) -> str:
    base = type_name.split("(")[0].split(" ")[0].upper()
    return next((kind for kind, names in _KINDS.items() if base in names), "text")


def _head(path: Path) -> str:
    return (
        "# A policy is public: write down only what is known without looking at the data.\n"
        "# Column types were guessed from the file; check them.\n"
        f"[table]\nname = {_quoted(_table_name(path))}\nsource = {_quoted(path.name)}\n"
        "# public_size = 10000    # about how many rows, if that is public; only used to foretell errors"
    )


def _table_name(path: Path) -> str:
    name = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
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
        f"ledger = {_quoted(path.stem + '.ledger.db')}"
    )


def _column(name: str, kind: str) -> tuple[str, str]:
    head = f"[columns.{_quoted(name)}]\ntype = {_quoted(kind)}"
    if kind in ("integer", "real"):
        blank = f"[columns.{name}] lower and upper: from public knowledge; without them no SUM, AVG, MEDIAN"
        return f"{head}\n# lower =     # fill in from public knowledge, not from the data\n# upper =", blank
    if kind == "text":
        blank = (
            f"[columns.{name}] categories: the public list of values; without it GROUP BY spends δ to find them"
        )
        return f'{head}\n# categories = ["", ""]    # fill in from public knowledge, not from the data', blank
    return head, ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML
