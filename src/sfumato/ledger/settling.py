"""Reservations in the journal: who holds them, and what they are settled to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sfumato.accounting import DpEvent, NoEvent, event_from_json, event_to_json
from sfumato.errors import InvalidInput, LedgerError, Refused
from sfumato.ledger.chain import Entry, Head, unseal
from sfumato.ledger.charge import same_releases
from sfumato.ledger.journal import Journal
from sfumato.ledger.lease import Lease, first_lease
from sfumato.ledger.rule import Tally


def lease_of(journal: Journal, head: Head) -> Lease:
    """The newest lease of an open reservation."""
    reserved = journal.holding(head)
    if reserved.kind != "reserve" or journal.store.settlement(head.sequence) is not None:
        raise LedgerError(
            f"expected an open reservation at entry {head.sequence}, got one that was settled already or "
            "given back, or another entry; reserve anew"
        )
    row = journal.store.newest_about(head.sequence)
    if row is not None:
        return Lease.from_json(unseal(row).body["lease"])
    lease = first_lease(reserved)
    return lease if "lease" in reserved.body else replace(lease, steps=_marked_in_format_1(journal, head))


def settlement_of(journal: Journal, head: Head) -> Entry | None:
    """The entry that settles a reservation; None while it is open."""
    journal.holding(head)
    row = journal.store.settlement(head.sequence)
    entry = None if row is None else unseal(row)
    return entry if entry is not None and entry.body.get("settles") == head.sequence else None


def _marked_in_format_1(journal: Journal, head: Head) -> int:
    marks = (entry.body for entry in journal.entries() if entry.kind == "mark")
    return max((body["steps"] for body in marks if body.get("marks") == head.sequence), default=0)


def take_up(journal: Journal, head: Head, *, seen: Lease | None, private: bool) -> Lease:
    """The lease of whoever goes on with a reservation from here; nobody held it otherwise than was `seen`."""
    with journal.writing() as last:
        before = lease_of(journal, head)
        if seen is not None and seen != before:
            raise LedgerError(
                f"expected the lease of entry {head.sequence} as it was seen, got a newer one; another "
                "process goes on with the run: let it finish, or look again"
            )
        lease = before.taken_up(private=private)
        journal.spends()
        note_lease(journal, head, "lease", lease, last)
    return lease


def give_back(journal: Journal, entry: int) -> Entry:
    """The settlement to nothing of a reservation that was never begun."""
    with journal.writing() as last:
        row = journal.store.row(entry)
        if row is None:
            raise InvalidInput(f"expected an entry up to {last.sequence}, got entry={entry}")
        head = unseal(row).head
        lease = lease_of(journal, head)
        if lease.begun:
            raise Refused(
                f"expected a reservation that was never begun, got entry {entry}: rows may have been "
                "touched under it, so it stays spent; resume its run, which settles what it did not use"
            )
        lease = lease.taken_up(private=True)
        return settle(journal, head, lease=lease, ran=NoEvent(), counted=NoEvent(), last=last)


def note_lease(journal: Journal, head: Head, kind: str, lease: Lease, last: Entry) -> None:
    """Write what a lease has become; it costs nothing."""
    body = {"kind": kind, "about": head.sequence, "lease": lease.to_json()}
    journal.append(body, journal.state(last), last)


def settle(journal: Journal, head: Head, *, lease: Lease, ran: DpEvent, counted: DpEvent, last: Entry) -> Entry:
    """Write what a reservation came to, which counts as `counted` and never as more than was reserved."""
    reserved = journal.holding(head)
    before, allocation = journal.state(last), reserved.body["allocation"]
    if reserved.body.get("drawn"):  # paid with its plan: what did not run is not given back
        return journal.append(_settlement(reserved, lease, ran, counted, {}), before, last)
    prices = before.price(counted, allocation)
    held = {name: Tally.from_json(tally) for name, tally in reserved.body["price"].items()}
    if not all(prices[name] <= held[name] for name in held):
        # A conversion may round up; never above the reserved.
        counted, prices = event_from_json(reserved.body["counted"]), held
    same = event_to_json(counted) == reserved.body["counted"]
    state = before if same else before.lower(held, counted, allocation)
    return journal.append(_settlement(reserved, lease, ran, counted, prices), state, last)


def _settlement(
    reserved: Entry, lease: Lease, ran: DpEvent, counted: DpEvent, prices: dict[str, Tally]
) -> dict[str, Any]:
    """What a settlement says."""
    whole = event_from_json(reserved.body["event"])
    stopped = not same_releases(ran, whole) and not same_releases(ran, NoEvent())
    return {
        **{key: reserved.body[key] for key in ("purpose", "allocation", "relation")},
        "kind": "settle",
        "settles": reserved.sequence,
        "private": reserved.body["private"] and lease.private,
        "lease": lease.to_json(),
        "event": event_to_json(ran),
        "counted": event_to_json(counted),
        "planned": reserved.body["event"] if stopped else None,
        "price": {name: tally.to_json() for name, tally in prices.items()},
        **({"drawn": True} if reserved.body.get("drawn") else {}),
    }
