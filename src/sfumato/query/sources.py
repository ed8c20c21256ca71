"""From what a policy calls its source to files that an engine can read: checked, and cleaned where need be.

All of it happens before a charge. What was left out is counted in the log 'sfumato.private.query' only.
"""

from __future__ import annotations

import glob
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def database_table(connection: Any, policy: Policy) -> Any:
    """The policy's table in a DuckDB file: one that holds its rows, as a view may fail at some of them."""
    schema, _, name = policy.table.rpartition(".")
    found = connection.raw_sql(
        "SELECT sql FROM duckdb_tables() WHERE NOT internal AND table_name = ? AND schema_name = ?",
        parameters=[name, schema or "main"],
    ).fetchall()
    if len(found) != 1:
        raise InvalidInput(
            f"expected a table {policy.table} in {Path(policy.source).name}; a view is not read, as it may "
            "fail at some rows: write its rows into a table"
        )
    if "collate" in str(found[0][0]).lower():
        raise _collated(policy.table)
    return connection.table(name, database=schema or "main")


def _collated(table: str) -> InvalidInput:
    """Under a collation two spellings are one text to the engine, and two to everybody who reads the answer."""
    return InvalidInput(
        f"expected texts of table {table} to be compared as they are written, got a column with a collation; "
        "write its rows into a table without one"
    )


def refuse_collations(connection: Any, policy: Policy) -> None:
    """Of a PostgreSQL table: citext, and collations for which different texts are equal."""
    schema, _, name = policy.table.rpartition(".")
    cursor = connection.raw_sql(
        "SELECT 1 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "LEFT JOIN pg_collation c ON c.oid = a.attcollation "
        f"WHERE a.attrelid = to_regclass({_quoted(schema, name)}) AND a.attnum > 0 AND NOT a.attisdropped "
        "AND (t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true)) LIMIT 1"
    )
    try:
        collated = cursor.fetchall()
    finally:
        cursor.close()
    if collated:
        raise _collated(policy.table)


def _quoted(schema: str, name: str) -> str:
    """A name for to_regclass, as a literal of SQL."""
    parts = [part.replace('"', '""') for part in (schema, name) if part]
    text = ".".join(f'"{part}"' for part in parts).replace("'", "''")
    return f"'{text}'"
