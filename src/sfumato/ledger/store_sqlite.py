"""Entries in a SQLite file: no server, many processes of one machine."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sfumato.errors import LedgerError, LedgerTampered
from sfumato.ledger.chain import Row
from sfumato.ledger.store import Column, ConnectedStore
from sfumato.storage import sync_folder

PATIENCE = 60.0
"""Seconds to wait for another process's transaction."""

_SCHEMA = (
    """CREATE TABLE entries (
        sequence INTEGER PRIMARY KEY,
        digest BLOB NOT NULL,
        text BLOB NOT NULL,
        settles INTEGER UNIQUE,
        about INTEGER
    ) STRICT""",
    """CREATE TRIGGER entries_stay BEFORE UPDATE ON entries
        BEGIN SELECT RAISE(ABORT, 'ledger entries are never changed'); END""",
    """CREATE TRIGGER entries_remain BEFORE DELETE ON entries
        BEGIN SELECT RAISE(ABORT, 'ledger entries are never deleted'); END""",
    "CREATE INDEX entries_about ON entries (about, sequence) WHERE about IS NOT NULL",
)
_MAGIC = b"SQLite format 3\0"
_INSERT = "INSERT INTO entries (sequence, digest, text, settles, about) VALUES (?, ?, ?, ?, ?)"


class SqliteStore(ConnectedStore[sqlite3.Connection]):
    """One file, which alone is the ledger; a commit is on disk when it returns; one writer at a time.

    A rollback journal, and not a write-ahead log, in which the newest entries would be for a while: a copy of
    the file is then a ledger of that moment, and never an empty one. A new ledger is written under another name
    and gets its own when it is whole, so that a file without entries is always a broken one, and is refused.
    `synchronous=EXTRA` waits for the folder too, from which a commit removes the journal.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.place = path
        self.address = str(Path(path).absolute())
        self._checked = False

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
                _as_soon_as_free(lambda: fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
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
            with _explained(self.place):
                connection.execute("PRAGMA busy_timeout = 0")
                try:
                    _as_soon_as_free(lambda: connection.execute("BEGIN IMMEDIATE"))
                finally:
                    connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")
            try:
                yield
                with _explained(self.place):
                    connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def last(self) -> Row | None:
        if not os.path.lexists(self.place):
            return None
        found = self._select("ORDER BY sequence DESC LIMIT 1") if self._whole() else []
        if not found:
            raise LedgerError(
                f"expected a ledger at {self.place}, got a file without entries, such as an incomplete copy; "
                "restore the newest copy, or remove the file if nothing was ever charged there"
            )
        return found[0]

    def _whole(self) -> bool:
        """Check once for each connection that there are entries, as many as the file states.

        The count is in the file's first page and the newest entry in a later one. In a copy that was taken in
        the middle of a commit they disagree.
        """
        with self._lock, _explained(self.place):
            connection = self._connect()
            if not self._checked:
                with _one_moment(connection):
                    if not connection.execute("PRAGMA table_info(entries)").fetchall():
                        return False
                    found = connection.execute("SELECT max(sequence) + 1 FROM entries").fetchone()[0]
                    ((stated,),) = connection.execute("PRAGMA user_version").fetchall()
                if found is not None and stated != found:
                    raise LedgerTampered(
                        f"expected {stated} entries in {self.place}, got {found}: it was cut off, or copied in "
                        "the middle of a commit; copy it again"
                    )
                self._checked = True
        return True

    def find(self, column: Column, value: int) -> Row | None:
        found = self._select(f"WHERE {column} = ? ORDER BY sequence DESC LIMIT 1", value)
        return found[0] if found else None

    def rows(self) -> Iterator[Row]:
        return iter(self._select("ORDER BY sequence"))

    def append(self, row: Row) -> None:
        with _explained(self.place):
            connection = self._connect()
            connection.execute(_INSERT, row)
            _count(connection, row)

    def _select(self, condition: str, *values: int) -> list[Row]:
        with self._lock, _explained(self.place):
            query = f"SELECT sequence, digest, text, settles, about FROM entries {condition}"
            return [Row._make(row) for row in self._connect().execute(query, values)]

    def _open(self) -> sqlite3.Connection:
        uri = f"{Path(self.place).absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = EXTRA")
        self._checked = False
        return connection


def _write_new(path: Path, rows: Sequence[Row]) -> None:
    """Write a ledger file of these rows, durable on return."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN")
        for statement in _SCHEMA:
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
    """Read the first row of another ledger's file; None if it is no ledger.

    The row never changes. Behind a lock or the journal of a crash it is read as it lies in the file.
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


def _as_soon_as_free(attempt: Callable[[], object]) -> None:
    """Repeat an attempt until the lock is free. SQLite's own waiting backs off, and starves some writers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            attempt()
            return
        except (BlockingIOError, sqlite3.OperationalError) as error:
            locked = isinstance(error, BlockingIOError) or "locked" in str(error)
            if not locked or time.monotonic() > deadline:
                raise
        time.sleep(0.003)


def _count(connection: sqlite3.Connection, newest: Row) -> None:
    connection.execute(f"PRAGMA user_version = {newest.sequence + 1}")


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Read one state of the file inside."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


@contextmanager
def _explained(place: str) -> Iterator[None]:
    """Turn errors of SQLite into ours, with the remedy."""
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
    except BlockingIOError as error:
        raise LedgerError(
            f"the folder of {place} was kept locked by another process for {PATIENCE:g} s; try again"
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
