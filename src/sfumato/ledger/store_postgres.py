"""Entries in a PostgreSQL table: many machines share one budget."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
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
    PRIMARY KEY (ledger, sequence),
    UNIQUE (ledger, settles)
);
CREATE OR REPLACE FUNCTION sfumato_ledger_stays() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'ledger entries are never changed or deleted'; END $$;
CREATE OR REPLACE TRIGGER sfumato_ledger_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON sfumato_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION sfumato_ledger_stays();
"""
_SELECT = "SELECT sequence, digest, text, settles FROM sfumato_ledger WHERE ledger = %s "


class PostgresStore:
    """Rows of one ledger in a shared table; an advisory lock per ledger lets one writer in at a time.

    `postgresql://host/database?ledger=NAME` tells several ledgers of a database apart; without a name it is
    `default`. A commit waits for the disk whatever the server's default.
    """

    def __init__(self, url: str) -> None:
        self._url, self._ledger = _split(url)
        self.place = f"{_without_password(self._url)} (ledger {self._ledger!r})"
        self._key = int.from_bytes(
            hashlib.sha256(b"sfumato " + self._ledger.encode()).digest()[:8], signed=True
        )
        self._made = False
        self._inside = False
        self._process = -1
        self._inherited: list[Any] = []
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.RLock()

    def prepare(self) -> None:
        with self.transaction():
            # One lock for all ledgers: the table is shared, and two makers of it would collide.
            self._execute("SELECT pg_advisory_xact_lock(0)")
            if not self._has_table():
                self._execute(_SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _explained(self.place):
            connection = self._connect()
        with self._lock, _explained(self.place), connection.transaction():
            self._execute("SET LOCAL synchronous_commit = on")
            self._execute("SELECT pg_advisory_xact_lock(%s)", self._key)
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def last(self) -> Row | None:
        if not self._has_table():
            return None
        return self._one(_SELECT + "ORDER BY sequence DESC LIMIT 1", self._ledger)

    def row(self, sequence: int) -> Row | None:
        return self._one(_SELECT + "AND sequence = %s", self._ledger, sequence)

    def settlement(self, sequence: int) -> Row | None:
        return self._one(_SELECT + "AND settles = %s", self._ledger, sequence)

    def rows(self) -> Iterator[Row]:
        with _explained(self.place):
            found = self._execute(_SELECT + "ORDER BY sequence", self._ledger).fetchall()
        return map(Row._make, found)

    def append(self, row: Row) -> None:
        with _explained(self.place):
            self._execute("INSERT INTO sfumato_ledger VALUES (%s, %s, %s, %s, %s)", self._ledger, *row)

    def close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection = None

    def _has_table(self) -> bool:
        """Asked beforehand, as a failed statement would end an enclosing transaction."""
        if not self._made:
            with _explained(self.place):
                found = self._execute("SELECT to_regclass('sfumato_ledger')").fetchone()
            self._made = found is not None and found[0] is not None
        return self._made

    def _one(self, query: str, *values: Any) -> Row | None:
        with _explained(self.place):
            found = self._execute(query, *values).fetchone()
        return None if found is None else Row._make(found)

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
