"""A DuckDB database with the same tables and no rows: what is planned on it depends on no row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb
import ibis.expr.operations as ops

from sfumato.query.expressions.base import Value
from sfumato.query.in_memory import quoted


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
