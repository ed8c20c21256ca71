"""The one way that DuckDB is opened: an empty database in memory, which can read some files.

Once these are bound, the connection opens nothing further and its settings are locked.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import ibis

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
