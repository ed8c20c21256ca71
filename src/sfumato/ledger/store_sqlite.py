"""Entries in a SQLite file: no server, many processes of one machine."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sfumato.errors import LedgerError, LedgerTampered
from sfumato.ledger.chain import Row
from sfumato.storage import sync_folder

PATIENCE = 60.0
"""Seconds to wait for another process's transaction."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    sequence INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    text BLOB NOT NULL,
    settles INTEGER UNIQUE,
    about INTEGER
) STRICT;
CREATE TRIGGER IF NOT EXISTS entries_stay BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'ledger entries are never changed'); END;
CREATE TRIGGER IF NOT EXISTS entries_remain BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'ledger entries are never deleted'); END;
"""
_MAGIC = b"SQLite format 3\0"
_INDEX = "CREATE INDEX IF NOT EXISTS entries_about ON entries (about, sequence) WHERE about IS NOT NULL"
_INSERT = "INSERT INTO entries (sequence, digest, text, settles, about) VALUES (?, ?, ?, ?, ?)"


class SqliteStore:
    """One file, which alone is the ledger; a commit is on disk when it returns; one writer at a time.

    A rollback journal, and not a write-ahead log, in which the newest entries would be for a while: a copy of
    the file is then a ledger of that moment, and never an empty one. A new ledger is written under another name
    and gets its own when it is whole, so that a file without entries is always a broken one, and is refused.
    `synchronous=EXTRA` waits for the folder too, from which a commit removes the journal.
    """

    exported = False

    def __init__(self, path: str) -> None:
        self.place = path
        self.address = str(Path(path).absolute())
        self._process = -1
        self._about = False  # whether the file has the column that older versions did not make
        self._checked = False
        self._counted = False  # whether the file states how many entries it has, as older ones do not
        self._inherited: list[sqlite3.Connection] = []
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def create(self, rows: Sequence[Row]) -> bool:
        target = Path(self.place).absolute()
        # In a folder of its own: no name in this one is taken for that of a ledger that is not one yet.
        staging = tempfile.TemporaryDirectory
        with (
            _explained(self.place),
            staging(dir=target.parent, prefix=".ledger-", ignore_cleanup_errors=True) as own,
        ):
            try:
                _write_new(Path(own) / "staged", rows)
                os.link(Path(own) / "staged", target)  # unlike a rename it never replaces a file
            except FileExistsError:
                return False
            sync_folder(target.parent)
        return True

    def check_room(self) -> None:
        with _explained(self.place), tempfile.TemporaryFile(dir=Path(self.address).parent):
            pass

    @contextmanager
    def creating(self, dataset: str) -> Iterator[None]:
        with _explained(self.place):
            folder = os.open(Path(self.address).parent, os.O_RDONLY)
        try:
            with _explained(self.place):
                _lock_folder(folder, self.place)
            try:
                yield
            finally:
                fcntl.flock(folder, fcntl.LOCK_UN)  # a child that was forked meanwhile has the folder open too
        finally:
            os.close(folder)

    def neighbours(self) -> Iterator[tuple[str, Row]]:
        target = Path(self.address)
        for path in sorted(target.parent.iterdir()) if target.parent.is_dir() else ():
            if path != target and _is_sqlite(path):
                row = _first_row(path)
                if row is not None:
                    yield str(path), row

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _explained(self.place):
            connection = self._connect()
        with self._lock:
            if not self._has_about(connection):
                self._upgrade(connection)
            with self._alone(connection):
                yield

    @contextmanager
    def _alone(self, connection: sqlite3.Connection) -> Iterator[None]:
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

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Add what a file of an older version lacks, whatever becomes of the entry that is to be written."""
        _leave_log(connection)
        with self._alone(connection):
            if "about" not in _columns(connection):
                connection.execute("ALTER TABLE entries ADD COLUMN about INTEGER")
                connection.execute(_INDEX)

    def last(self) -> Row | None:
        if not os.path.lexists(self.place):
            return None
        row = self._one("ORDER BY sequence DESC LIMIT 1") if self._whole() else None
        if row is None:
            raise LedgerError(
                f"expected a ledger at {self.place}, got a file without entries, such as an incomplete copy; "
                "restore the newest copy, or remove the file if nothing was ever charged there"
            )
        return row

    def _whole(self) -> bool:
        """Whether there are entries; looked at once for each connection, with the count of them.

        The count is in the file's first page and the newest entry in a later one. In a copy that was taken in
        the middle of a commit they disagree.
        """
        with self._lock, _explained(self.place):
            connection = self._connect()
            if not self._checked:
                with _one_moment(connection):
                    if not _columns(connection):
                        return False
                    found = connection.execute("SELECT max(sequence) + 1 FROM entries").fetchone()[0]
                    ((stated,),) = connection.execute("PRAGMA user_version").fetchall()
                self._counted = bool(stated)
                if found is not None and self._counted and stated != found:
                    raise LedgerTampered(
                        f"expected {stated} entries in {self.place}, got {found}: it was cut off, or copied in "
                        "the middle of a commit; copy it again"
                    )
                self._checked = True
        return True

    def row(self, sequence: int) -> Row | None:
        return self._one("WHERE sequence = ?", sequence)

    def settlement(self, sequence: int) -> Row | None:
        return self._one("WHERE settles = ?", sequence)

    def newest_about(self, sequence: int) -> Row | None:
        with self._lock, _explained(self.place):
            if not self._has_about(self._connect()):
                return None
        return self._one("WHERE about = ? ORDER BY sequence DESC LIMIT 1", sequence)

    def rows(self) -> Iterator[Row]:
        return map(Row._make, self._select("ORDER BY sequence"))

    def append(self, row: Row) -> None:
        with _explained(self.place):
            connection = self._connect()
            connection.execute(_INSERT, row)
            if self._counted:
                _count(connection, row)

    def close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection = None

    def _one(self, condition: str, *values: Any) -> Row | None:
        found = self._select(condition, *values)
        return Row._make(found[0]) if found else None

    def _select(self, condition: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, _explained(self.place):
            connection = self._connect()
            about = "about" if self._has_about(connection) else "NULL"
            query = f"SELECT sequence, digest, text, settles, {about} FROM entries {condition}"
            return connection.execute(query, values).fetchall()

    def _has_about(self, connection: sqlite3.Connection) -> bool:
        self._about = self._about or "about" in _columns(connection)
        return self._about

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._process == os.getpid():
            return self._connection
        if self._connection is not None:
            # Forked: the parent's connection is neither used nor closed here; closing would drop its locks.
            self._inherited.append(self._connection)
            self._lock = threading.RLock()
        uri = f"{Path(self.place).absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = EXTRA")
        self._connection, self._process, self._checked = connection, os.getpid(), False
        return connection


def _write_new(path: Path, rows: Sequence[Row]) -> None:
    """A ledger file of these rows, durable when it returns."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN")
        for statement in (*_statements(_SCHEMA), _INDEX):
            connection.execute(statement)
        connection.executemany(_INSERT, rows)
        _count(connection, rows[-1])
        connection.execute("COMMIT")


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _first_row(path: Path) -> Row | None:
    """The first row of another ledger's file; None if it is no ledger.

    It never changes. Where a lock or the journal of a crash is in the way, it is read as it lies in the file.
    """
    query = "SELECT sequence, digest, text, settles FROM entries WHERE sequence = 0"
    for how in ("mode=ro", "immutable=1"):
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=1)) as connection,
        ):
            found = connection.execute(query).fetchone()
            return None if found is None else Row(*found)
    return None


def _lock_folder(folder: int, place: str) -> None:
    """Lock an open folder, as soon as other processes let us; the lock ends with the process."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"the folder of {place} was kept locked by another process for {PATIENCE:g} s; try again"
                ) from error
        time.sleep(0.003)


def _count(connection: sqlite3.Connection, newest: Row) -> None:
    connection.execute(f"PRAGMA user_version = {newest.sequence + 1}")


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside is of one state of the file."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {name for _, name, *_ in connection.execute("PRAGMA table_info(entries)").fetchall()}


def _leave_log(connection: sqlite3.Connection) -> None:
    """Take a file of an older version out of write-ahead logging, unless another process has it open."""
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Execute as soon as other processes let us.

    SQLite's own waiting backs off to a tenth of a second, which starves some of many writers.
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
    except OSError as error:
        raise LedgerError(
            f"the ledger {place} cannot be made: {error.strerror}; choose a place in a folder that exists, can "
            "be written, and has hard links and locks"
        ) from error
    except sqlite3.IntegrityError as error:
        raise LedgerError(f"the ledger {place} refused an entry: {error}") from error
    except sqlite3.DatabaseError as error:
        raise LedgerTampered(f"{place} is damaged or is not a ledger: {error}") from error
