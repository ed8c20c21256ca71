"""Where the table lives: DuckDB in process, PostgreSQL, or Spark; all through Ibis.

An engine hands over the declared columns as `sanitizing` reads them, whatever the file or the database holds,
under names of its own: c0, c1, … and the unit. Types are never guessed from the rows.
"""

from __future__ import annotations

import contextlib
import glob
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ibis

from sfumato import _validate
from sfumato.datasets.private_copy import Stamp
from sfumato.datasets.text_table import is_text
from sfumato.errors import DataError, DataUnavailable, InvalidInput, MissingExtra
from sfumato.policy import ENGINES, Column, Policy
from sfumato.query import sources
from sfumato.query.compilation import Value, column_name
from sfumato.query.measures import UNIT
from sfumato.query.refusal import QueryRefused
from sfumato.query.sanitizing import sanitized, sanitized_unit

_private_log = logging.getLogger("sfumato.private.query")
_private_log.addHandler(logging.NullHandler())
_private_log.propagate = False  # engine errors may quote rows; the holder attaches a handler on purpose


@dataclass(frozen=True)
class Engine:
    """A connection and the raw table in it."""

    name: str
    connection: Any
    raw: Value
    stamps: tuple[Stamp, ...] = ()

    def ready(self) -> bool:
        """Whether the files behind the table are still those that were checked."""
        return all(stamp.holds() for stamp in self.stamps)

    def declared(self, policy: Policy) -> Value:
        """The policy's columns in their five types, and the unit."""
        available = {name.lower(): name for name in self.raw.columns}
        columns = {
            column_name(name, policy): self._read(column, available) for name, column in policy.columns.items()
        }
        if policy.unit.column is not None:
            columns[UNIT] = self._unit(policy.unit.column, available)
        return self.raw.select(**columns)

    def prepare(self, expression: Value) -> str:
        """The SQL of an expression, once the engine has planned it: no row is read, nothing charged yet."""
        try:
            text = str(self.connection.compile(expression))
            _RUN[self.name](self.connection, f"EXPLAIN {text}")
        except Exception as error:
            _private_log.error("the engine cannot plan the query", exc_info=error)
        else:
            return text
        raise QueryRefused(f"the {self.name} engine cannot plan this query; ask for less at a time")

    def fetch(self, text: str) -> list[dict[str, Any]]:
        """The rows of a prepared query; an engine's own error text never gets out."""
        try:
            return _RUN[self.name](self.connection, text)
        except Exception as error:
            _private_log.error("the engine failed", exc_info=error)
        raise DataError(
            f"the {self.name} engine could not run the query; its message may quote private rows and goes to "
            "the log 'sfumato.private.query' only"
        )

    def _read(self, column: Column, available: Mapping[str, str]) -> Value:
        if column.name.lower() not in available:
            raise InvalidInput(
                f"expected a column {column.name} in the table, got {', '.join(available.values())}; "
                "correct the policy's [columns]"
            )
        return sanitized(self.name, self.raw[_named(column.name, self.raw.columns)], column)

    def _unit(self, name: str, available: Mapping[str, str]) -> Value:
        if name.lower() not in available:
            raise InvalidInput(f"expected a column {name} in the table, as unit.column says")
        return sanitized_unit(self.name, self.raw[_named(name, self.raw.columns)], name)


def _run_duckdb(connection: Any, text: str) -> list[dict[str, Any]]:
    found = connection.con.execute(text)
    names = [item[0] for item in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _run_postgres(connection: Any, text: str) -> list[dict[str, Any]]:
    with contextlib.closing(connection.raw_sql(text)) as cursor:
        names = [item[0] for item in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _run_spark(connection: Any, text: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in connection.raw_sql(text).collect()]


_RUN = {"duckdb": _run_duckdb, "postgres": _run_postgres, "spark": _run_spark}


def _named(name: str, columns: Sequence[str]) -> str:
    """The stored column that a name means: in its own letters, or else in any."""
    if name in columns:
        return name
    found = [column for column in columns if column.lower() == name.lower()]
    if len(found) > 1:
        raise InvalidInput(
            f"expected one column {name} in the table, got {', '.join(found)}; rename one of them"
        )
    return found[0]


def engine_for(policy: Policy) -> str:
    """The engine that a policy's source suggests."""
    return "postgres" if policy.source.startswith(("postgres://", "postgresql://")) else "duckdb"


def open_engine(
    policy: Policy, *, name: str | None = None, data: Any = None, master: str = "local[*]"
) -> Engine:
    """The policy's table on an engine; `data` is a DataFrame or Arrow table to ask instead of the source."""
    name = _validate.one_of("engine", name or engine_for(policy), ENGINES)
    if name == "postgres":
        return _open_postgres(policy)
    if name == "spark":
        return _open_spark(policy, master)
    return _open_duckdb(policy, data)


def _open_duckdb(policy: Policy, data: Any) -> Engine:
    if data is not None:
        connection = ibis.duckdb.connect()
        return Engine("duckdb", connection, sources.loaded(connection, data))
    if sources.is_database(policy.source):
        connection = _opened_database(policy)
        return Engine("duckdb", connection, sources.database_table(connection, policy))
    files, connection = sources.clean_files(policy), ibis.duckdb.connect()
    # The names of folders are values too: no column is made of them, and no type guessed.
    raw = connection.read_parquet([str(path) for path in files.paths], hive_partitioning=False)
    return Engine("duckdb", connection, raw, files.stamps)


def _opened_database(policy: Policy) -> Any:
    if not Path(policy.source).is_file():
        raise DataUnavailable(f"no file at {policy.source}, where the policy's table.source says it is")
    try:
        return ibis.duckdb.connect(policy.source, read_only=True)
    except Exception as error:
        _private_log.error("the database could not be opened", exc_info=error)
    raise DataUnavailable(
        f"{policy.source} cannot be opened as a DuckDB file for reading; close it where it is being written"
    )


def _open_postgres(policy: Policy) -> Engine:
    try:
        connection = ibis.connect(policy.source.replace("postgresql://", "postgres://", 1))
    except ImportError as error:
        raise MissingExtra(package="psycopg", extra="postgres") from error
    except Exception as error:
        raise DataUnavailable(f"the PostgreSQL server of the policy cannot be reached: {error}") from error
    connection.raw_sql("SET datestyle TO ISO").close()
    schema, _, table = policy.table.rpartition(".")
    return Engine("postgres", connection, connection.table(table, database=schema or None))


def _open_spark(policy: Policy, master: str) -> Engine:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(package="pyspark", extra="spark") from error
    builder = SparkSession.builder.master(master).appName("sfumato")
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    _silence(session)
    connection = ibis.pyspark.connect(session)
    return Engine("spark", connection, *_spark_table(connection, session, policy))


def _silence(session: Any) -> None:
    """Spark writes its errors, which may quote rows, to standard error before anybody can catch them."""
    session.sparkContext.setLogLevel("OFF")
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True


def _spark_table(connection: Any, session: Any, policy: Policy) -> tuple[Value, tuple[Stamp, ...]]:
    source, files = policy.source, sources.Files((), ())
    if "://" not in source and (is_text(Path(source)) or _is_local_parquet(source)):
        files = sources.clean_files(policy)
        frame = session.read.parquet(*(path.resolve().as_uri() for path in files.paths))
    elif source.lower().endswith(sources.PARQUET):
        frame = session.read.parquet(source)
    elif is_text(Path(source)):
        raise InvalidInput(
            "expected a text file on this machine, or Parquet; lines of a remote text file cannot be checked "
            "one by one: write it as Parquet"
        )
    else:
        return connection.table(source), ()
    view = "sfumato_raw"
    frame.createOrReplaceTempView(view)
    return connection.table(view), files.stamps


def _is_local_parquet(source: str) -> bool:
    return source.lower().endswith(sources.PARQUET) and bool(glob.glob(source, recursive=True))
