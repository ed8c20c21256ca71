"""Entries in a SQLite file: no server, many processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sfumato.errors import LedgerError, LedgerTampered
from sfumato.ledger.chain import Row

PATIENCE = 60.0
"""Seconds to wait for another process's transaction."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    sequence INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    text BLOB NOT NULL,
    settles INTEGER UNIQUE
) STRICT;
CREATE TRIGGER IF NOT EXISTS entries_stay BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'ledger entries are never changed'); END;
CREATE TRIGGER IF NOT EXISTS entries_remain BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'ledger entries are never deleted'); END;
"""
_COLUMNS = "sequence, digest, text, settles"


class SqliteStore:
    """WAL, `synchronous=FULL`: a commit is on disk when it returns; `BEGIN IMMEDIATE`: one writer at a time."""

    def __init__(self, path: str) -> None:
        self.place = path
        self._process = -1
        self._inherited: list[sqlite3.Connection] = []
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def prepare(self) -> None:
        with _explained(self.place):
            connection = self._connect(create=True)
            _patiently(connection, "PRAGMA journal_mode = WAL")
        with self.transaction():
            for statement in _statements(_SCHEMA):
                connection.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _explained(self.place):
            connection = self._connect()
        with self._lock:
            with _explained(self.place):
                _patiently(connection, "BEGIN IMMEDIATE")
            try:
                yield
                with _explained(self.place):
                    connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def last(self) -> Row | None:
        if not Path(self.place).exists():
            return None
        try:
            return self._one("ORDER BY sequence DESC LIMIT 1")
        except LedgerError as error:
            if "no such table" in str(error):  # the file was made and its maker died
                return None
            raise

    def row(self, sequence: int) -> Row | None:
        return self._one("WHERE sequence = ?", sequence)

    def settlement(self, sequence: int) -> Row | None:
        return self._one("WHERE settles = ?", sequence)

    def rows(self) -> Iterator[Row]:
        with self._lock, _explained(self.place):
            found = self._connect().execute(f"SELECT {_COLUMNS} FROM entries ORDER BY sequence").fetchall()
        return map(Row._make, found)

    def append(self, row: Row) -> None:
        with _explained(self.place):
            self._connect().execute(f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?)", row)

    def close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection = None

    def _one(self, condition: str, *values: Any) -> Row | None:
        with self._lock, _explained(self.place):
            found = self._connect().execute(f"SELECT {_COLUMNS} FROM entries {condition}", values).fetchone()
        return None if found is None else Row._make(found)

    def _connect(self, *, create: bool = False) -> sqlite3.Connection:
        if self._connection is not None and self._process == os.getpid():
            return self._connection
        if self._connection is not None:
            # Forked: the parent's connection is neither used nor closed here; closing could end its WAL.
            self._inherited.append(self._connection)
            self._lock = threading.RLock()
        mode = "rwc" if create else "rw"
        uri = f"{Path(self.place).absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = FULL")
        self._connection, self._process = connection, os.getpid()
        return connection


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Execute as soon as other processes let us.

    SQLite's own waiting backs off to a tenth of a second, which starves some of many writers, and does not
    cover the switch to WAL.
    """
    deadline = time.monotonic() + PATIENCE
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while not _executed(connection, statement, give_up=time.monotonic() > deadline):
            time.sleep(0.003)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")


def _executed(connection: sqlite3.Connection, statement: str, *, give_up: bool) -> bool:
    try:
        connection.execute(statement)
        return True
    except sqlite3.OperationalError as error:
        if give_up or "locked" not in str(error):
            raise
        return False


def _statements(script: str) -> Iterator[str]:
    """`executescript` would commit, so the statements go one by one."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextmanager
def _explained(place: str) -> Iterator[None]:
    """SQLite's errors as ours, with the remedy."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise LedgerError(
                f"the ledger {place} was kept busy by another process for {PATIENCE:g} s; try again"
            ) from error
        raise LedgerError(
            f"the ledger {place} cannot be used: {error}; choose a place in a folder that exists, can be "
            "written and has room"
        ) from error
    except sqlite3.IntegrityError as error:
        raise LedgerError(f"the ledger {place} refused an entry: {error}") from error
    except sqlite3.DatabaseError as error:
        raise LedgerTampered(f"{place} is damaged or is not a ledger: {error}") from error
