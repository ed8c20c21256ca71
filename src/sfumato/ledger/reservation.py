"""Reservations: an amount that is spent before a run, marked while it runs, and settled to the part that ran.

A reservation is held under a lease. Each change of it is one transaction of the ledger's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sfumato.accounting import DpEvent, NoEvent, event_to_json
from sfumato.errors import InvalidInput, LedgerError, Refused
from sfumato.ledger.chain import Entry, Head, unseal
from sfumato.ledger.charge import Charge, Lease, check_part_of, event_in
from sfumato.ledger.log import Log
from sfumato.ledger.rule import Tally, counted_event, same_releases

if TYPE_CHECKING:
    from sfumato.ledger.ledger import Ledger


class Reservation:
    """Hold an amount that is spent already, and that can be settled lower when less ran than was reserved.

    Left unsettled, as after a crash, it stays spent in full. It is held under a lease: once another process has
    taken it up (`Ledger.reservation`), or has given it back, this one can neither mark nor settle it.

    Attributes:
        ledger: The ledger that holds it.
        charge: The charge of the whole amount.
        lease: The holder, and the durable steps.
    """

    def __init__(self, ledger: Ledger, charge: Charge, lease: Lease) -> None:
        self._log = ledger._log
        self._open = ledger.spent_here.open
        self.charge = charge
        self.lease = lease

    @property
    def head(self) -> Head:
        return self.charge.head

    @property
    def private(self) -> bool:
        """Whether no holder had seeded noise."""
        return self.charge.private and self.lease.private

    @property
    def marked(self) -> int:
        """How many steps were durable when this process last looked."""
        return self.lease.steps

    def begin(self) -> None:
        """Note that rows are about to be touched: afterwards the reservation cannot be given back.

        Needed once, before the first row, where it was made with `begun=False`; later calls check the lease.
        """
        with self._held() as last:
            lease = self.lease.begin()
            if lease != self.lease:
                _note(self._log, self.head, "begin", lease, last)
        self.lease = lease

    def mark(self, ran: DpEvent, *, steps: int, digest: str) -> None:
        """Note that `steps` steps, which released `ran`, have left a durable output; costs nothing.

        `digest` is the SHA-256 of the file that holds it. The mark is refused if another process made the last
        one, or if it would take something back: a durable step is released.
        """
        check_part_of(ran, self.charge.event)
        with self._held() as last:
            lease = self.lease.marked(ran, steps=steps, digest=digest)
            _note(self._log, self.head, "mark", lease, last)
        self.lease = lease

    def settle(self, event: DpEvent | None = None, *, private: bool = True) -> Charge:
        """Close the reservation: with all that was reserved, or with `event`, the part of it that ran.

        `event` must consist of releases of the reserved event, each no more often, and hold all that was marked
        durable. It is the part that was *started*, and is priced as stopped while it ran: by the ledger's rule,
        which holds however the stop was decided. `private=False` says that noise was seeded.
        """
        charge = self.charge
        ran = charge.event if event is None else event
        check_part_of(ran, charge.event)
        counted = counted_event(ran, self._log.budget, relation=charge.relation, unit=charge.unit)
        with self._held() as last:
            refusal = self.lease.refusal(ran, charge.event)
            if refusal is not None:
                raise InvalidInput(refusal)
            lease = self.lease.with_noise(private=private)
            entry = _settle(self._log, charge.head, lease, ran, counted, last)
        self._open.discard(charge.head)
        return Charge.from_entry(entry, unit=charge.unit, settled=True)

    @contextmanager
    def _held(self) -> Iterator[Entry]:
        """Lock out other writers while the ledger has the lease as this process saw it last."""
        with self._log.writing() as last:
            newest = lease_of(self._log, self.head)
            if newest.token != self.lease.token:
                raise LedgerError(
                    f"expected lease {self.lease.token} of entry {self.head.sequence}, got lease "
                    f"{newest.token}: another process has taken the run up; let that one finish, and discard "
                    "the results of this one"
                )
            if newest != self.lease:  # a forked child has the same token
                raise LedgerError(
                    f"expected the mark of step {self.lease.steps}, which this process saw last, got another; "
                    "a second process uses the same reservation: stop one of them, and resume"
                )
            yield last


def lease_of(log: Log, head: Head) -> Lease:
    """Return the newest lease of an open reservation."""
    reserved = log.holding(head)
    if reserved.kind != "reserve" or log.find("settles", head.sequence) is not None:
        raise LedgerError(
            f"expected an open reservation at entry {head.sequence}, got one that was settled already or "
            "given back, or another entry; reserve anew"
        )
    row = log.find("about", head.sequence)
    return Lease.from_json((reserved if row is None else unseal(row)).body["lease"])


def take_up(log: Log, head: Head, *, seen: Lease | None, private: bool, spends: Callable[[], None]) -> Lease:
    """Give a reservation a new holder, if its lease is still the one that was `seen`; `spends` may refuse."""
    with log.writing() as last:
        before = lease_of(log, head)
        if seen is not None and seen != before:
            raise LedgerError(
                f"expected the lease of entry {head.sequence} as it was seen, got a newer one; another "
                "process goes on with the run: let it finish, or look again"
            )
        lease = before.taken_up(private=private)
        spends()
        _note(log, head, "lease", lease, last)
    return lease


def give_back(log: Log, number: int) -> Entry:
    """Settle a reservation that was never begun to nothing."""
    with log.writing() as last:
        row = log.find("sequence", number)
        if row is None:
            raise InvalidInput(f"expected an entry up to {last.sequence}, got entry={number}")
        head = unseal(row).head
        lease = lease_of(log, head)
        if lease.begun:
            raise Refused(
                f"expected a reservation that was never begun, got entry {number}: rows may have been "
                "touched under it, so it stays spent; resume its run, which settles the unused rest"
            )
        return _settle(log, head, lease.taken_up(private=True), NoEvent(), NoEvent(), last)


def _note(log: Log, head: Head, kind: str, lease: Lease, last: Entry) -> None:
    """Write a changed lease, which costs nothing."""
    log.append({"kind": kind, "about": head.sequence, "lease": lease.to_json()}, log.state(last), last)


def _settle(log: Log, head: Head, lease: Lease, ran: DpEvent, counted: DpEvent, last: Entry) -> Entry:
    """Write the settlement of a reservation, which counts as `counted` and never as more than was reserved."""
    reserved, state = log.holding(head).body, log.state(last)
    prices: dict[str, Tally] = {}
    if not reserved.get("drawn"):  # a release drawn from a plan was paid with it, and gives nothing back
        allocation = reserved["allocation"]
        prices = state.price(counted, allocation)
        held = {name: Tally.from_json(tally) for name, tally in reserved["price"].items()}
        if not all(prices[name] <= held[name] for name in held):
            # A conversion may round up; never above the reserved.
            counted, prices = event_in(reserved["counted"]), held
        if event_to_json(counted) != reserved["counted"]:
            state = state.lower(held, counted, allocation)
    whole = event_in(reserved["event"])
    stopped = not same_releases(ran, whole) and not same_releases(ran, NoEvent())
    kept: dict[str, Any] = {
        key: reserved[key] for key in ("purpose", "allocation", "relation", "drawn") if key in reserved
    }
    body = {
        **kept,
        "kind": "settle",
        "settles": head.sequence,
        "private": reserved["private"] and lease.private,
        "lease": lease.to_json(),
        "event": event_to_json(ran),
        "counted": event_to_json(counted),
        "planned": reserved["event"] if stopped else None,
        "price": {name: tally.to_json() for name, tally in prices.items()},
    }
    return log.append(body, state, last)
