"""From what a policy calls its source to files that an engine can read: checked, and cleaned where need be.

All of it happens before a charge. What was left out is counted in the log 'sfumato.private.query' only.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.operations as ops

from sfumato.datasets.clean import Tally, clean_parquet, clean_text
from sfumato.datasets.private_copy import Stamp
from sfumato.datasets.text_table import ENDINGS, is_text
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.policy import Policy

PARQUET = (".parquet", ".pq")
DATABASE = (".duckdb", ".ddb")
_private_log = logging.getLogger("sfumato.private.query")


@dataclass(frozen=True)
class Files:
    """Parquet files to read, and the stamps of all files they stand for."""

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...]


def clean_files(policy: Policy) -> Files:
    """The policy's text file or Parquet files, in which no row affects another.

    Raises:
        DataUnavailable: there is no such file.
        InvalidInput: the file's columns are not the policy's, which its first line or its schema says.
    """
    originals = [Path(policy.source)] if is_text(Path(policy.source)) else parquet_files(policy.source)
    if not all(path.is_file() for path in originals):
        raise DataUnavailable(f"no file at {policy.source}, where the policy's table.source says it is")
    stamps = [Stamp.of(path) for path in originals]  # before they are read: a later change is then noticed
    columns = stored_columns(policy)
    if is_text(originals[0]):
        paths = [clean_text(originals[0], policy.form, columns, report=log_tally)]
    else:
        paths = clean_parquet(originals, columns, report=log_tally)
    return Files(tuple(paths), (*stamps, *(Stamp.of(path) for path in paths if path not in originals)))


def stored_columns(policy: Policy) -> list[str]:
    """The columns that the policy needs: those that it declares, and the one that tells people apart."""
    return [*policy.columns, *([] if policy.unit.column is None else [policy.unit.column])]


def parquet_files(source: str) -> list[Path]:
    """A file, the files of a folder, or those that a pattern such as parts/*.parquet matches, in order."""
    pattern = str(Path(source) / "**" / "*.parquet") if Path(source).is_dir() else source
    if not pattern.lower().endswith(PARQUET):
        raise InvalidInput(
            f"expected table.source to end in {', '.join((*ENDINGS, *PARQUET, *DATABASE))}, or to be the "
            f"address of a database, got {Path(source).name}"
        )
    found = (
        [Path(pattern)] if Path(pattern).is_file() else sorted(map(Path, glob.glob(pattern, recursive=True)))
    )
    if not found:
        raise DataUnavailable(f"no file at {source}, where the policy's table.source says it is")
    return found


def log_tally(tally: Tally) -> None:
    level = logging.WARNING if tally.faults else logging.INFO
    words = tally.in_words()
    _private_log.log(level, "%s rows were kept, %s lines left out; %s", tally.rows, tally.dropped, words)


def is_database(source: str) -> bool:
    return "://" not in source and source.lower().endswith(DATABASE)


def stored_name(name: str, columns: Collection[str]) -> str:
    """The stored column that a name means: in its own letters, or else in any."""
    found = [column for column in columns if column == name]
    found = found or [column for column in columns if column.lower() == name.lower()]
    if not found:
        raise InvalidInput(
            f"expected a column {name} in the table, got {', '.join(columns)}; correct the policy's [columns]"
        )
    if len(found) > 1:
        raise InvalidInput(
            f"expected one column {name} in the table, got {', '.join(found)}; rename one of them"
        )
    return found[0]


def table_of(
    connection: Any, policy: Policy, columns: Mapping[str, str | None], name: str, **place: str
) -> Any:
    """The policy's table with the columns that the policy needs, in the types that the catalogue says.

    Args:
        connection: An Ibis connection.
        policy: The policy of the table.
        columns: The type of each stored column; None for a column that cannot be read safely.
        name: The table's name there.
        place: Its `catalog` and `database`, as Ibis calls them.
    """
    kinds = {}
    for wanted in stored_columns(policy):
        column = stored_name(wanted, columns)
        kinds[column] = columns[column]
        if kinds[column] is None:
            raise InvalidInput(
                f"expected column {column} of table {policy.table} to be stored, in a built-in type and under "
                "a plain collation; write the rows into a table with such a column"
            )
    types = connection.compiler.type_mapper
    return ops.DatabaseTable(
        name,
        schema=ibis.schema({column: types.from_string(kind) for column, kind in kinds.items()}),
        source=connection,
        namespace=ops.Namespace(**place),
    ).to_expr()
