"""Entries that cannot be changed unnoticed: each carries the SHA-256 of the one before.

A fitting hash shows that an entry is as it was written. It does not show that a ledger wrote it: `check_kind`
refuses an entry with other fields than its kind has, or with characters that could drive a terminal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from sfumato.display import visible
from sfumato.errors import InvalidInput, LedgerTampered

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="64 hexadecimal digits")]
ORIGIN = "0" * 64
"""The hash that the first entry names as that of the entry before it."""


class Row(NamedTuple):
    """An entry as a store keeps it."""

    sequence: int
    digest: bytes
    text: bytes
    settles: int | None
    about: int | None = None


@dataclass(frozen=True, kw_only=True)
class Head:
    """Name one entry, and by its hash all earlier ones: a copy kept elsewhere reveals a roll-back.

    Args:
        sequence: The entry's number, from 0.
        hash: Its SHA-256, in hexadecimal.

    >>> Head(sequence=3, hash="ab" * 32).to_json()["sequence"]
    3
    """

    sequence: int
    hash: str

    def to_json(self) -> dict[str, Any]:
        return {"sequence": self.sequence, "hash": self.hash}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Head:
        return cls(sequence=int(data["sequence"]), hash=str(data["hash"]))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger, and the hash of the whole chain up to it.

    Attributes:
        sequence: Its number, from 0.
        hash: SHA-256 of the entry and of the hash before it, in hexadecimal.
        body: The fields of the entry.
    """

    sequence: int
    hash: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        kind = self.body.get("kind")
        if not isinstance(kind, str):
            raise LedgerTampered(f"ledger entry {self.sequence} has no kind: it was forged")
        return kind

    @property
    def head(self) -> Head:
        return Head(sequence=self.sequence, hash=self.hash)

    @property
    def about(self) -> int | None:
        """The reservation whose lease this entry changes."""
        return self.body.get("about")


def canonical(data: Any) -> bytes:
    """Write a JSON value in its one form: sorted keys, no spaces, no NaN.

    >>> canonical({"b": 1.0, "a": "ε"})
    b'{"a":"\\\\u03b5","b":1.0}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain).encode()


def is_hexadecimal(value: object, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and not set(value) - set("0123456789abcdef")


def _plain(value: Any) -> Any:
    """Convert a NumPy number, as parameters of events can be, to a Python number."""
    if hasattr(value, "item"):
        return value.item()
    raise InvalidInput(f"expected plain JSON values in a ledger entry, got {type(value).__name__}")


def seal(body: dict[str, Any], *, after: Head | None) -> tuple[Entry, Row]:
    """Make the entry that follows `after`, with SHA-256 over its canonical JSON and the earlier hash."""
    sequence = 0 if after is None else after.sequence + 1
    full = {**body, "sequence": sequence, "previous": ORIGIN if after is None else after.hash}
    text = canonical(full)
    digest = hashlib.sha256(text).digest()
    entry = Entry(sequence=sequence, hash=digest.hex(), body=full)
    return entry, Row(sequence, digest, text, full.get("settles"), full.get("about"))


def unseal(row: Row) -> Entry:
    """Read the entry in `row`; LedgerTampered if a byte or a number differs from the sealed ones."""
    if hashlib.sha256(row.text).digest() != row.digest:
        raise LedgerTampered(f"ledger entry {row.sequence} does not have the hash it was written with")
    body = _read(row.text)
    if body is None or not {"sequence", "previous"} <= body.keys():
        raise LedgerTampered(f"ledger entry {row.sequence} is not written as a ledger writes: it was forged")
    if (body["sequence"], body.get("settles"), body.get("about")) != (row.sequence, row.settles, row.about):
        raise LedgerTampered(f"ledger entry {row.sequence} was moved: it was written as {body['sequence']}")
    return Entry(sequence=row.sequence, hash=row.digest.hex(), body=body)


def _read(text: bytes) -> dict[str, Any] | None:
    """Read an object in canonical JSON; None for any other text."""
    try:
        body = json.loads(text)
        return body if isinstance(body, dict) and canonical(body) == text else None
    except (ValueError, RecursionError, InvalidInput):
        return None


def linked(rows: Iterable[Row], *, after: Head | None = None) -> Iterator[Entry]:
    """Yield each entry, checked against its hash and the entry before; the first one follows `after`."""
    last, before = (-1, ORIGIN) if after is None else (after.sequence, after.hash)
    for row in rows:
        entry = unseal(row)
        _check_follows(row, entry.body["previous"], last, before)
        yield entry
        last, before = entry.sequence, entry.hash


def _check_follows(row: Row, previous: object, last: int, before: str) -> None:
    if row.sequence != last + 1:
        raise LedgerTampered(f"ledger entry {last + 1} is missing")
    if previous != before:
        raise LedgerTampered(f"ledger entry {row.sequence} does not follow entry {last}")


# Faults

_MEANING = (
    "the file was changed or damaged after it was written, so none of its figures can be relied on; charge "
    "nothing to it, compare these entries with their certificates and with a witness that was kept elsewhere, "
    "and restore the original from a copy"
)
_LISTED = 20


def all_faults(rows: Iterable[Row], place: str) -> LedgerTampered | None:
    """Name every entry at fault in one error; None where each entry holds."""
    known = list(rows)
    found = list(_faults(known))
    if not found:
        return None
    more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return LedgerTampered(
        f"the ledger {place} has {len(found)} of {len(known)} entries at fault: "
        f"{'; '.join(found[:_LISTED])}{more}; {_MEANING}"
    )


def _faults(rows: list[Row]) -> Iterator[str]:
    last, before = -1, ORIGIN
    for row in rows:
        body = loose_body(row)
        try:
            unseal(row)
            _check_follows(row, body["previous"], last, before)
        except LedgerTampered as error:
            shown = str(body.get("purpose") or body.get("text") or body.get("kind") or "nothing")
            now = f"now says {shown[:200]!r}, {str(body.get('time'))[:19].replace('T', ' ')}"
            yield f"{error} (entry {row.sequence} {now if body else 'cannot be read'})"
        last, before = row.sequence, row.digest.hex()


def loose_body(row: Row) -> dict[str, Any]:
    """Read the fields of a row that may be damaged, or not of a ledger; empty where it has none."""
    try:
        body = json.loads(row.text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


# Kinds

_EVERY = frozenset(["kind", "sequence", "previous", "time", "epsilon_spent", "state"])
_RELEASE = ("purpose", "allocation", "private", "event", "counted", "relation")
_PAID = (*_RELEASE, "price")
_ADDRESSES = ("to", "from")  # of stores: a path may hold any character


@dataclass(frozen=True)
class Kind:
    """The fields of one kind of entry beside those that every entry has."""

    fields: tuple[str, ...]
    optional: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "create": Kind(("format", "name", "budget"), ("dataset", "people")),
    "allocate": Kind(("allocation", "epsilon"), ("purpose", "origin")),
    "charge": Kind(_PAID, ("drawn", "plan", "outside")),
    "reserve": Kind((*_PAID, "lease"), ("drawn",)),
    "settle": Kind((*_PAID, "settles", "lease", "planned"), ("drawn",)),
    "begin": Kind(("about", "lease")),
    "lease": Kind(("about", "lease")),
    "mark": Kind(("about", "lease")),
    "exceeded": Kind((*_RELEASE, "owed")),
    "moved": Kind(("to",)),
    "arrived": Kind(("from",)),
    "note": Kind(("text",)),
}
"""Every kind of entry that a ledger writes."""

OF_LEASES = frozenset(["begin", "lease", "mark"])
FREE = KINDS.keys() - {"create", "allocate", "charge", "reserve", "settle"}
"""Kinds of entries that leave all sums as they are, wherever they stand."""


def check_kind(entry: Entry) -> None:
    """Raise LedgerTampered for an entry that no ledger writes."""
    kind = KINDS.get(entry.kind)
    if kind is None:
        raise LedgerTampered(f"ledger entry {entry.sequence} is of no kind that is known: it was forged")
    fields = _EVERY.union(kind.fields)
    if not fields <= entry.body.keys() <= fields.union(kind.optional):
        raise LedgerTampered(
            f"ledger entry {entry.sequence} says more or less than an entry of kind {entry.kind!r} says: it "
            "was forged"
        )
    if not all(visible(text) == text for text in _texts(entry.body)):
        raise LedgerTampered(
            f"ledger entry {entry.sequence} holds hidden or control characters, which no ledger writes: it "
            "was forged"
        )


def _texts(body: Mapping[str, Any]) -> list[str]:
    found = [value for name, value in body.items() if isinstance(value, str) and name not in _ADDRESSES]
    budget = body.get("budget")
    return found + (_texts(budget) if isinstance(budget, dict) else [])
