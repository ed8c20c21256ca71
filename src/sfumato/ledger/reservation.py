"""A reservation: an amount that is spent already, begun, marked and settled by whoever holds its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.accounting import DpEvent, Relation
from sfumato.accounting.events import with_norm_bound
from sfumato.errors import InvalidInput, LedgerError
from sfumato.ledger.chain import Head
from sfumato.ledger.charge import Charge, check_part_of
from sfumato.ledger.conversion import counted_event
from sfumato.ledger.lease import Lease
from sfumato.ledger.settling import lease_of, note_lease, settle

if TYPE_CHECKING:
    from sfumato.ledger.ledger import Ledger


class Reservation:
    """An amount that is spent already, and may be settled lower when less ran than was reserved.

    Left unsettled, as after a crash, it stays spent in full. It is held under a lease: once another process has
    taken it up (`Ledger.reservation`), or has given it back, this one can neither mark nor settle it.

    Attributes:
        ledger: Where it was reserved.
        charge: What was reserved.
        lease: Who holds it, and what is durable.
    """

    def __init__(self, ledger: Ledger, charge: Charge, lease: Lease) -> None:
        self._journal = ledger._journal
        self._here = ledger.spent_here
        self.charge = charge
        self.lease = lease

    @property
    def head(self) -> Head:
        return self.charge.head

    @property
    def private(self) -> bool:
        """Whether nobody who held it had seeded noise."""
        return self.charge.private and self.lease.private

    @property
    def marked(self) -> int:
        """How many steps were durable when this process last looked."""
        return self.lease.steps

    def begin(self) -> None:
        """Note that rows are about to be touched: afterwards the reservation cannot be given back.

        Needed once, before the first row, where it was made with `begun=False`; later calls check the lease.
        """
        with self._journal.writing() as last:
            lease = self._as_seen()
            if not lease.begun:
                lease = lease.begin()
                note_lease(self._journal, self.head, "begin", lease, last)
        self.lease = lease

    def mark(self, ran: DpEvent, *, steps: int, digest: str) -> None:
        """Note that `steps` steps, which released `ran`, have left a durable output; costs nothing.

        `digest` is the SHA-256 of the file that holds it. The mark is refused if it is not this process that
        made the last one, or if it would take something back: a durable step is released.
        """
        check_part_of(ran, self.charge.event)
        with self._journal.writing() as last:
            lease = self._as_seen().marked(ran, steps=steps, digest=digest)
            note_lease(self._journal, self.head, "mark", lease, last)
        self.lease = lease

    def settle(self, event: DpEvent | None = None, *, private: bool = True) -> Charge:
        """Close the reservation: with all that was reserved, or with `event`, the part of it that ran.

        `event` must consist of releases of the reserved event, each no more often, and hold all that was marked
        durable. It is what was *started*, and is priced as stopped while it ran: by the ledger's rule, which
        holds however the stop was decided. `private=False` says that noise was seeded.
        """
        charge = self.charge
        ran = charge.event if event is None else event
        if charge.relation is Relation.REPLACE_ONE:  # it may have been reserved before norm bounds were stated
            ran = with_norm_bound(ran)
        check_part_of(ran, charge.event)
        counted = counted_event(ran, self._journal.budget, relation=charge.relation, unit=charge.unit)
        with self._journal.writing() as last:
            lease = self._as_seen()
            refusal = lease.refusal(ran, charge.event)
            if refusal is not None:
                raise InvalidInput(refusal)
            lease = lease.with_noise(private=private)
            entry = settle(self._journal, charge.head, lease=lease, ran=ran, counted=counted, last=last)
        self._here.open.discard(charge.head)
        return Charge.from_entry(entry, unit=charge.unit, settled=True)

    def _as_seen(self) -> Lease:
        """The lease, if nobody with the same token, such as a forked child, has changed it meanwhile."""
        newest = self._held()
        if newest != self.lease:
            raise LedgerError(
                f"expected the mark of step {self.lease.steps}, which this process saw last, got another; a "
                "second process uses the same reservation: stop one of them, and resume"
            )
        return newest

    def _held(self) -> Lease:
        """The lease as the ledger has it, if it is still this process's."""
        newest = lease_of(self._journal, self.head)
        if newest.token != self.lease.token:
            raise LedgerError(
                f"expected lease {self.lease.token} of entry {self.head.sequence}, got lease {newest.token}: "
                "another process has taken the run up; let that one finish, and discard what this one has"
            )
        return newest
