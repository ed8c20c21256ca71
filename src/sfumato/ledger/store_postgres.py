"""Entries in a PostgreSQL table: many machines share one budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from sfumato.errors import DataUnavailable, InvalidInput, LedgerError
from sfumato.ledger.chain import Row
from sfumato.ledger.store import Column, ConnectedStore
from sfumato.postgres import PINNED, check_own, connect, driver, found_in, without_parameters

if TYPE_CHECKING:
    import psycopg

_CHOOSE = "add schema=NAME to the ledger's address"

_SCHEMA = """
CREATE TABLE {schema}.sfumato_ledger (
    ledger text NOT NULL,
    sequence bigint NOT NULL,
    digest bytea NOT NULL,
    text bytea NOT NULL,
    settles bigint,
    about bigint,
    PRIMARY KEY (ledger, sequence),
    UNIQUE (ledger, settles)
);
CREATE INDEX sfumato_ledger_about ON {schema}.sfumato_ledger (ledger, about, sequence) WHERE about IS NOT NULL;
CREATE OR REPLACE FUNCTION {schema}.sfumato_ledger_stays() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'ledger entries are never changed or deleted'; END $$;
CREATE TRIGGER sfumato_ledger_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.sfumato_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.sfumato_ledger_stays();
"""
# Neither waits for a foreign key of others, which locks a row FOR KEY SHARE. Inserting no row takes the lock of
# the table that the INSERT afterwards takes: before the row's, so that the two orders cannot block each other.
_EVERY = "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"
_ONE = """
WITH nothing AS (INSERT INTO {table} SELECT * FROM {table} WHERE false)
SELECT 1 FROM {table} WHERE ledger = %s AND sequence = 0 FOR NO KEY UPDATE
"""
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_EXPECTED = [
    ("ledger", "text"), ("sequence", "bigint"), ("digest", "bytea"), ("text", "bytea"), ("settles", "bigint"),
    ("about", "bigint"),
]  # fmt: skip


class PostgresStore(ConnectedStore["psycopg.Connection[Any]"]):
    """Rows of one ledger in a shared table; a lock of its first row lets one writer in at a time.

    This lock, and that of the whole table while there is no first row, takes the privilege to update the table:
    a role that may only read it, or refer to it by rows of its own, holds no writer up.

    `postgresql://host/database?ledger=NAME` tells several ledgers of a database apart; without a name it is
    `default`. `schema=NAME` says where the table is; without it, the one schema of the database that has it, or
    else `public`. A commit waits for the disk, also where the server's default does not.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, own = without_parameters(url, "ledger", "schema")
        self._ledger, self._schema = own.get("ledger", "default"), own.get("schema")
        self._table = "pg_catalog.sfumato_ledger"  # nothing, until the table is found
        self.place = f"{_without_password(self._url)} (ledger {self._ledger!r})"
        self.address = self.place
        self._found_table = False
        self._inside = False

    def create(self, rows: Sequence[Row]) -> bool:
        with self.transaction():
            if self.last() is not None:
                return False
            for row in rows:
                self.append(row)
            return True

    def check_room(self) -> None:
        with self.transaction():
            pass

    @contextmanager
    def creating(self, dataset: str) -> Iterator[None]:
        with self._alone(_EVERY):
            yield

    def neighbours(self) -> Iterator[tuple[str, Row]]:
        query = "SELECT ledger, sequence, digest, text, settles FROM {table} WHERE sequence = 0"
        with _explained(self.place):
            found = self._execute(query).fetchall() if self._there() else []
        return ((f"ledger {name!r}", Row(*row)) for name, *row in found if name != self._ledger)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._alone(_EVERY) if self.last() is None else self._alone(_ONE, self._ledger):
            yield

    @contextmanager
    def _alone(self, lock: str, *values: str) -> Iterator[None]:
        """A transaction that begins with a lock; one inside another keeps the locks of both to the end."""
        with _explained(self.place):
            connection = self._connect()
            if not self._there():
                try:
                    self._make_table(connection)
                except driver().Error:
                    if not self._there():  # nor has another process made it meanwhile
                        raise
        with self._lock, _explained(self.place), connection.transaction():
            self._execute("SET LOCAL synchronous_commit = on")
            self._execute(lock, *values)
            outer, self._inside = self._inside, True
            try:
                yield
            finally:
                self._inside = outer

    def _make_table(self, connection: psycopg.Connection[Any]) -> None:
        """Make the table, which stays whether or not an entry is written."""
        with self._lock, connection.transaction():
            connection.execute(_SCHEMA.format(schema=_quoted(self._schema or "public")).encode())
            self._look_for_table(connection)

    def last(self) -> Row | None:
        return self._one("ORDER BY sequence DESC LIMIT 1") if self._there() else None

    def find(self, column: Column, value: int) -> Row | None:
        return self._one(f"AND {column} = %s ORDER BY sequence DESC LIMIT 1", value)

    def rows(self) -> Iterator[Row]:
        return map(Row._make, self._select("ORDER BY sequence").fetchall())

    def append(self, row: Row) -> None:
        with _explained(self.place):
            self._execute("INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s)", self._ledger, *row)

    def _there(self) -> bool:
        """Return whether there is a table. A failed statement instead would end an enclosing transaction."""
        if not self._found_table:
            with _explained(self.place):
                self._look_for_table(self._connect())
        return self._found_table

    def _look_for_table(self, connection: psycopg.Connection[Any]) -> None:
        """Find the table; one that another role has changed is refused."""
        try:
            with self._lock:
                found = found_in(connection, ["sfumato_ledger"], self._schema, _CHOOSE)
                if found is None:
                    return
                schema, (table,) = found
                check_own(connection, table, f"{schema}.sfumato_ledger", ["sfumato_ledger_stays"])
                columns = connection.execute(_COLUMNS, [table]).fetchall()
        except InvalidInput as error:
            raise LedgerError(f"the ledger {self.place} cannot be used: {error}") from error
        if columns != _EXPECTED:
            raise LedgerError(f"expected the columns of a ledger in {schema}.sfumato_ledger, got others")
        self._table = f"{_quoted(schema)}.sfumato_ledger"
        self._found_table = True

    def _one(self, condition: str, *values: Any) -> Row | None:
        found = self._select(condition, *values).fetchone()
        return None if found is None else Row._make(found)

    def _select(self, condition: str, *values: Any) -> psycopg.Cursor[Any]:
        query = "SELECT sequence, digest, text, settles, about FROM {table} WHERE ledger = %s "
        with _explained(self.place):
            self._there()
            return self._execute(query + condition, self._ledger, *values)

    def _execute(self, query: str, *values: Any) -> psycopg.Cursor[Any]:
        connection = self._connect()
        table = self._table.replace("%", "%%") if values else self._table
        with self._lock:
            return connection.execute(query.replace("{table}", table).encode(), values or None)

    def _usable(self, connection: psycopg.Connection[Any]) -> bool:
        """Return a lost connection is made anew, but not within a transaction, whose lock went with it."""
        return self._inside or not connection.closed

    def _open(self) -> psycopg.Connection[Any]:
        self._found_table = False  # looked for again, as the table may have been changed meanwhile
        try:
            return connect(self._url)
        except DataUnavailable as error:
            raise LedgerError(f"the ledger {self.place} cannot be used: {error}") from error


def _without_password(url: str) -> str:
    """
    >>> _without_password("postgresql://ann:secret@db/people")
    'postgresql://ann@db/people'
    """
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=credentials.partition(":")[0] + at + host, query=""))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _explained(place: str) -> Iterator[None]:
    """Turn errors of the server into ours, with the remedy."""
    psycopg = driver()
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise LedgerError(
            f"the ledger {place} was kept busy by others for lock_timeout={PINNED['lock_timeout']}; try again"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise LedgerError(
            f"the ledger {place} cannot be used: {error}; a role that charges needs SELECT, INSERT and UPDATE "
            "on its table, whose trigger refuses every update, and one that makes it, CREATE on the schema "
            "that schema=NAME names"
        ) from error
    except psycopg.Error as error:
        raise LedgerError(f"the ledger {place} cannot be used: {error}") from error
