"""Public tables: read here, checked in the open, and handed to whatever engine is asked.

They are nobody's secret, so that what is wrong with one is said with its value. Each is read once, through the
same `sanitizing` as private tables, and that copy is both checked and joined with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.datasets.clean import read_rows
from sfumato.datasets.private_copy import Stamp
from sfumato.errors import DataUnavailable, InvalidInput, SfumatoError
from sfumato.policy import PublicTable
from sfumato.query.expressions.base import Value
from sfumato.query.in_memory import open_duckdb
from sfumato.query.sanitizing import sanitized

if TYPE_CHECKING:
    import pyarrow as pa


def load_public(
    engine: str, connection: Any, tables: Mapping[str, PublicTable], given: Mapping[str, Any]
) -> tuple[dict[str, Value], tuple[Stamp, ...]]:
    """Each public table in the engine, with columns c0, c1, …, and the stamps of their files."""
    found: dict[str, Value] = {}
    stamps: list[Stamp] = []
    for place, (name, table) in enumerate(tables.items()):
        if name not in given:
            if not Path(table.source).is_file():
                raise DataUnavailable(f"no file at {table.source}, where public.{name}.source says it is")
            stamps.append(Stamp.of(Path(table.source)))
        rows = read_public(table, given.get(name))
        found[name] = _LOADERS[engine](connection, f"sfumato_public{place}", rows)
    return found, tuple(stamps)


def read_public(table: PublicTable, data: Any = None) -> pa.Table:
    """The table's declared columns under the names c0, c1, …; `data` stands for its source.

    Raises:
        InvalidInput: a column is not there, or a value of the key occurs twice.
    """
    if data is None:
        data = read_rows(Path(table.source), table.form, list(table.columns))
    connection = open_duckdb()
    raw = connection.create_table("raw", data)
    stored = {name.lower(): name for name in raw.columns}
    absent = [name for name in table.columns if name.lower() not in stored]
    if absent:
        raise InvalidInput(
            f"expected the columns {', '.join(absent)} in the public table {table.name}, got "
            f"{', '.join(raw.columns)}; correct [public.{table.name}.columns]"
        )
    try:
        columns = [
            sanitized("duckdb", raw[stored[name.lower()]], table.columns[name]) for name in table.columns
        ]
    except SfumatoError as error:
        raise InvalidInput(f"in the public table {table.name}: {error}") from None
    rows = raw.select(**{f"c{place}": value for place, value in enumerate(columns)})
    key = rows[f"c{list(table.columns).index(table.key)}"]
    rows = rows.filter(key.notnull())
    _check_unique(table, rows, key.get_name())
    return rows.to_pyarrow()


def _check_unique(table: PublicTable, rows: Value, key: str) -> None:
    twice = rows.group_by(key).having(lambda found: found.count() > 1).agg(times=rows.count())
    first = twice.order_by(key).limit(1).to_pyarrow().to_pylist()
    if first:
        raise InvalidInput(
            f"expected each value of {table.key} once in the public table {table.name}, got "
            f"{first[0][key]} {first[0]['times']} times, as columns.{table.key} reads it; remove the others"
        )


def _in_duckdb(connection: Any, name: str, rows: pa.Table) -> Value:
    return connection.create_table(name, rows, temp=True, overwrite=True)


def _in_spark(connection: Any, name: str, rows: pa.Table) -> Value:
    connection._session.createDataFrame(rows).createOrReplaceTempView(name)
    return connection.table(name)


def _in_postgres(connection: Any, name: str, rows: pa.Table) -> Value:
    return connection.create_table(name, rows, temp=True, overwrite=True)


_LOADERS = {"duckdb": _in_duckdb, "postgres": _in_postgres, "spark": _in_spark}
