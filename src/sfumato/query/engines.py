"""Engines that hold the tables: DuckDB in process, PostgreSQL, or Spark; all through Ibis.

An engine hands over the declared columns as `sanitizing` reads them, for any content of the file or database,
under names of its own: c0, c1, … and the unit. Types are never guessed from the rows. Public tables are read
here once, through the same `sanitizing`; that copy is both checked and joined with.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ibis

from sfumato import _validate, interruption, postgres
from sfumato.datasets.clean import read_rows
from sfumato.datasets.private_copy import Stamp
from sfumato.errors import DataError, DataUnavailable, InvalidInput, MissingExtra, SfumatoError
from sfumato.policy import ENGINES, Policy, PublicTable
from sfumato.query import sources
from sfumato.query.expressions import Value, column_name
from sfumato.query.measures import UNIT
from sfumato.query.reading import QueryRefused
from sfumato.query.sanitizing import sanitized, sanitized_unit

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
        try:
            found[name] = DIALECTS[engine].load(connection, f"sfumato_public{place}", rows)
        except Exception as error:
            raise DataUnavailable(
                f"the public table {name} cannot be copied to the {engine} engine: {error}; allow the role "
                "temporary tables and writing, and leave zero bytes out of texts"
            ) from error
    return found, tuple(stamps)


def read_public(table: PublicTable, data: Any = None) -> pa.Table:
    """The table's declared columns under the names c0, c1, …; `data` stands for its source.

    Raises:
        InvalidInput: a column is not there, or a value of the key occurs twice.
    """
    if data is None:
        data = read_rows(Path(table.source), table.form, list(table.columns))
    connection = sources.open_duckdb()
    raw = connection.create_table("raw", data)
    stored = {name.lower(): name for name in raw.columns}
    absent = [name for name in table.columns if name.lower() not in stored]
    if absent:
        raise InvalidInput(
            f"expected the columns {', '.join(absent)} in the public table {table.name}, got "
            f"{', '.join(raw.columns)}; correct [public.{table.name}.columns]"
        )
    try:
        columns = {
            f"c{place}": sanitized("duckdb", raw[stored[name.lower()]], column)
            for place, (name, column) in enumerate(table.columns.items())
        }
    except SfumatoError as error:
        raise InvalidInput(f"in the public table {table.name}: {error}") from None
    key = f"c{list(table.columns).index(table.key)}"
    rows = raw.select(**columns)
    rows = rows.filter(rows[key].notnull())
    twice = rows.group_by(key).having(lambda found: found.count() > 1).agg(times=rows.count())
    first = twice.order_by(key).limit(1).to_pyarrow().to_pylist()
    if first:
        raise InvalidInput(
            f"expected each value of {table.key} once in the public table {table.name}, got "
            f"{first[0][key]} {first[0]['times']} times, as columns.{table.key} reads it; remove the others"
        )
    return rows.to_pyarrow()


_private_log = logging.getLogger("sfumato.private.query")
_private_log.addHandler(logging.NullHandler())
_private_log.propagate = False  # engine errors may quote rows; the holder attaches a handler on purpose
_NONE_USED = "row"  # the only column where a question reads none


@dataclass(frozen=True)
class Engine:
    """A connection and the raw table in it; of several, `tables` holds the others by name.

    `public` holds the public tables as they were read and checked, under the names c0, c1, ….
    """

    name: str
    connection: Any
    raw: Value
    stamps: tuple[Stamp, ...] = ()
    tables: Mapping[str, Value] = field(default_factory=dict)
    public: Mapping[str, Value] = field(default_factory=dict)

    def ready(self) -> bool:
        """Whether the files behind the table are still those that were checked, and a server still answers."""
        lost = self.name == "postgres" and not postgres.answers(self.connection.con)
        return not lost and all(stamp.holds() for stamp in self.stamps)

    def declared(self, policy: Policy, used: Collection[str] | None = None) -> Value:
        """The columns of a policy's table in their five types, or those that are used, and the unit.

        An engine plans every column that it is told of, and a text that is to become a number takes long.
        """
        raw = self.tables.get(policy.table, self.raw)
        columns = {}
        for name, column in policy.columns.items():  # those that are not used have to be there too
            value = sanitized(self.name, raw[sources.stored_name(name, raw.columns)], column)
            if used is None or name in used:
                columns[column_name(name, policy)] = value
        unit = policy.unit.column
        if unit is not None:
            columns[UNIT] = sanitized_unit(self.name, raw[sources.stored_name(unit, raw.columns)], unit)
        return raw.select(**columns or {_NONE_USED: ibis.literal(1, "int8")})

    def prepare(self, expression: Value) -> str:
        """The SQL of an expression, once the engine has planned it: no row is read, nothing charged yet."""
        try:
            text = str(self.connection.compile(expression))
            if self.name == "duckdb":
                # It would look at the least and the largest value of a full table: it plans on empty ones.
                self._without_rows.execute(f"EXPLAIN {text}").fetchall()
            else:
                self.connection.raw_sql(f"EXPLAIN {text}")
        except Exception as error:
            interruption.check()
            _private_log.error("the engine cannot plan the query", exc_info=error)
            hindrance = self._hindrance(error)
        else:
            return text
        if hindrance is not None:
            raise DataUnavailable(f"{hindrance} before anything was charged; ask again")
        raise QueryRefused(f"the {self.name} engine cannot plan this query; ask for less at a time")

    @cached_property
    def _without_rows(self) -> Any:
        return sources.without_rows(
            self.connection.con, [self.raw, *self.tables.values(), *self.public.values()]
        )

    def fetch(self, text: str) -> list[dict[str, Any]]:
        """All rows of a prepared query."""
        return [row for rows in self.batches(text) for row in rows]

    def batches(self, text: str) -> Iterator[list[dict[str, Any]]]:
        """The rows of a prepared query, some at a time; an engine's own error text never gets out."""
        try:
            yield from DIALECTS[self.name].batches(self.connection, text)
            return
        except Exception as error:
            interruption.check()
            _private_log.error("the engine failed", exc_info=error)
            hindrance = self._hindrance(error)
        if hindrance is not None:
            raise DataUnavailable(
                f"{hindrance}, and there is no answer; what was charged for it stays spent, and asking again "
                "is charged again"
            )
        raise DataError(
            f"the {self.name} engine could not run the query; its message may quote private rows and goes to "
            "the log 'sfumato.private.query' only"
        )

    def _hindrance(self, error: Exception) -> str | None:
        return postgres.hindrance(self.connection.con, error) if self.name == "postgres" else None


def open_engine(
    policy: Policy, *, name: str | None = None, data: Any = None, master: str = "local[*]"
) -> Engine:
    """The policy's tables on an engine.

    `data` stands for the source: a DataFrame or Arrow table, or one for each table by name.
    """
    suggested = "postgres" if policy.source.startswith(("postgres://", "postgresql://")) else "duckdb"
    name = _validate.one_of("engine", name or suggested, ENGINES)
    given = _given(policy, data)
    connection, raw, stamps = DIALECTS[name].open(policy, given, master)
    public, of_public = load_public(name, connection, policy.public, given)
    tables = dict(zip(policy.private_names, raw, strict=True)) if policy.tables else {}
    return Engine(name, connection, raw[0], (*stamps, *of_public), tables, public)


Opened = tuple[Any, list[Value], tuple[Stamp, ...]]
"""A connection, each private table in it, and the stamps of their files."""


def _each(policy: Policy) -> list[Policy]:
    return list(policy.tables.values()) or [policy]


def _given(policy: Policy, data: Any) -> Mapping[str, Any]:
    if data is None or not isinstance(data, Mapping):
        return {} if data is None else {policy.table: data}
    names = [*policy.private_names, *policy.public]
    if set(policy.private_names) - set(data) or set(data) - set(names):
        raise InvalidInput(
            f"expected a table for each of {', '.join(policy.private_names)}, and none but {', '.join(names)}, "
            f"got {', '.join(map(str, data)) or 'none'}"
        )
    return data


def _open_duckdb(policy: Policy, given: Mapping[str, Any], master: str) -> Opened:
    if given:
        connection = sources.open_duckdb()
        tables = (sources.given_rows(given[one.table], one) for one in _each(policy))
        return connection, [connection.create_table(f"raw{i}", rows) for i, rows in enumerate(tables)], ()
    files = [sources.clean_files(one) for one in _each(policy)]
    connection = sources.open_duckdb([path for one in files for path in one.paths])
    # The names of folders are values too: no column is made of them, and no type guessed.
    found = [
        connection.read_parquet(
            list(map(sources.pattern_of, one.paths)), table_name=f"raw{i}", hive_partitioning=False
        )
        for i, one in enumerate(files)
    ]
    return connection, found, tuple(stamp for one in files for stamp in one.stamps)


def _open_postgres(policy: Policy, given: Mapping[str, Any], master: str) -> Opened:
    if len({one.source for one in _each(policy)}) > 1:
        raise InvalidInput("expected the policy's tables in one PostgreSQL database, got several sources")
    try:
        server = postgres.connect(policy.source)
        connection = ibis.postgres.from_connection(server)
        found = []
        for one in _each(policy):
            schema, name, columns = postgres.readable_columns(server, one.table, one.owner)
            found.append(sources.table_of(connection, one, columns, name, database=schema))
    except SfumatoError:
        raise
    except Exception as error:
        raise DataUnavailable(f"the PostgreSQL server of the policy cannot be reached: {error}") from error
    return connection, found, ()


def _open_spark(policy: Policy, given: Mapping[str, Any], master: str) -> Opened:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(package="pyspark", extra="spark") from error
    builder = SparkSession.builder.master(master).appName("sfumato")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # Days before 1582 are read as they are written, and are no error.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        # A file's statement of its least and largest values leaves no row out.
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.orc.filterPushdown": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    running = builder.getOrCreate()
    # A session may have functions and views of its own that shadow Spark's; a new one has none.
    session = running.newSession()
    session.catalog.setCurrentDatabase(running.catalog.currentDatabase())
    for key, value in settings.items():
        if key != "spark.ui.enabled":
            session.conf.set(key, value)
    # It writes its errors, which may quote rows, to standard error before a caller can catch them.
    session.sparkContext.setLogLevel("OFF")
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    connection = ibis.pyspark.connect(session)
    found = [_spark_table(connection, session, one, f"sfumato_raw{i}") for i, one in enumerate(_each(policy))]
    return connection, [raw for raw, _ in found], tuple(stamp for _, stamps in found for stamp in stamps)


_SPARK_READS = ("parquet", "orc", "delta")
"""Providers that read each row by itself; those of text files fail at odd lines, or join them."""


def _spark_table(connection: Any, session: Any, policy: Policy, view: str) -> tuple[Value, tuple[Stamp, ...]]:
    source, files = policy.source, sources.Files((), ())
    try:
        if sources.is_local(source):
            files = sources.clean_files(policy)
            reader = session.read.option("__globPaths__", "false")  # names are no patterns
            frame = reader.parquet(*(f"file://{path}" for path in files.paths))
        elif source.lower().endswith(sources.PARQUET):
            frame = session.read.parquet(source)
        else:
            _check_provider(session, source)
            frame = session.table(source)
    except SfumatoError:
        raise
    except Exception as error:
        _private_log.error("Spark cannot read the source", exc_info=error)
    else:
        frame.createOrReplaceTempView(view)
        return connection.table(view), files.stamps
    raise DataUnavailable(
        f"Spark cannot read {source}; expected a file on this machine, the address of Parquet files that ends "
        f"in {' or '.join(sources.PARQUET)}, or a table of its catalogue"
    )


def _check_provider(session: Any, source: str) -> None:
    known = session.catalog.tableExists(source)
    if not known or session.catalog.getTable(source).tableType not in ("MANAGED", "EXTERNAL"):
        raise InvalidInput(
            f"expected a table {source} in Spark's catalogue; a view is not read, as it may call functions "
            "of others: write its rows into a table"
        )
    ((described,),) = session.sql(f"DESCRIBE TABLE EXTENDED {source} AS JSON").collect()
    provider = str(json.loads(described).get("provider")).lower()
    if provider not in _SPARK_READS:
        raise InvalidInput(
            f"expected table {source} to be stored as {', '.join(_SPARK_READS)}, got {provider}, in which one "
            "row may hide others or fail the query; write its rows into a table of Parquet"
        )


# ---- what differs between the engines

_AT_ONCE = 10_000  # rows


def _in_database(connection: Any, name: str, rows: pa.Table) -> Value:
    return connection.create_table(name, rows, temp=True, overwrite=True)


def _in_spark(connection: Any, name: str, rows: pa.Table) -> Value:
    connection._session.createDataFrame(rows).createOrReplaceTempView(name)
    return connection.table(name)


def _of_cursor(cursor: Any) -> Iterator[list[dict[str, Any]]]:
    names = [item[0] for item in cursor.description]
    while rows := cursor.fetchmany(_AT_ONCE):
        yield [dict(zip(names, row, strict=True)) for row in rows]


def _of_duckdb(connection: Any, text: str) -> Iterator[list[dict[str, Any]]]:
    return _of_cursor(connection.con.execute(text))


def _of_postgres(connection: Any, text: str) -> Iterator[list[dict[str, Any]]]:
    """The rows stay on the server, which hands them over through a cursor of its own."""
    with connection.con.transaction(), connection.con.cursor(name="sfumato") as cursor:
        yield from _of_cursor(cursor.execute(text))


def _of_spark(connection: Any, text: str) -> Iterator[list[dict[str, Any]]]:
    rows = connection.raw_sql(text).toLocalIterator()
    while some := [row.asDict() for row in islice(rows, _AT_ONCE)]:
        yield some


@dataclass(frozen=True)
class Dialect:
    """An engine: the opening of a policy's tables, the loading of a public one, the rows of a query."""

    open: Callable[[Policy, Mapping[str, Any], str], Opened]
    load: Callable[[Any, str, Any], Value]
    batches: Callable[[Any, str], Iterator[list[dict[str, Any]]]]


DIALECTS = {
    "duckdb": Dialect(_open_duckdb, _in_database, _of_duckdb),
    "postgres": Dialect(_open_postgres, _in_database, _of_postgres),
    "spark": Dialect(_open_spark, _in_spark, _of_spark),
}
