"""The entries of one ledger: the newest with its sums at hand, and one writer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sfumato.accounting import Budget
from sfumato.errors import LedgerError, LedgerTampered
from sfumato.ledger.chain import Entry, Head, Row, linked, seal, unseal
from sfumato.ledger.creation import FINE_SINCE, READABLE, absent, now
from sfumato.ledger.exceeded import exceeded_by
from sfumato.ledger.faults import all_faults
from sfumato.ledger.state import State
from sfumato.ledger.store import Store


class Journal:
    """Entries in a store, read with what they add up to, and appended within `writing`.

    `spends` is called before an entry is written under which rows may be touched.
    """

    def __init__(self, store: Store, *, spends: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.spends = spends
        body = self.first.body
        if body.get("format") not in READABLE:
            raise LedgerError(f"{store.place} has a format this version cannot read; use a newer sfumato")
        self.budget = Budget(**body["budget"])
        self.fine = body["format"] >= FINE_SINCE
        self._newest: tuple[Row, Entry, State] | None = None  # as long as the store's newest row is this one

    # Reading

    @property
    def first(self) -> Entry:
        """The first entry. Read anew, as a ledger may be made by somebody else after it was opened here."""
        row = self.store.row(0)
        if row is None:
            raise absent(self.store.place)
        with self.explained():
            return unseal(row)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Where one entry is at fault, name all that are."""
        try:
            yield
        except LedgerTampered as error:
            found = all_faults(self.store.rows(), self.store.place)
            if found is None:
                raise
            raise found from error

    def last(self) -> Entry:
        """The newest entry."""
        row, known = self.store.last(), self._newest
        if row is None:
            raise LedgerTampered(f"the ledger {self.store.place} has lost its entries")
        if known is None or known[0] != row:
            with self.explained():
                entry = unseal(row)
            self._newest = known = row, entry, self._read_state(entry)
        return known[1]

    def open_last(self) -> Entry:
        """The newest entry, unless the ledger went on elsewhere, or its budget was broken."""
        last = self.last()
        if last.kind == "moved":
            raise LedgerError(f"this ledger was moved to {last.body['to']}, and is closed here; use it there")
        broken = exceeded_by(last)
        if broken is not None:
            raise broken.refusal()
        return last

    def state(self, entry: Entry) -> State:
        """What all entries up to this one add up to."""
        known = self._newest
        return known[2] if known is not None and known[1] is entry else self._read_state(entry)

    def entries(self) -> Iterator[Entry]:
        """All entries, each checked against its hash and the one before."""
        return linked(self.store.rows())

    def holding(self, head: Head) -> Entry:
        """The entry that `head` names; LedgerTampered where it is not there."""
        row = self.store.row(head.sequence)
        if row is None:
            raise LedgerTampered(
                f"the ledger {self.store.place} has lost entry {head.sequence}: it was cut off, or is an older "
                "copy, or that entry is of another ledger; restore the newest one, or compare with what this "
                "ledger wrote"
            )
        entry = unseal(row)
        if entry.hash != head.hash:
            raise LedgerTampered(
                f"entry {head.sequence} of the ledger {self.store.place} is not the one expected: it is "
                "another ledger, or was rolled back and written again"
            )
        return entry

    # Writing

    @contextmanager
    def writing(self) -> Iterator[Entry]:
        """Alone among all processes, with the newest entry."""
        with self.store.transaction():
            yield self.open_last()

    def append(self, body: Mapping[str, Any], state: State, last: Entry) -> Entry:
        """Write what follows `last`, after which all entries add up to `state`."""
        stamp = {"time": now(), "epsilon_spent": state.spent, "state": state.to_json()}
        entry, row = seal({**body, **stamp}, after=last.head)
        self.store.append(row)
        self._newest = row, entry, state
        return entry

    def close_for(self, address: str) -> None:
        """End the ledger here, as it goes on at `address`; nothing more if that was done before."""
        with self.store.transaction():
            last = self.last()
            if last.kind != "moved" or last.body["to"] != address:
                last = self.open_last()
                self.append({"kind": "moved", "to": address}, self.state(last), last)

    def _read_state(self, entry: Entry) -> State:
        return State.from_json(self.budget, entry.body["state"], fine=self.fine)
