"""What entries of a ledger there are, and what each kind says: nothing less, nothing more, no hidden character.

Hashes tell that an entry is as it was written, by whomever. One that says more than its kind was not written by
a ledger, and one with control characters could drive the terminal of who reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from sfumato.display import visible
from sfumato.errors import LedgerTampered
from sfumato.ledger.chain import Entry

EVERY = frozenset(["kind", "sequence", "previous", "time", "epsilon_spent", "state"])
_RELEASE = frozenset(["purpose", "allocation", "private", "event", "counted", "relation"])
_ADDRESSES = ("to", "from")  # of stores: a path may hold any character


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What an entry of one kind says beside what every entry says.

    Attributes:
        fields: What it says, in each of the ways that there are; the first is today's.
        optional: What it may say besides.
        charges: Whether it tells of a release that is counted.
        of_lease: Whether it tells how a reservation is held, and costs nothing.
    """

    fields: tuple[frozenset[str], ...]
    optional: frozenset[str] = frozenset()
    charges: bool = False
    of_lease: bool = False

    def allows(self, fields: Set[str]) -> bool:
        """Whether an entry may have these fields."""
        own = frozenset(fields) - EVERY
        return fields >= EVERY and any(way <= own <= way | self.optional for way in self.fields)


def _one(*fields: str) -> tuple[frozenset[str], ...]:
    return (frozenset(fields),)


PAID = _RELEASE | {"price"}
_LEASED = _one("about", "lease")
KINDS: Mapping[str, Kind] = {
    "create": Kind(fields=_one("format", "name", "budget"), optional=frozenset(["dataset", "people"])),
    "allocate": Kind(fields=_one("allocation", "epsilon"), optional=frozenset(["purpose", "origin"])),
    "charge": Kind(fields=(PAID,), optional=frozenset(["drawn", "plan", "outside"]), charges=True),
    # Without a lease in format 1.
    "reserve": Kind(fields=(PAID | {"lease"}, PAID), optional=frozenset(["drawn"]), charges=True),
    "settle": Kind(
        fields=(PAID | {"settles", "lease", "planned"}, PAID | {"settles"}),
        optional=frozenset(["drawn"]),
        charges=True,
    ),
    "begin": Kind(fields=_LEASED, of_lease=True),
    "lease": Kind(fields=_LEASED, of_lease=True),
    "mark": Kind(fields=(*_LEASED, *_one("marks", "steps")), of_lease=True),
    "exceeded": Kind(fields=(_RELEASE | {"owed"},)),
    "moved": Kind(fields=_one("to")),
    "arrived": Kind(fields=_one("from")),
    "note": Kind(fields=_one("text")),
}
"""Every kind that a ledger writes, or wrote."""

OF_LEASES = frozenset(name for name, kind in KINDS.items() if kind.of_lease)
FREE = frozenset(name for name, kind in KINDS.items() if not kind.charges) - {"create", "allocate"}
"""Kinds of entries that leave all sums as they are, wherever they stand."""


def check_kind(entry: Entry) -> None:
    """Raise LedgerTampered for an entry that no ledger writes."""
    kind = KINDS.get(entry.kind)
    if kind is None:
        raise LedgerTampered(f"ledger entry {entry.sequence} is of no kind that is known: it was forged")
    if not kind.allows(entry.body.keys()):
        raise LedgerTampered(
            f"ledger entry {entry.sequence} says more or less than an entry of kind {entry.kind!r} says: it "
            "was forged"
        )
    if not all(map(is_plain, _texts(entry.body))):
        raise LedgerTampered(
            f"ledger entry {entry.sequence} holds hidden or control characters, which no ledger writes: it "
            "was forged"
        )


def _texts(body: Mapping[str, Any]) -> list[str]:
    found = [value for name, value in body.items() if isinstance(value, str) and name not in _ADDRESSES]
    budget = body.get("budget")
    return found + (_texts(budget) if isinstance(budget, dict) else [])


def is_plain(text: str) -> bool:
    """Whether every character of a text is seen where it is shown."""
    return visible(text) == text
