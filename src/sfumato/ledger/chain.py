"""Entries that cannot be changed unnoticed: each carries the SHA-256 of the one before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sfumato.errors import InvalidInput, LedgerTampered

ORIGIN = "0" * 64
"""What the first entry names as the hash of the entry before it."""


class Row(NamedTuple):
    """An entry as a store keeps it."""

    sequence: int
    digest: bytes
    text: bytes
    settles: int | None
    about: int | None = None


@dataclass(frozen=True, kw_only=True)
class Head:
    """Names one entry, and by its hash all that went before: note it down, and a roll-back shows.

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
    """One line of the ledger: what happened, and the hash of it all up to here.

    Attributes:
        sequence: Its number, from 0.
        hash: SHA-256 of the entry and of the hash before it, in hexadecimal.
        body: What happened.
    """

    sequence: int
    hash: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        kind = self.body.get("kind")
        if not isinstance(kind, str):
            raise LedgerTampered(f"ledger entry {self.sequence} does not say what it is: it was forged")
        return kind

    @property
    def head(self) -> Head:
        return Head(sequence=self.sequence, hash=self.hash)

    @property
    def settles(self) -> int | None:
        return self.body.get("settles")

    @property
    def about(self) -> int | None:
        """The reservation whose lease this entry changes."""
        return self.body.get("about")


def canonical(data: Any) -> bytes:
    """The one way to write a JSON value: sorted keys, no spaces, no NaN.

    >>> canonical({"b": 1.0, "a": "ε"})
    b'{"a":"\\\\u03b5","b":1.0}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    """NumPy's numbers, which turn up in the parameters of events, as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise InvalidInput(f"expected plain JSON values in a ledger entry, got {type(value).__name__}")


def seal(body: dict[str, Any], *, after: Head | None) -> tuple[Entry, Row]:
    """The entry that follows `after`: SHA-256 over the canonical JSON, the earlier hash included."""
    sequence = 0 if after is None else after.sequence + 1
    full = {**body, "sequence": sequence, "previous": ORIGIN if after is None else after.hash}
    text = canonical(full)
    digest = hashlib.sha256(text).digest()
    entry = Entry(sequence=sequence, hash=digest.hex(), body=full)
    return entry, Row(sequence, digest, text, entry.settles, entry.about)


def unseal(row: Row) -> Entry:
    """The entry in `row`, or LedgerTampered when any byte of it is not what was sealed."""
    check_hash(row)
    body = _body(row)
    entry = Entry(sequence=row.sequence, hash=row.digest.hex(), body=body)
    check_place(row, body["sequence"], entry.settles, entry.about)
    return entry


def check_hash(row: Row) -> None:
    """Raise LedgerTampered where a text is not the one that was sealed."""
    if hashlib.sha256(row.text).digest() != row.digest:
        raise LedgerTampered(f"ledger entry {row.sequence} does not have the hash it was written with")


def check_place(row: Row, sequence: Any, settles: Any, about: Any) -> None:
    """Raise LedgerTampered where a store keeps an entry under other numbers than it was written with."""
    if (sequence, settles, about) != (row.sequence, row.settles, row.about):
        raise LedgerTampered(f"ledger entry {row.sequence} was moved: it was written as {sequence}")


def check_follows(sequence: int, previous: str, last: int, before: str) -> None:
    """Raise LedgerTampered unless an entry follows entry `last`, and names its hash `before` as `previous`."""
    if sequence != last + 1:
        raise LedgerTampered(f"ledger entry {last + 1} is missing")
    if previous != before:
        raise LedgerTampered(f"ledger entry {sequence} does not follow entry {last}")


def _body(row: Row) -> dict[str, Any]:
    """What an entry says, with what every entry has; whoever can write a hash can write anything."""
    try:
        body = _read(row.text.decode())
        if isinstance(body, dict) and {"sequence", "previous"} <= body.keys() and canonical(body) == row.text:
            return body
    except (ValueError, RecursionError, InvalidInput):
        pass
    raise LedgerTampered(f"ledger entry {row.sequence} is not written as a ledger writes: it was forged")


def _read(written: str) -> Any:
    """As `json.loads`, without its search for spaces around it: `canonical` writes none."""
    value, end = _decoder.raw_decode(written)
    if end != len(written):
        raise json.JSONDecodeError("expected one JSON value", written, end)
    return value


_decoder = json.JSONDecoder()


def linked(rows: Iterable[Row], *, after: Head | None = None) -> Iterator[Entry]:
    """Every entry in turn, checked against its own hash and the one before; the first one follows `after`."""
    last, before = (-1, ORIGIN) if after is None else (after.sequence, after.hash)
    for row in rows:
        entry = unseal(row)
        check_follows(entry.sequence, entry.body["previous"], last, before)
        yield entry
        last, before = entry.sequence, entry.hash
