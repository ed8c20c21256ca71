"""Where entries are kept: what every store can do, and which store a place names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from sfumato.ledger.chain import Row
from sfumato.ledger.store_export import ExportStore, is_export


class Store(Protocol):
    """Rows that are only ever appended, by one writer at a time, durably.

    A store that was opened in a process and is used in a forked child connects anew there.
    """

    place: str
    address: str
    """The place, told so that it is the same from every working folder."""
    exported: bool
    """Whether it is a file for readers, which nothing can be charged to."""

    def create(self, rows: Sequence[Row]) -> bool:
        """Make a ledger of these rows, whole or not at all; False if there is one already."""

    def check_room(self) -> None:
        """Raise what `create` would raise if nothing can be written here."""

    def creating(self, dataset: str) -> AbstractContextManager[None]:
        """Alone among all processes that create a ledger for this data set in the same folder or data base.

        Neighbours that are seen inside stay all there are for it. A process that dies lets the next one in.
        """

    def neighbours(self) -> Iterator[tuple[str, Row]]:
        """The other ledgers in the same folder or data base: where, and the first row."""

    def transaction(self) -> AbstractContextManager[None]:
        """Alone among all processes: rows read inside stay the latest, rows appended are durable at the end."""

    def last(self) -> Row | None:
        """The newest row; None where there is no ledger, and an error where there is something else."""

    def row(self, sequence: int) -> Row | None: ...

    def settlement(self, sequence: int) -> Row | None:
        """The row that settles the row `sequence`."""

    def newest_about(self, sequence: int) -> Row | None:
        """The newest row about the reservation in row `sequence`."""

    def rows(self) -> Iterator[Row]:
        """All rows in order, as of one moment."""

    def append(self, row: Row) -> None:
        """Add one row; only inside a transaction."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class StoreKind:
    """A kind of store: how its places begin, and what opens one. Its module is imported when it is needed."""

    name: str
    prefixes: tuple[str, ...]
    open: Callable[[str], Store]


def _postgres(place: str) -> Store:
    from sfumato.ledger.store_postgres import PostgresStore

    return PostgresStore(place)


def _sqlite(place: str) -> Store:
    from sfumato.ledger.store_sqlite import SqliteStore

    return SqliteStore(place)


STORES: tuple[StoreKind, ...] = (
    StoreKind(name="postgres", prefixes=("postgresql://", "postgres://"), open=_postgres),
    StoreKind(name="sqlite", prefixes=("",), open=_sqlite),  # last: a path may begin with anything
)
"""Every store; the conformance tests run on each of them."""


def store_at(place: str | os.PathLike[str]) -> Store:
    """The store of the first kind whose prefix the place has: PostgreSQL by its address, else SQLite.

    A file in JSON is an export of a ledger, which can be read.
    """
    text = os.fspath(place)
    if is_export(text):
        return ExportStore(text)
    return next(kind for kind in STORES if text.startswith(kind.prefixes)).open(text)
