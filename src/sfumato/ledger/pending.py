"""A ledger that is made with its first charge: until then nothing is on disk, and no budget is settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from sfumato.accounting import Budget
from sfumato.ledger.chain import Row, unseal
from sfumato.ledger.creation import first_row, make, other_budget, refuse_second
from sfumato.ledger.store import Store


class PendingStore:
    """A store that reads as a new ledger of this budget, and is made when somebody is about to write.

    Whoever only looks leaves nothing behind. Another process may make the ledger meanwhile: it is then that
    one, if it has the same budget, and is refused if not.
    """

    def __init__(self, store: Store, budget: Budget, dataset: str | None, people: float | None = None) -> None:
        self.place, self.address, self.exported = store.place, store.address, store.exported
        self._store, self._budget, self._dataset = store, budget, dataset
        self._first = first_row(budget, dataset, people)
        self._made = False
        if dataset is not None:
            refuse_second(store, dataset)

    def create(self, rows: Sequence[Row]) -> bool:
        return self._store.create(rows)

    def check_room(self) -> None:
        self._store.check_room()

    def creating(self, dataset: str) -> AbstractContextManager[None]:
        return self._store.creating(dataset)

    def neighbours(self) -> Iterator[tuple[str, Row]]:
        return self._store.neighbours()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if not self._there():
            make(self._store, self._first, self._dataset)
            self._there()
        with self._store.transaction():
            yield

    def last(self) -> Row | None:
        return self._store.last() if self._there() else self._first

    def row(self, sequence: int) -> Row | None:
        if self._there():
            return self._store.row(sequence)
        return self._first if sequence == 0 else None

    def settlement(self, sequence: int) -> Row | None:
        return self._store.settlement(sequence) if self._there() else None

    def newest_about(self, sequence: int) -> Row | None:
        return self._store.newest_about(sequence) if self._there() else None

    def rows(self) -> Iterator[Row]:
        return self._store.rows() if self._there() else iter((self._first,))

    def append(self, row: Row) -> None:
        self._store.append(row)

    def close(self) -> None:
        self._store.close()

    def _there(self) -> bool:
        """Whether the ledger is made; one that somebody else made must be as this one would be."""
        if not self._made and self._store.last() is not None:
            row = self._store.row(0)
            assert row is not None  # a ledger has its first entry
            body = unseal(row).body
            if Budget(**body["budget"]) != self._budget or body.get("dataset") != self._dataset:
                raise other_budget(self.place, Budget(**body["budget"]), self._budget)
            self._made = True
        return self._made
