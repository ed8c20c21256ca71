"""Where the table lives: DuckDB in process, PostgreSQL, or Spark; all through Ibis.

An engine hands over the declared columns in five types only (int64, float64 without NaN, string, boolean,
date), whatever the file or the database holds. Text becomes a number by a pattern first and then a cast that
cannot fail, so that one odd row never stops a query. Types are never guessed from the rows.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import ibis

from sfumato import _validate
from sfumato.datasets.private_copy import Stamp
from sfumato.datasets.text_table import is_text
from sfumato.errors import DataError, DataUnavailable, InvalidInput, MissingExtra
from sfumato.query import sources
from sfumato.query.bounding import UNIT
from sfumato.query.compilation import Value, clip
from sfumato.query.policy import ENGINES, Column, Policy

_private_log = logging.getLogger("sfumato.private.query")
_private_log.addHandler(logging.NullHandler())
_private_log.propagate = False  # engine errors may quote rows; the holder attaches a handler on purpose

_NUMBER = r"^[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?$"
_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_SMALL_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


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
        columns = {name: self._read(column, available) for name, column in policy.columns.items()}
        if policy.unit.column is not None:
            columns[UNIT] = self._unit(policy.unit.column, available)
        return self.raw.select(**columns)

    def fetch(self, expression: Value) -> list[dict[str, Any]]:
        """The rows of an aggregated expression; an engine's own error text never gets out."""
        try:
            return list(self.connection.to_pyarrow(expression).to_pylist())
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
        return _READERS[column.type](self, self.raw[available[column.name.lower()]], column)

    def _unit(self, name: str, available: Mapping[str, str]) -> Value:
        if name.lower() not in available:
            raise InvalidInput(f"expected a column {name} in the table, as unit.column says")
        value = self.raw[available[name.lower()]]
        if value.type().is_floating():
            raise InvalidInput(f"expected unit.column={name!r} to be text or a whole number, not a real number")
        if str(value.type()).removeprefix("!") in _SMALL_INTEGERS:
            return value.cast("int64")
        return value  # compared as what it is: as text, the decimals 1.0 and 1.00 would be two people


def _text_as(engine: Engine, value: Value, pattern: str, kind: str) -> Value:
    if engine.name == "postgres":
        raise InvalidInput(
            f"expected column {value.get_name()} to be stored as {kind}, got text; PostgreSQL cannot convert "
            "text without stopping at odd rows: make a view that converts it"
        )
    return value.re_search(pattern).ifelse(value, ibis.null("string")).try_cast(kind)


def _read_number(engine: Engine, value: Value, column: Column) -> Value:
    kind = value.type()
    if kind.is_string():
        return _text_as(engine, value, _NUMBER, "float64")
    if kind.is_boolean():
        return value.ifelse(1, 0).cast("int64")
    if str(kind).removeprefix("!") in _SMALL_INTEGERS:
        return value.cast("int64")
    if kind.is_decimal():
        return _decimal(engine, value)
    if kind.is_numeric():
        number = value.cast("float64")
        return number.isnan().ifelse(ibis.null("float64"), number) if kind.is_floating() else number
    raise _unreadable(column, kind)


def _decimal(engine: Engine, value: Value) -> Value:
    """A decimal as a double; PostgreSQL's may be NaN, or too large for one."""
    if engine.name != "postgres":
        return value.cast("float64")
    largest = ibis.literal(Decimal(10) ** 18)
    number = clip(value, -largest, largest)
    return (value.cast("string") == "NaN").ifelse(ibis.null("float64"), number.cast("float64"))


def _read_text(engine: Engine, value: Value, column: Column) -> Value:
    if value.type().is_string():
        return value
    raise _unreadable(column, value.type())


def _read_boolean(engine: Engine, value: Value, column: Column) -> Value:
    if value.type().is_boolean():
        return value
    if value.type().is_integer():
        return ibis.cases((value == 0, False), (value == 1, True), else_=ibis.null("boolean"))
    if value.type().is_string():
        lowered = value.lower()
        yes, no = lowered.isin(["true", "t", "yes", "1"]), lowered.isin(["false", "f", "no", "0"])
        return ibis.cases((yes, True), (no, False), else_=ibis.null("boolean"))
    raise _unreadable(column, value.type())


def _read_date(engine: Engine, value: Value, column: Column) -> Value:
    if value.type().is_date():
        return value
    if value.type().is_timestamp():
        return value.cast("date")
    if value.type().is_string():
        return _text_as(engine, value, _DAY, "date")
    raise _unreadable(column, value.type())


_READERS: dict[str, Callable[[Engine, Value, Column], Value]] = {
    "integer": _read_number,
    "real": _read_number,
    "text": _read_text,
    "boolean": _read_boolean,
    "date": _read_date,
}


def _unreadable(column: Column, kind: object) -> InvalidInput:
    return InvalidInput(
        f"expected column {column.name} to be readable as {column.type}, got {kind}; "
        f"correct columns.{column.name}.type or the table"
    )


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
    connection = ibis.pyspark.connect(session)
    return Engine("spark", connection, *_spark_table(connection, session, policy))


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
