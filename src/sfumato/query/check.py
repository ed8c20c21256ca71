"""Faults of a holder's file, and their places: exact, and for the holder's eyes only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.datasets.clean import Tally, parquet_rows, parquet_types, plain_type
from sfumato.datasets.text_table import Rows, TextForm, header_of, is_text, rows_of
from sfumato.display import visible
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Column, Policy
from sfumato.query.draft import PATTERNS
from sfumato.query.sources import clean_files, files_of, is_database, rows_of_file, stored_columns

if TYPE_CHECKING:
    import pyarrow as pa

_TRUTHS = (*TRUE_WORDS, *FALSE_WORDS)
_OFTEN, _SHARE = 5, 0.1  # rows that share a value outside, and their share of all that is outside
_MOST_VALUES = 100_000  # that are counted at once
_EMPTY = ("", "na", "n/a", "nan", "null", "none", "nil", "-", "--", "?", ".", "missing", "unknown")


@dataclass(frozen=True, kw_only=True)
class FileCheck:
    """Findings of `sfumato data check`. PRIVATE: its counts and line numbers are not noisy."""

    path: str
    tally: Tally
    copies: tuple[Path, ...]
    """The files that queries will read; empty without a policy."""
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
        policy: The policy with the file's columns; its source is the file.
        delimiter: The character between the values of a text file, without a policy.
    """
    path, tally = Path(path), Tally()
    if is_text(path):
        if not path.is_file():
            raise DataUnavailable(f"no file at {path}; give a CSV or Parquet file")
        _check_text(path, policy, delimiter, tally)
    elif policy is not None:
        outside = Outside(policy)
        for part in files_of(str(path)):
            for rows in rows_of_file(part, policy, tally):
                outside.add(rows)
        outside.tell(tally, remedy="make it NULL")
    elif is_database(str(path)):
        raise InvalidInput(f"expected --policy with {path.name}, got none; it says which table is looked at")
    else:
        for part in files_of(str(path)):
            names = [name for name, kind in parquet_types(part) if plain_type(kind) is not None]
            for _ in parquet_rows(part, names, tally):
                pass
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
    outside = Outside(policy)
    for part in rows_of(path, policy.form, stored_columns(policy)):
        tally.add(part)
        for column in policy.columns.values():
            _check_values(part, column, tally)
        outside.add(part.table)
    outside.tell(tally, remedy="name it in table.missing")


class Outside:
    """Values that the policy does not allow for, and those of them that many rows share.

    Measured values that lie outside differ from each other. One that many rows share, such as 999, -1 or "n/a",
    mostly stands for a missing value.

    Args:
        policy: The policy with the columns.
    """

    def __init__(self, policy: Policy) -> None:
        self._columns = policy.columns
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in policy.columns}
        self._number: Counter[str] = Counter()

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Count the values outside in some rows."""
        import pyarrow.compute as pc

        for name in rows.column_names:
            column = self._columns.get(name)
            found = None if column is None else _outside(rows.column(name), column)
            if found is None:
                continue
            counts = self._counts[name]
            self._number[name] += len(found)
            for each in pc.value_counts(found):
                counts[str(each["values"])] += each["counts"].as_py()
            if len(counts) > _MOST_VALUES:
                self._counts[name] = Counter(dict(counts.most_common(_MOST_VALUES // 2)))

    def tell(self, tally: Tally, *, remedy: str) -> None:
        """Note the values found, and the remedy for one that stands for a missing value."""
        for name, column in self._columns.items():
            least = max(_OFTEN, _SHARE * self._number[name])
            if column.lower is not None and self._number[name]:
                words = f"{name}: outside {column.lower} to {column.upper}, counted as the nearer bound"
                tally.faults[words] = self._number[name]
            for value, count in self._counts[name].most_common():
                if count >= least:
                    shown = f'"{visible(value)[:40]}"' if column.type == "text" else value.removesuffix(".0")
                    words = f"{name}: {shown}, which is not declared, on many rows"
                    tally.faults[f"{words}; if it means missing, {remedy}"] = count


def _outside(values: pa.Array, column: Column) -> Any:
    """Values of the column's type that its policy does not declare; None where it declares nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    bounded = column.lower is not None and column.upper is not None
    if column.type == "text" and texts:
        plain = pc.utf8_trim(values, " ")
        if column.categories is None:
            kept = pc.invert(pc.is_in(pc.utf8_lower(plain), _texts(_EMPTY)))
        else:
            kept = pc.is_in(plain if column.trimmed else values, _texts(column.categories))
    elif bounded and column.type in ("integer", "real", "date"):
        name, kind = ("date", pa.date32()) if column.type == "date" else ("real", pa.float64())
        if texts:
            values = pc.filter(values, pc.match_substring_regex(values, f"^(?:{PATTERNS[name].pattern})$"))
        try:
            values, ends = values.cast(kind), pa.array([column.lower, column.upper]).cast(kind)
        except pa.ArrowException:
            return None
        kept = pc.and_(pc.greater_equal(values, ends[0]), pc.less_equal(values, ends[1]))
    else:
        return None
    return pc.filter(values, pc.invert(kept))  # a filter leaves out missing values


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
