"""The log of one ledger: its beginning, its entries, and its move to another store.

A ledger can be opened to be made with its first charge. Until then nothing is on disk: readers leave no file
behind, and the budget can still be changed.
"""

from __future__ import annotations

import os
import re
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget
from sfumato.errors import InvalidInput, LedgerError, LedgerTampered
from sfumato.ledger.chain import Entry, Head, Row, all_faults, linked, loose_body, seal, unseal
from sfumato.ledger.charge import exceeded_by
from sfumato.ledger.state import State
from sfumato.ledger.store import Column, Store

FORMAT = 3
# Characters that are not seen and are no format characters: fillers, joiners of graphemes, variation selectors.
_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class Log:
    """Entries in a store, read with their sums, and appended within `writing`.

    Args:
        store: Where the entries are.
        pending: The first entry of a ledger that is made before the next entry is written. Another process may
            make one meanwhile: this log then goes on with it if it has the same budget, and refuses it if not.
    """

    def __init__(self, store: Store, pending: Row | None = None) -> None:
        self.store = store
        self._pending = pending
        body = self.first.body
        if body.get("format") != FORMAT:
            raise LedgerError(f"{store.place} has a format this version cannot read; use a newer sfumato")
        self.budget = Budget(**body["budget"])
        self._newest: tuple[Row, Entry, State] | None = None  # as long as the store's newest row is this one

    # Reading

    def _waits(self) -> Row | None:
        """Return the first entry while there is no ledger in the store."""
        if self._pending is not None and self.store.last() is not None:
            body, made = unseal(self._pending).body, _first(self.store.find("sequence", 0), self.store).body
            if (made["budget"], made.get("dataset")) != (body["budget"], body.get("dataset")):
                raise other_budget(self.store.place, Budget(**made["budget"]), Budget(**body["budget"]))
            self._pending = None
        return self._pending

    def find(self, column: Column, value: int) -> Row | None:
        """Return the newest row with this value in a column."""
        waits = self._waits()
        if waits is None:
            return self.store.find(column, value)
        return waits if getattr(waits, column) == value else None

    @property
    def first(self) -> Entry:
        """The first entry. It is read anew, as another process may make the ledger after it was opened here."""
        with self.explained():
            return _first(self.find("sequence", 0), self.store)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Where one entry is at fault, name all that are."""
        try:
            yield
        except LedgerTampered as error:
            found = all_faults(self._rows(), self.store.place)
            if found is None:
                raise
            raise found from error

    def last(self) -> Entry:
        """Return the newest entry."""
        row, known = self._waits() or self.store.last(), self._newest
        if row is None:
            raise LedgerTampered(f"the ledger {self.store.place} has lost its entries")
        if known is None or known[0] != row:
            with self.explained():
                entry = unseal(row)
            self._newest = known = row, entry, State.from_json(self.budget, entry.body["state"])
        return known[1]

    def open_last(self) -> Entry:
        """Return the newest entry, unless the ledger was moved, or its budget was broken."""
        last = self.last()
        if last.kind == "moved":
            raise LedgerError(f"this ledger was moved to {last.body['to']}, and is closed here; use it there")
        broken = exceeded_by(last)
        if broken is not None:
            raise broken.refusal()
        return last

    def state(self, entry: Entry) -> State:
        """Return the sums of all entries up to this one."""
        known = self._newest
        if known is not None and known[1] is entry:
            return known[2]
        return State.from_json(self.budget, entry.body["state"])

    def entries(self) -> Iterator[Entry]:
        """Return all entries, each checked against its hash and the one before."""
        return linked(self._rows())

    def _rows(self) -> Iterator[Row]:
        waits = self._waits()
        return self.store.rows() if waits is None else iter((waits,))

    def holding(self, head: Head) -> Entry:
        """Return the entry that `head` names, or raise LedgerTampered."""
        row = self.find("sequence", head.sequence)
        if row is None:
            raise LedgerTampered(
                f"the ledger {self.store.place} has lost entry {head.sequence}: it was cut off, or is an older "
                "copy, or that entry is of another ledger; restore the newest one, or compare with the "
                "certificates of this ledger"
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
        """Lock out all other writers, and give the newest entry."""
        waits = self._waits()
        if waits is not None:
            make(self.store, waits)
            self._waits()
        with self.store.transaction():
            yield self.open_last()

    def append(self, body: Mapping[str, Any], state: State, last: Entry) -> Entry:
        """Write the entry after `last`, with `state` as the sums of all entries."""
        stamp = {"time": now(), "epsilon_spent": state.spent, "state": state.to_json()}
        entry, row = seal({**body, **stamp}, after=last.head)
        self.store.append(row)
        self._newest = row, entry, state
        return entry

    def move(self, there: Store, dataset: str | None) -> None:
        """Close the log here, then write all of it to another store.

        At no moment can both be charged. If the process dies in between, neither can, and the same call
        finishes the move.
        """
        here = self.store
        if _is_same(here.address, there.address):
            raise InvalidInput(f"expected another place to move {here.place} to, got the one where it is")
        _count_continued(there, list(here.rows()))
        there.check_room()
        with alone(there, dataset, own=here.find("sequence", 0)):
            with here.transaction():
                last = self.last()
                if last.kind != "moved" or last.body["to"] != there.address:
                    last = self.open_last()
                    self.append({"kind": "moved", "to": there.address}, self.state(last), last)
            _arrive(there, list(here.rows()), origin=here.address)


def _first(row: Row | None, store: Store) -> Entry:
    if row is None:
        raise absent(store.place)
    return unseal(row)


# Making a ledger


def first_row(budget: Budget, dataset: str | None, people: float | None = None) -> Row:
    """Make the first entry of a ledger."""
    known = {} if people is None else {"people": _validate.positive("people", people)}
    body = {
        "kind": "create",
        "format": FORMAT,
        "name": str(uuid.uuid4()),  # so that no two ledgers share a hash
        "dataset": None if dataset is None else _checked_id(dataset),
        **known,
        "time": now(),
        "budget": asdict(budget),
        "epsilon_spent": 0.0,
        "state": State.empty(budget).to_json(),
    }
    return seal(body, after=None)[1]


def make(store: Store, first: Row) -> bool:
    """Write the first entry; return False if another process just did."""
    with alone(store, loose_body(first).get("dataset")):
        return store.create([first])


@contextmanager
def alone(store: Store, dataset: str | None, *, own: Row | None = None) -> Iterator[None]:
    """Keep other processes from making a ledger for this data set beside the store; raise if there is one.

    `own` is the first row of the same ledger, which may lie there already while it moves.
    """
    if dataset is None:
        yield
        return
    with store.creating(known_as(dataset)):
        refuse_second(store, dataset, own)
        yield


def refuse_second(store: Store, dataset: str | None, own: Row | None = None) -> None:
    """Raise LedgerError if a neighbour is a ledger for the same data set: two budgets would add up unseen."""
    for place, row in store.neighbours() if dataset is not None else ():
        declared = loose_body(row).get("dataset")
        if own is not None and row.digest == own.digest:
            continue
        if isinstance(declared, str) and known_as(declared) == known_as(str(dataset)):
            raise LedgerError(
                f"expected no ledger for dataset={dataset!r} yet, got one for {declared!r} at {place}; one "
                "data set has one ledger, so use that one"
            )


def known_as(dataset: str) -> str:
    """Return the common form of ids that differ in case, spaces and encoding only.

    >>> known_as("Caf\u00e9  2026") == known_as("cafe\u0301\u00a02026")
    True
    """
    folded = unicodedata.normalize("NFKC", _seen(dataset)).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def _checked_id(dataset: object) -> str:
    text = _validate.text("dataset", dataset)
    if text != text.strip() or text != _seen(text):
        raise InvalidInput(
            "expected dataset without spaces around it and without invisible characters, got "
            f"dataset={text!r}; two ids that look the same would be two budgets"
        )
    return text


def _seen(text: str) -> str:
    shown = (letter for letter in text if unicodedata.category(letter) != "Cf")
    return _IGNORED.sub("", "".join(shown))


def now() -> str:
    """Return the time as entries state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def absent(place: str) -> LedgerError:
    return LedgerError(
        f"there is no ledger at {place}; check the path, or make one with: sfumato ledger create {place} "
        "--epsilon 1 --delta 1e-6"
    )


def other_budget(place: str, has: Budget, given: Budget, *, unused_file: bool = False) -> LedgerError:
    """Explain that a ledger has another budget; `unused_file`: nothing was ever charged to this file."""
    names = [item.name for item in fields(Budget) if getattr(has, item.name) != getattr(given, item.name)]
    expected, got = (" and ".join(f"{name}={getattr(one, name)}" for name in names) for one in (has, given))
    remedy = (
        "nothing was ever charged to this ledger, so you may delete the file: the first charge makes it anew "
        "with the budget that is declared then"
        if unused_file
        else "declare the same (a policy in [budget]) or make another ledger for other data"
    )
    return LedgerError(f"expected the budget of {place}, {expected}, got {got}; {remedy}")


# Moving a ledger


def _is_same(source: str, target: str) -> bool:
    both = Path(source), Path(target)
    return source == target or (all(path.exists() for path in both) and os.path.samefile(*both))


def _count_continued(there: Store, rows: Sequence[Row]) -> int:
    """Count the rows that are there already; others must not be, unless the move was finished before."""
    found = [] if there.last() is None else list(there.rows())
    common = min(len(found), len(rows))
    same = [row.digest for row in found[:common]] == [row.digest for row in rows[:common]]
    finished = len(found) <= len(rows) or unseal(rows[-1]).body.get("to") == there.address
    if not same or not finished:
        raise LedgerError(
            f"expected no ledger at {there.place}, or this one as it was when it was moved away, got another "
            "or a newer one; choose another place"
        )
    return len(found)


def _arrive(there: Store, rows: Sequence[Row], *, origin: str) -> None:
    """Write the missing rows, and open the ledger there."""
    moved = unseal(rows[-1])
    state = {key: moved.body[key] for key in ("epsilon_spent", "state")}
    _, arrived = seal({"kind": "arrived", "from": origin, "time": now(), **state}, after=moved.head)
    if there.last() is None and there.create([*rows, arrived]):
        return
    with there.transaction():
        found = _count_continued(there, rows)
        if found <= len(rows):
            for row in (*rows[found:], arrived):
                there.append(row)
