"""Entries in a PostgreSQL table: many machines share one budget."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from sfumato.errors import LedgerError, MissingExtra
from sfumato.ledger.chain import Row

if TYPE_CHECKING:
    import psycopg

PATIENCE = 60
"""Seconds to wait for another process's transaction."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sfumato_ledger (
    ledger text NOT NULL,
    sequence bigint NOT NULL,
    digest bytea NOT NULL,
    text bytea NOT NULL,
    settles bigint,
    about bigint,
    PRIMARY KEY (ledger, sequence),
    UNIQUE (ledger, settles)
);
CREATE INDEX sfumato_ledger_about ON sfumato_ledger (ledger, about, sequence) WHERE about IS NOT NULL;
CREATE OR REPLACE FUNCTION sfumato_ledger_stays() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'ledger entries are never changed or deleted'; END $$;
CREATE OR REPLACE TRIGGER sfumato_ledger_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON sfumato_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION sfumato_ledger_stays();
"""
_NEWER = """
ALTER TABLE sfumato_ledger ADD COLUMN about bigint;
CREATE INDEX sfumato_ledger_about ON sfumato_ledger (ledger, about, sequence) WHERE about IS NOT NULL;
"""
_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass('sfumato_ledger') AND attnum > 0 AND NOT attisdropped
"""


class PostgresStore:
    """Rows of one ledger in a shared table; an advisory lock per ledger lets one writer in at a time.

    `postgresql://host/database?ledger=NAME` tells several ledgers of a database apart; without a name it is
    `default`. A commit waits for the disk whatever the server's default.
    """

    exported = False

    def __init__(self, url: str) -> None:
        self._url, self._ledger = _split(url)
        self.place = f"{_without_password(self._url)} (ledger {self._ledger!r})"
        self.address = self.place
        self._key = _lock_key("sfumato ", self._ledger)
        self._known: frozenset[str] = frozenset()
        self._inside = False
        self._process = -1
        self._inherited: list[Any] = []
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.RLock()

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
        with self._alone(_lock_key("sfumato data set ", dataset)):
            yield

    def neighbours(self) -> Iterator[tuple[str, Row]]:
        query = "SELECT ledger, sequence, digest, text, settles FROM sfumato_ledger WHERE sequence = 0"
        with _explained(self.place):
            found = self._execute(query).fetchall() if self._columns() else []
        return ((f"ledger {name!r}", Row(*row)) for name, *row in found if name != self._ledger)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._alone(self._key):
            yield

    @contextmanager
    def _alone(self, key: int) -> Iterator[None]:
        """A transaction under one advisory lock; one inside another keeps the locks of both to the end."""
        with _explained(self.place):
            connection = self._connect()
            if "about" not in self._columns():
                self._prepare(connection)
        with self._lock, _explained(self.place), connection.transaction():
            self._execute("SET LOCAL synchronous_commit = on")
            self._execute("SELECT pg_advisory_xact_lock(%s)", key)
            outer, self._inside = self._inside, True
            try:
                yield
            finally:
                self._inside = outer

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """The table, with what an older version did not make, whatever becomes of the entry to be written."""
        with self._lock, connection.transaction():
            # One lock for all ledgers: the table is shared, and two makers of it would collide.
            self._execute("SELECT pg_advisory_xact_lock(0)")
            known = {name for (name,) in self._execute(_COLUMNS).fetchall()}
            if "about" not in known:
                self._execute(_NEWER if known else _SCHEMA)

    def last(self) -> Row | None:
        if not self._columns():
            return None
        return self._one("ORDER BY sequence DESC LIMIT 1")

    def row(self, sequence: int) -> Row | None:
        return self._one("AND sequence = %s", sequence)

    def settlement(self, sequence: int) -> Row | None:
        return self._one("AND settles = %s", sequence)

    def newest_about(self, sequence: int) -> Row | None:
        if "about" not in self._columns():
            return None
        return self._one("AND about = %s ORDER BY sequence DESC LIMIT 1", sequence)

    def rows(self) -> Iterator[Row]:
        return map(Row._make, self._select("ORDER BY sequence").fetchall())

    def append(self, row: Row) -> None:
        with _explained(self.place):
            self._execute("INSERT INTO sfumato_ledger VALUES (%s, %s, %s, %s, %s, %s)", self._ledger, *row)

    def close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection = None

    def _columns(self) -> frozenset[str]:
        """Asked beforehand, as a failed statement would end an enclosing transaction."""
        if "about" not in self._known:
            with _explained(self.place):
                self._known = frozenset(name for (name,) in self._execute(_COLUMNS).fetchall())
        return self._known

    def _one(self, condition: str, *values: Any) -> Row | None:
        found = self._select(condition, *values).fetchone()
        return None if found is None else Row._make(found)

    def _select(self, condition: str, *values: Any) -> psycopg.Cursor[Any]:
        about = "about" if "about" in self._columns() else "NULL"
        query = f"SELECT sequence, digest, text, settles, {about} FROM sfumato_ledger WHERE ledger = %s "
        with _explained(self.place):
            return self._execute(query + condition, self._ledger, *values)

    def _execute(self, query: str, *values: Any) -> psycopg.Cursor[Any]:
        connection = self._connect()
        with self._lock:
            return connection.execute(query.encode(), values or None)

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is not None and self._process == os.getpid():
            # A lost connection is made anew, but not within a transaction, whose lock went with it.
            if self._inside or not self._connection.closed:
                return self._connection
        elif self._connection is not None:
            # Forked: closing the parent's connection here would end its session on the server.
            self._inherited.append(self._connection)
            self._lock = threading.RLock()
        options = f"-c lock_timeout={PATIENCE}s -c default_transaction_isolation=read\\ committed"
        self._connection = _driver().connect(self._url, autocommit=True, options=options)
        self._process = os.getpid()
        return self._connection


def _lock_key(kind: str, name: str) -> int:
    return int.from_bytes(hashlib.sha256((kind + name).encode()).digest()[:8], signed=True)


def _split(url: str) -> tuple[str, str]:
    """The server's URL without our own parameter, and the ledger's name."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    name = dict(query).get("ledger", "default")
    rest = urlencode([(key, value) for key, value in query if key != "ledger"])
    return urlunsplit(parts._replace(query=rest)), name


def _without_password(url: str) -> str:
    """
    >>> _without_password("postgresql://ann:secret@db/people")
    'postgresql://ann@db/people'
    """
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=credentials.partition(":")[0] + at + host, query=""))


def _driver() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtra(package="psycopg", extra="postgres") from error
    return psycopg


@contextmanager
def _explained(place: str) -> Iterator[None]:
    """The server's errors as ours, with the remedy."""
    psycopg = _driver()
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise LedgerError(f"the ledger {place} was kept busy by others for {PATIENCE} s; try again") from error
    except psycopg.Error as error:
        raise LedgerError(f"the ledger {place} cannot be used: {error}") from error
