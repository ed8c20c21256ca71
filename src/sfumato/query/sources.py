"""The private copies of a policy's files, which are all that engines read, and tables given in Python.

Copies are made before a charge. Rows that were left out are counted in the log 'sfumato.private.query' only.
The type of a column of a DataFrame is the one that the frame declares, and no row decides it. A pandas column
of objects has none, so that the policy says its type: each value is read by itself, and one that does not fit
is NULL.

DuckDB is opened in one way: an empty database in memory, which can read some files. Once these are bound, the
connection opens nothing further and its settings are locked.
"""

from __future__ import annotations

import contextlib
import datetime
import glob
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import duckdb
import ibis
import ibis.expr.operations as ops
import numpy as np

from sfumato.datasets.clean import (
    BATCH,
    MOST_CHARACTERS,
    Tally,
    clean_copy,
    parquet_rows,
    parquet_types,
    plain,
    plain_type,
    text_rows,
)
from sfumato.datasets.private_copy import Stamp
from sfumato.datasets.text_table import ENDINGS, is_text
from sfumato.errors import DataCorrupted, DataError, DataUnavailable, InvalidInput
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Policy
from sfumato.query.expressions import Value
from sfumato.query.sanitizing import DAY_PATTERN, NUMBER_PATTERN

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = (".parquet", ".pq")
DATABASE = (".duckdb", ".ddb")
_SOURCE = "source"
"""The name of an attached file: its macros are found under it alone, which no statement of ours does."""
_BUILT_IN = re.compile(
    r"BOOLEAN|U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|DATE|UUID"
    r"|TIMESTAMP(_S|_MS|_NS| WITH TIME ZONE)?|ENUM\(.*\)",
    re.DOTALL,
)
_AS_TEXT = ("HUGEINT", "UHUGEINT", "UUID", "VARCHAR", "ENUM")  # the first have no type in Arrow
_SHOWN = 50  # columns of a message
_private_log = logging.getLogger("sfumato.private.query")


@dataclass(frozen=True)
class Files:
    """Parquet files to read, and the stamps of all files they stand for."""

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...]


def clean_files(policy: Policy) -> Files:
    """The private copies of the policy's files, in which no row affects another.

    Raises:
        DataUnavailable: there is no such file.
        InvalidInput: the file's columns are not the policy's, which its first line or its schema says.
    """
    originals = files_of(policy.source)
    stamps = [Stamp.of(path) for path in originals]  # before they are read: a later change is then noticed
    if originals[0].name.lower().endswith(PARQUET):
        _check_types(originals, policy)
    way = (policy.table, policy.form, tuple(stored_columns(policy)))
    paths = [clean_copy(path, way, partial(rows_of_file, path, policy), report=log_tally) for path in originals]
    return Files(tuple(paths), (*stamps, *map(Stamp.of, paths)))


def rows_of_file(path: Path, policy: Policy, tally: Tally) -> Iterator[pa.Table]:
    """The declared columns of a file, each row by itself and in types that engines read."""
    if is_database(path.name):
        return _rows_of_table(path, policy, tally)
    if is_text(path):
        return text_rows(path, policy.form, stored_columns(policy), tally)
    return parquet_rows(path, stored_columns(policy), tally)


def _check_types(paths: Sequence[Path], policy: Policy) -> None:
    """Compare the declared columns of the parts of a table, by their schemas."""
    schemas = []
    for path in paths:
        types = dict(parquet_types(path))
        stored = [stored_name(name, types) for name in stored_columns(policy)]
        schemas.append([plain_type(types[name]) for name in stored])
        if schemas[-1] != schemas[0]:
            raise InvalidInput(f"expected {path} to have the column types of {paths[0]}; convert it first")


def stored_columns(policy: Policy) -> list[str]:
    """The columns that the policy needs: those that it declares, and the one that tells people apart."""
    return [*policy.columns, *([] if policy.unit.column is None else [policy.unit.column])]


def files_of(source: str) -> list[Path]:
    """A file, the Parquet files of a folder, or those that a pattern such as parts/*.parquet matches, in order.

    A name that there is is no pattern, and a file under two names is taken once.
    """
    ends = source.lower().endswith
    if Path(source).is_dir():
        names = glob.glob(f"{glob.escape(source)}/**/*.parquet", recursive=True)
    elif not ends((*ENDINGS, *PARQUET, *DATABASE)):
        raise InvalidInput(
            f"expected table.source to end in {', '.join((*ENDINGS, *PARQUET, *DATABASE))}, or to be the "
            f"address of a database, got {Path(source).name}"
        )
    elif Path(source).is_file() or not ends(PARQUET):
        names = [source]
    else:
        names = glob.glob(source, recursive=True)
    found = [Path(name) for name in sorted(names) if Path(name).is_file()]
    if not found:
        raise DataUnavailable(f"no file at {source}, where the policy's table.source says it is")
    real: dict[tuple[int, int], Path] = {}
    for one in found:
        real.setdefault((one.stat().st_dev, one.stat().st_ino), one)
    return list(real.values())


@contextlib.contextmanager
def _attached(path: Path) -> Iterator[Any]:
    """A connection to which a DuckDB file is attached for reading.

    Its statistics are not believed. A file with a log beside it is refused: the log may change while the file
    stays as it is.
    """
    if not path.is_file():
        raise DataUnavailable(f"no file at {path}; give a DuckDB file")
    if path.with_name(f"{path.name}.wal").exists():
        raise DataUnavailable(
            f"{path} was not closed, as {path.name}.wal is beside it; open it in DuckDB once and close it again"
        )
    import pyarrow as pa

    with contextlib.closing(connected()) as connection:
        try:
            connection.execute("SET disabled_optimizers = 'statistics_propagation'")
            connection.execute(f"ATTACH {literal(str(path.absolute()))} AS {_SOURCE} (TYPE duckdb, READ_ONLY)")
            lock(connection)
            yield connection
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            _private_log.error("the database could not be read", exc_info=error)
        else:
            return
    raise DataCorrupted(
        f"{path} cannot be read as a DuckDB file; check that it is whole, and close it where it is written"
    )


def columns_of_table(path: Path, table: str) -> dict[str, str | None]:
    with _attached(path) as connection:
        return _stored_columns(connection, table)


def _rows_of_table(path: Path, policy: Policy, tally: Tally) -> Iterator[pa.Table]:
    import pyarrow as pa

    with _attached(path) as connection:
        kinds = readable(policy, _stored_columns(connection, policy.table))
        read = (
            f"{_start_of(quoted(column)) if kind.startswith(_AS_TEXT) else quoted(column)} AS {quoted(name)}"
            for name, (column, kind) in kinds.items()
        )
        schema, _, name = policy.table.rpartition(".")
        place = quoted(_SOURCE, schema or "main", name)
        found = connection.sql(f"SELECT {', '.join(read)} FROM {place}").to_arrow_reader(BATCH)
        for part in chain([found.schema.empty_table()], (pa.Table.from_batches([one]) for one in found)):
            yield plain(part, tally)


def _start_of(column: str) -> str:
    return f"left({column}::VARCHAR, {MOST_CHARACTERS + 1})"


def _stored_columns(connection: Any, table: str) -> dict[str, str | None]:
    """The type of each column of a table in the attached file; None for one that is computed when it is read.

    Raises:
        InvalidInput: There is no such table that holds its rows and is found without computing anything.
    """
    schema, _, name = table.rpartition(".")
    place = [name, schema or "main"]
    where = f"database_name = '{_SOURCE}' AND table_name = ? AND schema_name = ?"
    found = connection.execute(f"SELECT 1 FROM duckdb_tables() WHERE {where}", place).fetchall()
    if len(found) != 1:
        raise InvalidInput(
            f"expected a table {table} in the DuckDB file; name one that is there, or write the rows of a "
            "view into a table, as a view may fail at some of them"
        )
    rows = connection.execute(
        "SELECT column_name, data_type, NOT is_generated FROM duckdb_columns() "
        f"WHERE {where} ORDER BY column_index",
        place,
    ).fetchall()
    return {column: kind if stored and _BUILT_IN.fullmatch(kind) else None for column, kind, stored in rows}


def log_tally(tally: Tally) -> None:
    level = logging.WARNING if tally.faults else logging.INFO
    words = tally.in_words()
    _private_log.log(level, "%s rows were kept, %s lines left out; %s", tally.rows, tally.dropped, words)


def is_database(source: str) -> bool:
    return "://" not in source and source.lower().endswith(DATABASE)


def is_local(source: str) -> bool:
    """Whether a source is a file or folder of this machine, and no address or name of a table."""
    if "://" in source:
        return False
    if source.lower().endswith((*ENDINGS, *DATABASE)) or ("/" in source and Path(source).is_dir()):
        return True
    return source.lower().endswith(PARQUET) and bool(Path(source).exists() or glob.glob(source, recursive=True))


def readable(policy: Policy, columns: Mapping[str, str | None]) -> dict[str, tuple[str, str]]:
    """The stored column of each one that a policy needs, and its type; refused where that is None."""
    found = {}
    for wanted in stored_columns(policy):
        column = stored_name(wanted, columns)
        kind = columns[column]
        if kind is None:
            raise InvalidInput(
                f"expected column {column} of table {policy.table} to be stored, in a built-in type and under "
                "a plain collation; write the rows into a table with such a column"
            )
        found[wanted] = column, kind
    return found


def stored_name(name: str, columns: Collection[str]) -> str:
    """The stored column that a name means: in its own letters, or else in any."""
    found = [column for column in columns if column == name]
    found = found or [column for column in columns if column.lower() == name.lower()]
    if not found:
        few = ", ".join(list(columns)[:_SHOWN]) + (", …" if len(columns) > _SHOWN else "")
        raise InvalidInput(f"expected a column {name} in the table, got {few}; correct the policy's [columns]")
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
    types = connection.compiler.type_mapper
    return ops.DatabaseTable(
        name,
        schema=ibis.schema(
            {column: types.from_string(kind) for column, kind in readable(policy, columns).values()}
        ),
        source=connection,
        namespace=ops.Namespace(**place),
    ).to_expr()


_UNIT = "unit"


def given_rows(data: Any, policy: Policy) -> pa.Table:
    """The columns that a policy needs of a DataFrame or Arrow table, in types that no row decides.

    Raises:
        InvalidInput: `data` is no table, or a column is not there.
        DataError: a column's type is none that Arrow has; the reason may quote a row and is not shown.
    """
    import pandas as pd

    kinds = {column.name: column.type for column in policy.columns.values()}
    if policy.unit.column is not None:
        kinds.setdefault(policy.unit.column, _UNIT)
    try:
        found = _of_pandas(data, kinds) if isinstance(data, pd.DataFrame) else _of_arrow(data, kinds)
    except InvalidInput:
        raise
    except Exception as error:
        _private_log.error("the table could not be loaded", exc_info=error)
    else:
        return plain(found, Tally())
    raise DataError(
        "expected a DataFrame or Arrow table whose columns have one type each; the reason may quote private "
        "rows and goes to the log 'sfumato.private.query' only"
    )


def _of_arrow(data: Any, kinds: dict[str, str]) -> pa.Table:
    import pyarrow as pa

    try:
        table = pa.table(data)  # also of frames with Arrow's C interface, such as Polars' frames
    except TypeError:
        raise InvalidInput(
            f"expected data to be a DataFrame or an Arrow table, got {type(data).__name__}"
        ) from None
    return table.select(_places(table.column_names, kinds))


def _of_pandas(frame: Any, kinds: dict[str, str]) -> pa.Table:
    import pyarrow as pa

    labels = [str(label) for label in frame.columns]
    columns = {labels[place]: frame.iloc[:, place] for place in _places(labels, kinds)}
    of_lower = {name.lower(): kind for name, kind in kinds.items()}
    return pa.table({name: _typed(column, of_lower[name.lower()]) for name, column in columns.items()})


def _places(names: Sequence[str], wanted: Iterable[str]) -> list[int]:
    """The place of each wanted column."""
    return list(dict.fromkeys(names.index(stored_name(name, names)) for name in wanted))


def _typed(column: Any, kind: str) -> pa.Array:
    """A pandas column in the type of its own, or, of objects and texts, in that of its kind."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.dtype.categories.dtype)
    if isinstance(column.dtype, pd.StringDtype):
        kind = "text"
    elif column.dtype != object:
        return pa.array(column, from_pandas=True)
    types = {"text": pa.string(), _UNIT: pa.string(), "boolean": pa.bool_(), "date": pa.date32()}
    return pa.array([_READERS[kind](value) for value in column], types.get(kind, pa.float64()))


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def _person(value: Any) -> str | None:
    """The person of a row, as text: of mixed values, 7 and "7" are one person."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if isinstance(value, (int, np.integer, UUID)):
        return str(value) if isinstance(value, UUID) or abs(int(value)) < 10**100 else None
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if float(value).is_integer() else None
    return _text(value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value) else None
    if not isinstance(value, (bool, int, float, Decimal, np.bool_, np.integer, np.floating)):
        return None
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf
    except ValueError:  # a signaling NaN
        return None


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        word = value[:1000].strip(" ").lower()
        return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None
    number = _number(value)
    return bool(number) if number in (0.0, 1.0) else None


def _day(value: Any) -> datetime.date | None:
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value) if DAY.fullmatch(value) else None
        except ValueError:
            return None
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[D]").item()
        if isinstance(value, int):  # a day that Python's calendar does not have
            return datetime.date.max if value > 0 else datetime.date.min
    if isinstance(value, datetime.datetime):
        return None if value != value else value.date()  # NaT is a datetime, and not equal to itself
    return value if isinstance(value, datetime.date) else None


NUMBER, DAY = re.compile(NUMBER_PATTERN), re.compile(DAY_PATTERN)
_READERS: dict[str, Callable[[Any], Any]] = {
    "integer": _number, "real": _number, "text": _text, "boolean": _truth, "date": _day, _UNIT: _person,
}  # fmt: skip


# ---- DuckDB in memory

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
