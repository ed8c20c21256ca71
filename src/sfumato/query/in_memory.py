"""The one way that DuckDB is opened: an empty database in memory, beside which a file is attached for reading.

A file's macros are found under the file's name alone, which no statement of ours uses for a function. Once the
files are bound, the connection opens nothing further and its settings are locked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import ibis

from sfumato.errors import InvalidInput

SOURCE = "source"
"""The name of an attached file."""
_DENSE_BITS = 22
_BUILT_IN = re.compile(
    r"BOOLEAN|U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|DATE|UUID"
    r"|TIMESTAMP(_S|_MS|_NS| WITH TIME ZONE)?|ENUM\(.*\)",
    re.DOTALL,
)
_OVER_COLUMNS = re.compile(r"""\[(\w+|'"[^"']*"')(, (\w+|'"[^"']*"'))*\]""")  # an expression has parentheses


def open_duckdb(files: Sequence[Path] = (), database: Path | None = None) -> Any:
    """Connect through Ibis to an empty database that can read these files and nothing else.

    A connection adds up by whole numbers in place, without hashing, where they lie close together: people are
    often numbered from 1 on. Each thread has a table of its own of 2^bits entries, all of which are added up in
    the end, so that together they have at most 2²².
    """
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )
    backend = ibis.duckdb.from_connection(connection)
    (threads,) = connection.execute("SELECT current_setting('threads')").fetchone() or (1,)
    bits = max(12, _DENSE_BITS - math.ceil(math.log2(threads)))
    connection.execute(f"SET perfect_ht_threshold = {bits}")
    connection.execute("SET enable_progress_bar = false")  # it would go to standard output
    if database is not None:
        connection.execute(f"ATTACH {_literal(database)} AS {SOURCE} (TYPE duckdb, READ_ONLY)")
    connection.execute(f"SET allowed_paths = [{', '.join(map(_literal, files))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return backend


def _literal(path: Path) -> str:
    return "'" + str(path.absolute()).replace("'", "''") + "'"


def stored_columns(connection: Any, table: str) -> dict[str, str | None]:
    """The type of each column of a table in the attached file; None for one that is computed when it is read.

    Raises:
        InvalidInput: There is no such table that holds its rows and is found without computing anything.
    """
    schema, _, name = table.rpartition(".")
    place = [name, schema or "main"]
    where = f"database_name = '{SOURCE}' AND table_name = ? AND schema_name = ?"
    found = connection.execute(f"SELECT sql FROM duckdb_tables() WHERE {where}", place).fetchall()
    if len(found) != 1:
        raise InvalidInput(
            f"expected a table {table} in the DuckDB file; name one that is there, or write the rows of a "
            "view into a table, as a view may fail at some of them"
        )
    if "collate" in str(found[0][0]).lower():
        raise InvalidInput(
            f"expected texts of table {table} to be compared as they are written, got a column with a "
            "collation; write its rows into a table without one"
        )
    rows = connection.execute(
        "SELECT column_name, data_type, NOT is_generated FROM duckdb_columns() "
        f"WHERE {where} ORDER BY column_index",
        place,
    ).fetchall()
    columns = {column: kind if stored and _BUILT_IN.fullmatch(kind) else None for column, kind, stored in rows}
    indexes = connection.execute(f"SELECT expressions FROM duckdb_indexes() WHERE {where}", place).fetchall()
    if not all(_OVER_COLUMNS.fullmatch(text) for (text,) in indexes):
        raise InvalidInput(
            f"expected the indexes of table {table} to be over columns, got one over an expression; drop it, "
            "or write the rows into a table without it"
        )
    return columns
