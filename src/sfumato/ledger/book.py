"""A ledger as it is read: figures, charges, certificates and checks. Nothing here writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from sfumato.accounting import DpEvent, Relation
from sfumato.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
    LedgerTampered,
    NotPrivate,
    RelationMismatch,
)
from sfumato.ledger import spending
from sfumato.ledger.certificate import Certificate
from sfumato.ledger.chain import Entry, Head, Row, linked
from sfumato.ledger.charge import (
    Charge,
    ChargeRequest,
    Exceeded,
    Lease,
    as_one,
    charges_of,
    exceeded_by,
    same_releases,
)
from sfumato.ledger.log import Log, known_as
from sfumato.ledger.rule import check_unit, counted_event
from sfumato.ledger.state import Balance, State
from sfumato.ledger.store import Store
from sfumato.ledger.verify import check_agreement, replay


class Book:
    """Read and check a ledger; `Ledger` is the book that can be charged.

    Attributes:
        budget: The limit of all charges together.
        allocation: The share of the budget that `epsilon_left` speaks of; None for the unclaimed rest.
    """

    def __init__(self, store: Store, pending: Row | None = None) -> None:
        self._journal = Log(store, pending)
        self.budget = self._journal.budget
        self.allocation: str | None = None

    @property
    def _store(self) -> Store:
        return self._journal.store

    # Figures

    @property
    def head(self) -> Head:
        """The newest entry; noted down elsewhere, it shows a later roll-back."""
        return self._journal.last().head

    @property
    def id(self) -> str:
        """The hash of the first entry, which no other ledger has, wherever this one lies."""
        return self._journal.first.hash

    @property
    def state(self) -> State:
        return self._journal.state(self._journal.last())

    @property
    def epsilon_spent(self) -> float:
        """ε at the budget's δ of all charges, under the ledger's rule."""
        broken = self.exceeded
        return self.state.spent if broken is None else broken.owed

    @property
    def epsilon_left(self) -> float:
        """The largest further pure-ε charge that would be accepted from the share that this object spends."""
        return 0.0 if self.exceeded is not None else self.state.left(self.allocation)

    @property
    def balance(self) -> Balance:
        """The budget taken apart, or the share of it that this object spends."""
        return self.balance_of(self.state, self.allocation)

    def balance_of(self, state: State, allocation: str | None = None) -> Balance:
        """Take the budget, or a share of it, apart as it is in a state of this ledger.

        Args:
            state: One of `snapshot`.
            allocation: The name of a share; None for the whole budget.

        Returns:
            The parts, which add up to the budget.
        """
        broken = self.exceeded
        if broken is None:
            return Balance.of(state, allocation)
        return Balance(total=self.budget.epsilon, spent=broken.owed, left=0.0)

    @property
    def exceeded(self) -> Exceeded | None:
        """The release outside that broke the budget; None while the budget holds."""
        return exceeded_by(self._journal.last())

    def counted_after(self, event: DpEvent, *, relation: Relation, unit: str) -> float:
        """Compute the ε that later charges would start from if `event` were charged now; nothing is written.

        It is more than `epsilon_spent` would say of a single plan, whose exact price holds while it is alone.

        Args:
            event: The release.
            relation: The relation under which the event is priced.
            unit: The unit for which it is priced; the budget's.

        Returns:
            That ε, whether the event fits or not.

        Raises:
            RelationMismatch: If relation or unit are not the budget's.
        """
        counted = counted_event(event, self.budget, relation=relation, unit=unit)
        return self.state.of_whole.counted_after(self.state.whole, counted)

    @property
    def private(self) -> bool:
        """Whether no charge was marked as made with seeded, and so predictable, noise."""
        return all(charge.private for charge in self.charges())

    @property
    def unused(self) -> bool:
        """Whether nothing was ever charged, reserved or recorded here."""
        return all(entry.kind in ("create", "allocate", "note") for entry in self._journal.entries())

    @property
    def name(self) -> str:
        return str(self._journal.first.body["name"])

    @property
    def people(self) -> float | None:
        """How many people there are, as the ledger was told when it was made."""
        people = self._journal.first.body.get("people")
        if people is not None and not (type(people) in (int, float) and 0 < people < math.inf):
            raise LedgerTampered(
                f"expected a number of people in ledger entry 0, got {people!r:.80}; it was forged"
            )
        return people

    @property
    def dataset(self) -> str | None:
        """The declared id of the data set; None where none was declared."""
        return self._journal.first.body.get("dataset")

    @property
    def place(self) -> str:
        return self._store.place

    @property
    def exported(self) -> bool:
        """Whether it is read from a file that `ledger export` wrote, and may be older than the ledger."""
        return self._store.exported

    @property
    def moved_to(self) -> str | None:
        """Where the ledger went on; None while it is open here."""
        last = self._journal.last()
        return str(last.body["to"]) if last.kind == "moved" else None

    # Entries and charges

    def entries(self) -> Iterator[Entry]:
        """Return all entries, each checked against its hash and the one before.

        Returns:
            An iterator over the entries, oldest first.

        Raises:
            LedgerTampered: If an entry does not agree with its hash.
        """
        return self._journal.entries()

    def entries_after(self, head: Head) -> Iterator[Entry]:
        """Return the entries after a known one, each checked against its hash and the one before.

        Args:
            head: The newest entry that is known.

        Returns:
            An iterator over the newer entries, oldest first.

        Raises:
            LedgerTampered: If an entry does not agree with its hash, or does not follow.
        """
        while (row := self._journal.row(head.sequence + 1)) is not None:
            for entry in linked([row], after=head):
                yield entry
                head = entry.head

    def charges(self) -> list[Charge]:
        """Return every charge, settled ones as they were settled.

        Returns:
            The charges, oldest first.
        """
        with self._journal.explained():
            return charges_of(self.entries(), unit=self.budget.unit)

    def open_reservations(self) -> list[Charge]:
        """Return every reservation that was not settled, as crashes leave them; `reservation` takes one up.

        Returns:
            The charges, oldest first.
        """
        return [charge for charge in self.charges() if not charge.settled]

    def lease(self, head: Head) -> Lease:
        """Return the lease of an open reservation: its holder and its durable steps. Nothing changes.

        Args:
            head: The entry of the reservation.

        Returns:
            The lease.
        """
        return spending.lease_of(self._journal, head)

    def settled(self, head: Head) -> tuple[Lease, Charge] | None:
        """Return the settlement of a reservation, and the lease under which it was settled. Nothing changes.

        Args:
            head: The entry of the reservation.

        Returns:
            Lease and charge; None while the reservation is open.
        """
        entry = spending.settlement_of(self._journal, head)
        if entry is None:
            return None
        charge = Charge.from_entry(entry, unit=self.budget.unit, settled=True)
        return Lease.from_json(entry.body["lease"]), charge

    def snapshot(self) -> tuple[list[Charge], State, Head]:
        """Return the charges, their sums and the head, as of one moment.

        Returns:
            The charges, their sums and the newest entry.
        """
        with self._journal.explained():
            entries = list(self.entries())
            charges = charges_of(entries, unit=self.budget.unit)
        return charges, self._journal.state(entries[-1]), entries[-1].head

    def export(self) -> dict[str, Any]:
        """Return all entries as one JSON value, with the head to check later copies against.

        Returns:
            A dictionary for `json.dumps`.
        """
        entries = list(self.entries())
        listed = [{**entry.body, "hash": entry.hash} for entry in entries]
        return {"budget": asdict(self.budget), "head": entries[-1].head.to_json(), "entries": listed}

    def certificate(
        self,
        charge: Charge,
        *,
        plan: Mapping[str, Any] | None = None,
        eta: float | None = None,
        caveats: Sequence[str] = (),
    ) -> Certificate:
        """Make the certificate of a release that was charged here.

        Args:
            charge: A charge that `charge` returned.
            plan: Settings that the certificate shall state.
            eta: η, the bound of rounding errors that the noise was scaled up for.
            caveats: Sentences that the certificate shall state.

        Returns:
            The certificate.
        """
        if charge.relation is not self.budget.relation:
            caveats = (f"the ledger counts it as {self.budget.relation}: {charge.counted}", *caveats)
        return Certificate.of(
            charge.event,
            purpose=charge.purpose,
            delta=self.budget.delta,
            unit=charge.unit,
            relation=charge.relation,
            private=charge.private,
            planned=charge.planned,
            dataset=self.dataset,
            plan=plan,
            eta=eta,
            caveats=caveats,
            head=charge.head,
            epsilon_ledger=charge.epsilon_spent,
            time=charge.time,
        )

    # Checks

    def check(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        relation: Relation,
        unit: str,
        allocation: str | None = None,
        resumable: bool = False,
    ) -> State:
        """Raise the error that `charge` would raise now, and write nothing: to refuse before long work.

        It holds nothing back: another process may spend the rest in the meantime.

        Args:
            event: The release.
            relation: The relation under which it is priced.
            unit: The unit for which it is priced.
            allocation: The name of the share it would be charged to.
            resumable: True for a run that can be resumed: a refusal then names an open reservation of the same
                plan.

        Returns:
            The sums that the ledger would then have.

        Raises:
            BudgetExceeded: If it would not fit.
        """
        state = self._journal.state(self._journal.open_last())
        try:
            return self._admitted(state, as_one(event), relation, unit, self._share(allocation))
        except BudgetExceeded as refusal:
            if not resumable:
                raise
            raise self._beside_unfinished(refusal, event, allocation) from refusal

    def first_beyond(self, requests: Sequence[ChargeRequest]) -> int | None:
        """Tell which of several charges, made one after another, would be the first to find no room.

        Nothing is written, and nothing held back: to refuse a series before its first charge.

        Args:
            requests: The releases in their order, each to be paid from the first of its allocations.

        Returns:
            The place of that charge in the series; None if there is room for all.

        Raises:
            RelationMismatch: If relation or unit of one are not the budget's.
        """
        state = self._journal.state(self._journal.open_last())
        for place, one in enumerate(requests):
            try:
                state = self._admitted(
                    state, one.event, one.relation, one.unit, self._share(one.allocations[0])
                )
            except BudgetExceeded:
                return place
        return None

    def _admitted(self, state: State, plan: DpEvent, relation: Relation, unit: str, share: str | None) -> State:
        counted = counted_event(plan, self.budget, relation=relation, unit=unit)
        return state.draw(share, plan, relation) if share in state.plans else state.admit(counted, share)

    def _beside_unfinished(
        self, refusal: BudgetExceeded, event: DpEvent | Sequence[DpEvent], allocation: str | None
    ) -> BudgetExceeded:
        """Name the newest unfinished run of the same plan and share in a refusal.

        Other plans are not named: a reader of the refusal may not be allowed to see the ledger.
        """
        wanted = [event] if isinstance(event, DpEvent) else [*event, as_one(event)]
        same = [
            charge
            for charge in self.open_reservations()
            if charge.allocation == self._share(allocation)
            and any(same_releases(charge.event, one) for one in wanted)
        ]
        if not same:
            return refusal
        return BudgetExceeded(
            f"{refusal}; entry {same[-1].head.sequence}, {same[-1].purpose!r}, holds the same plan and is not "
            "finished: if it is this run, resume its checkpoint, which costs nothing more (resume() in Python, "
            "the same --out in a command)",
            epsilon_spent=refusal.epsilon_spent,
            epsilon_left=refusal.epsilon_left,
        )

    def verify(self, *, certificate: Certificate | None = None, head: Head | None = None) -> Head:
        """Check every entry, link and sum, and that the presented entries were not lost.

        A chain that was cut off or rolled back is itself valid: only a certificate or a head that was noted
        elsewhere shows it.

        Args:
            certificate: A certificate whose charge must be in the ledger.
            head: An entry that must be in the ledger.

        Returns:
            The newest entry.

        Raises:
            LedgerTampered: If something does not agree.
        """
        with self._journal.explained():
            entries = list(self.entries())
        if not entries:
            raise LedgerTampered(f"the ledger {self.place} has lost its entries")
        try:
            charges_of(entries, unit=self.budget.unit)
            replay(self.budget, entries)
        except (KeyError, TypeError, ValueError, NotPrivate, RelationMismatch) as error:
            raise LedgerTampered(
                f"the ledger {self.place} holds an entry that makes no sense: {error}"
            ) from error
        self._check_newest(certificate, head)
        return entries[-1].head

    def check_head(self, head: Head) -> None:
        """Raise LedgerTampered unless the ledger holds the entry that `head` names.

        Args:
            head: The entry.
        """
        self._journal.holding(head)

    def check_unit(self, unit: str) -> None:
        """Refuse to have anything priced for another unit than the budget's.

        Args:
            unit: The unit of a release.
        """
        check_unit(unit, self.budget)

    def check_dataset(self, dataset: str | None) -> None:
        """Refuse a data set other than the one that this ledger names.

        Args:
            dataset: The declared id, or None if nothing is declared.
        """
        if dataset is not None and (self.dataset is None or known_as(dataset) != known_as(self.dataset)):
            raise LedgerError(
                f"expected dataset={self.dataset!r}, which the ledger {self.place} is for, got "
                f"dataset={dataset!r}; one data set has one ledger, so use that one"
            )

    def _check_newest(self, certificate: Certificate | None, head: Head | None) -> None:
        if head is not None:
            self._journal.holding(head)
        if certificate is None:
            return
        if certificate.head is None:
            raise InvalidInput(
                "expected a certificate that names a ledger entry, got one of an unrecorded release"
            )
        if certificate.dataset is not None and certificate.dataset != self.dataset:
            raise LedgerTampered(
                f"the certificate is of another ledger, of dataset={certificate.dataset!r}; the ledger "
                f"{self.place} is of dataset={self.dataset!r}"
            )
        entry = self._journal.holding(certificate.head)
        check_agreement(certificate, entry, self.budget, dataset=self.dataset)

    def _share(self, allocation: str | None) -> str | None:
        return self.allocation if allocation is None else allocation

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
