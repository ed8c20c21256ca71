"""Where entries are kept: the operations of every store, and the choice of a store by its place."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

from sfumato.errors import InvalidInput, LedgerError, LedgerTampered
from sfumato.ledger.chain import Row, canonical
from sfumato.ledger.documents import EXPORT, is_one, refuse_others
from sfumato.schema import parse_json

Column = Literal["sequence", "settles", "about"]


class Store(ABC):
    """Rows that are only ever appended, by one writer at a time, durably.

    Attributes:
        place: The place as it was given, without a password.
        address: The place as it is found from every working folder.
        exported: Whether it is an export of a ledger, which can only be read.
    """

    place: str
    address: str
    exported = False

    @abstractmethod
    def create(self, rows: Sequence[Row]) -> bool:
        """Make a ledger of these rows, whole or not at all; return False if there is one already."""

    @abstractmethod
    def check_room(self) -> None:
        """Raise the error of `create` if nothing can be written here."""

    @abstractmethod
    def creating(self, dataset: str) -> AbstractContextManager[None]:
        """Lock out all processes that create a ledger for this data set in the same folder or database.

        Neighbours read inside stay complete. A process that dies releases the lock.
        """

    @abstractmethod
    def neighbours(self) -> Iterator[tuple[str, Row]]:
        """Yield the other ledgers in the same folder or database: the place and the first row."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Lock out all other writers: rows read stay the latest, rows appended are durable at the end."""

    @abstractmethod
    def last(self) -> Row | None:
        """Return the newest row; None where there is no ledger, and an error where there is another file."""

    @abstractmethod
    def find(self, column: Column, value: int) -> Row | None:
        """Return the newest row with this value in a column."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Return all rows in order, as of one moment."""

    @abstractmethod
    def append(self, row: Row) -> None:
        """Add one row; only inside a transaction."""

    @abstractmethod
    def close(self) -> None: ...


class _Closable(Protocol):
    def close(self) -> None: ...


_C = TypeVar("_C", bound=_Closable)


class ConnectedStore(Store, Generic[_C]):
    """A store behind a connection, which threads share, and which a forked child opens anew."""

    def __init__(self) -> None:
        self._process = -1
        self._inherited: list[_C] = []
        self._connection: _C | None = None
        self._lock = threading.RLock()

    @abstractmethod
    def _open(self) -> _C:
        """Open a new connection."""

    def _usable(self, connection: _C) -> bool:
        return True

    def _connect(self) -> _C:
        if self._connection is not None and self._process == os.getpid():
            if self._usable(self._connection):
                return self._connection
        elif self._connection is not None:
            # Forked: the parent's connection is neither used nor closed here. Closing would drop its locks, or
            # end its session on a server.
            self._inherited.append(self._connection)
            self._lock = threading.RLock()
        self._connection = self._open()
        self._process = os.getpid()
        return self._connection

    def close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection = None


class ExportStore(Store):
    """The rows of a file that `ledger export` wrote. Later charges are not in it."""

    exported = True

    def __init__(self, path: str) -> None:
        self.place = path
        self.address = str(Path(path).absolute())
        self._rows = _read_export(path)

    def _refuse(self, *_: object) -> NoReturn:
        raise LedgerError(
            f"expected a ledger that can be written, got {self.place}, an export of one; use the ledger itself"
        )

    create = check_room = creating = transaction = append = _refuse  # type: ignore[assignment]

    def neighbours(self) -> Iterator[tuple[str, Row]]:
        return iter(())

    def last(self) -> Row:
        return self._rows[-1]

    def find(self, column: Column, value: int) -> Row | None:
        return next((row for row in reversed(self._rows) if getattr(row, column) == value), None)

    def rows(self) -> Iterator[Row]:
        return iter(self._rows)

    def close(self) -> None:
        pass


def _is_export(place: str) -> bool:
    """Return whether a file holds JSON, as no other ledger does."""
    try:
        with Path(place).open("rb") as file:
            return file.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


def _read_export(path: str) -> list[Row]:
    try:
        data = parse_json(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise LedgerTampered(f"expected {path} to be a ledger or an export of one, got neither") from error
    if not isinstance(data, dict) or not is_one(data, EXPORT):
        try:
            refuse_others(data if isinstance(data, dict) else {}, EXPORT)
        except InvalidInput as error:
            raise LedgerError(f"{path}: {error}") from error
        raise LedgerError(f"expected {path} to be a ledger or an export of one, got another JSON file")
    entries = data["entries"]
    if not isinstance(entries, list) or not entries:
        raise LedgerTampered(f"expected {path} to hold the entries of a ledger, got none")
    rows = [_exported_row(entry, number) for number, entry in enumerate(entries)]
    if data["head"] != {"sequence": rows[-1].sequence, "hash": rows[-1].digest.hex()}:
        raise LedgerTampered(
            f"the last entry of {path} is not the head that it names: it was cut off or changed"
        )
    return rows


def _exported_row(entry: Any, number: int) -> Row:
    """Return the row that an entry was exported from; its hash shows whether it is the same."""
    try:
        body: Mapping[str, Any] = {name: value for name, value in entry.items() if name != "hash"}
        numbers = body["sequence"], body.get("settles"), body.get("about")
        if type(numbers[0]) is not int or not {type(value) for value in numbers[1:]} <= {int, type(None)}:
            raise TypeError
        return Row(numbers[0], bytes.fromhex(entry["hash"]), canonical(body), numbers[1], numbers[2])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerTampered(f"entry {number} of the export is not written as a ledger writes") from error


def _postgres(place: str) -> Store:
    from sfumato.ledger.store_postgres import PostgresStore

    return PostgresStore(place)


def _sqlite(place: str) -> Store:
    from sfumato.ledger.store_sqlite import SqliteStore

    return SqliteStore(place)


STORES: Mapping[str, Callable[[str], Store]] = {"sqlite": _sqlite, "postgres": _postgres}
"""Every store; the conformance tests run on each of them."""


def store_at(place: str | os.PathLike[str]) -> Store:
    """Return PostgreSQL's store for its addresses, an export for a file in JSON, else a file of SQLite."""
    text = os.fspath(place)
    if _is_export(text):
        return ExportStore(text)
    return STORES["postgres" if text.startswith(("postgresql://", "postgres://")) else "sqlite"](text)
