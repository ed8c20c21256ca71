"""What is wrong with a holder's file, and where: exact, and for the holder's eyes only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.datasets.clean import Tally, tally_parquet
from sfumato.datasets.text_table import Rows, TextForm, header_of, is_text, rows_of
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Column, Policy
from sfumato.query.columns import PATTERNS, columns_of
from sfumato.query.sources import clean_files, is_database, parquet_files, stored_columns

if TYPE_CHECKING:
    import pyarrow as pa

_TRUTHS = (*TRUE_WORDS, *FALSE_WORDS)


@dataclass(frozen=True, kw_only=True)
class FileCheck:
    """What `sfumato data check` found. PRIVATE: its counts and line numbers are not noisy."""

    path: str
    tally: Tally
    copies: tuple[Path, ...]
    """What queries will read; empty without a policy."""
    table: str | None = None
    """The policy's table that the file was taken for; None without a policy."""

    @property
    def text(self) -> bool:
        """Whether its faults are on lines of a text file, and not in rows."""
        return is_text(Path(self.path))

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, as `sfumato data check --json` prints it."""
        problems = [
            {"what": words, "lines": count, "first": self.tally.places.get(words, [])}
            for words, count in self.tally.faults.items()
        ]
        return {
            "file": self.path,
            "table": self.table,
            "rows": self.tally.rows,
            "dropped": self.tally.dropped,
            "problems": problems,
            "copies": [str(place) for place in self.copies],
        }


def check_file(path: str | Path, policy: Policy | None = None, *, delimiter: str = ",") -> FileCheck:
    """Look at every row of a file by itself; with a policy, also at its values, and make the clean copy.

    Args:
        path: A text file, a Parquet file, or a pattern of Parquet files.
        policy: What declares the file's columns; its source is the file.
        delimiter: What separates the values of a text file, without a policy.
    """
    path, tally = Path(path), Tally()
    if is_database(str(path)):
        raise InvalidInput(
            f"expected a text or Parquet file, got {path.name}; DuckDB keeps its rows apart already"
        )
    if is_text(path):
        if not path.is_file():
            raise DataUnavailable(f"no file at {path}; give a CSV or Parquet file")
        _check_text(path, policy, delimiter, tally)
    else:
        columns = list(columns_of(path, header=None)) if policy is None else stored_columns(policy)
        for part in parquet_files(str(path)):
            tally_parquet(part, columns, tally)
    copies = () if policy is None else clean_files(replace(policy, source=str(path))).paths
    table = None if policy is None else policy.table
    return FileCheck(path=str(path), tally=tally, copies=copies, table=table)


def policy_of_file(policy: Policy, file: str | Path, table: str | None = None) -> Policy:
    """The policy of the table that a file holds: the named one, or of several the one whose source it is.

    Raises:
        InvalidInput: If none of several tables has this source, or if more than one has.
    """
    if table is not None or not policy.tables:
        return policy.one_table(table)
    place = Path(file).absolute().resolve()
    found = [name for name, one in policy.tables.items() if Path(one.source).absolute().resolve() == place]
    if len(found) != 1:
        raise InvalidInput(
            f"expected --table with a policy of several tables, got none, and {Path(file).name} is the source "
            f"of {' and of '.join(found) or 'none of them'}; it has {', '.join(policy.tables)}"
        )
    return policy.one_table(found[0])


def _check_text(path: Path, policy: Policy | None, delimiter: str, tally: Tally) -> None:
    if policy is None:  # its first line says how many values a line has, and nothing is asked of them
        names = tuple(f"c{place}" for place in range(len(header_of(path, TextForm(delimiter=delimiter)))))
        for part in rows_of(path, TextForm(delimiter=delimiter, header=False, fields=names), names[:1]):
            tally.add(part)
        tally.rows = max(tally.rows - 1, 0)
        return
    for part in rows_of(path, policy.form, stored_columns(policy)):
        tally.add(part)
        for column in policy.columns.values():
            _check_values(part, column, tally)


def _check_values(part: Rows, column: Column, tally: Tally) -> None:
    import pyarrow.compute as pc

    values = part.table[column.name]
    if column.type == "text":
        plain = pc.utf8_trim(values, " ") if column.trimmed else values
        known = pc.is_in(plain, _texts(column.categories)) if column.categories else None
        words = f"{column.name}: a text that is no declared category, read as missing"
    elif column.type == "boolean":
        known = pc.is_in(pc.utf8_lower(pc.utf8_trim(values, " ")), _texts(_TRUTHS))
        words = f"{column.name}: neither true nor false, read as missing"
    else:
        kind = "date" if column.type == "date" else "real"
        known = pc.match_substring_regex(values, f"^(?:{PATTERNS[kind].pattern})$")
        words = f"{column.name}: no {'date' if kind == 'date' else 'number'}, read as missing"
    if known is not None:
        odd = pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(known, True)))
        tally.note(words, part.numbers[odd.to_numpy(zero_copy_only=False)])


def _texts(values: Iterable[object]) -> pa.Array:
    import pyarrow as pa

    return pa.array([str(value) for value in values], type=pa.string())
