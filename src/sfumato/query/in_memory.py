"""The one way that DuckDB is opened: an empty database in memory, which can read some files.

Once these are bound, the connection opens nothing further and its settings are locked. Queries are planned on a
second database with the same tables and no rows, so that a plan depends on no row.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import ibis
import ibis.expr.operations as ops

from sfumato.query.expressions.base import Value

_DENSE_BITS = 22


def open_duckdb(files: Sequence[Path] = ()) -> Any:
    """Connect through Ibis to an empty database that can read these files and nothing else.

    A connection adds up by whole numbers in place, without hashing, where they lie close together: people are
    often numbered from 1 on. Each thread has a table of its own of 2^bits entries, all of which are added up in
    the end, so that together they have at most 2²².
    """
    connection = connected()
    backend = ibis.duckdb.from_connection(connection)
    (threads,) = connection.execute("SELECT current_setting('threads')").fetchone() or (1,)
    bits = max(12, _DENSE_BITS - math.ceil(math.log2(threads)))
    connection.execute(f"SET perfect_ht_threshold = {bits}")
    connection.execute("SET enable_progress_bar = false")  # it would go to standard output
    lock(connection, [name for file in files for name in (str(file.absolute()), pattern_of(file))])
    return backend


def pattern_of(file: Path) -> str:
    """The pattern that matches one file and no other: DuckDB takes every name for a pattern."""
    return glob.escape(str(file.absolute()))


def connected() -> Any:
    """An empty database in memory, which loads no extensions."""
    return duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )


def lock(connection: Any, names: Sequence[str] = ()) -> None:
    """Let a connection open these files and no others, and change no setting."""
    connection.execute(f"SET allowed_paths = [{', '.join(map(literal, names))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quoted(*parts: str | None) -> str:
    """A name in SQL, of those of its parts that there are."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts if part is not None)


def without_rows(connection: Any, expressions: Iterable[Value]) -> Any:
    """A database in memory: an empty table, by name and stored types, for each one the expressions name."""
    empty = duckdb.connect(config={"enable_external_access": "false"})
    for operation in {table for one in expressions for table in one.op().find(ops.DatabaseTable)}:
        place = operation.namespace
        if place.catalog != "temp" and place.database is not None:
            empty.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(place.catalog, place.database)}")
        name = quoted(place.catalog, place.database, operation.name)
        # The types as they are stored, and not as Ibis knows them; DESCRIBE looks at no row.
        read = ", ".join(map(quoted, operation.schema))
        stored = connection.execute(f"DESCRIBE SELECT {read} FROM {name}").fetchall()
        columns = ", ".join(f"{quoted(row[0])} {row[1]}" for row in stored)
        kind = "TEMPORARY TABLE" if place.catalog == "temp" else "TABLE"
        empty.execute(f"CREATE {kind} IF NOT EXISTS {name} ({columns})")
    return empty
