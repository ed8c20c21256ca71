"""A ledger as anybody may read it: figures, charges, certificates and checks. Nothing here writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from sfumato.accounting import DpEvent, Relation
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerError, LedgerTampered
from sfumato.ledger.agreement import check_agreement
from sfumato.ledger.balance import Balance
from sfumato.ledger.certificate import Certificate
from sfumato.ledger.chain import Entry, Head, check_follows, unseal
from sfumato.ledger.charge import Charge, ChargeRequest, as_one, charges_of
from sfumato.ledger.charge_text import charges_in
from sfumato.ledger.conversion import check_unit, counted_event
from sfumato.ledger.dataset_id import known_as
from sfumato.ledger.exceeded import Exceeded, exceeded_by
from sfumato.ledger.journal import Journal
from sfumato.ledger.lease import Lease
from sfumato.ledger.replay import replay
from sfumato.ledger.settling import lease_of, settlement_of
from sfumato.ledger.state import State
from sfumato.ledger.store import Store
from sfumato.ledger.unfinished import pointing_at


class Book:
    """What can be read of a ledger; `Ledger` is one that can be charged.

    Attributes:
        budget: What all charges together may cost.
        allocation: The share of the budget that `epsilon_left` speaks of; None for what no share holds.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.budget = journal.budget
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
        """ε at the budget's δ of all that was charged, under the ledger's rule."""
        broken = self.exceeded
        return self.state.spent if broken is None else broken.owed

    @property
    def epsilon_left(self) -> float:
        """The largest further pure-ε charge that would be accepted, from the share that this object spends."""
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
        """What was released outside and broke the budget; None while the budget holds."""
        return exceeded_by(self._journal.last())

    def counted_after(self, event: DpEvent, *, relation: Relation, unit: str) -> float:
        """ε that later charges would start from if `event` were charged now; nothing is written.

        It is more than `epsilon_spent` would say of a single plan, whose exact price holds while it is alone.

        Args:
            event: What would be released.
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
        """All entries, each checked against its hash and the one before.

        Returns:
            An iterator over the entries, oldest first.

        Raises:
            LedgerTampered: If an entry does not agree with its hash.
        """
        return self._journal.entries()

    def entries_after(self, head: Head) -> Iterator[Entry]:
        """The entries that followed one that is known, each checked against its hash and the one before.

        Args:
            head: The newest entry that is known.

        Returns:
            An iterator over the newer entries, oldest first.

        Raises:
            LedgerTampered: If an entry does not agree with its hash, or does not follow.
        """
        while (row := self._store.row(head.sequence + 1)) is not None:
            entry = unseal(row)
            check_follows(entry.sequence, entry.body["previous"], head.sequence, head.hash)
            yield entry
            head = entry.head

    def charges(self) -> list[Charge]:
        """Every charge with what it was settled to.

        Returns:
            The charges, oldest first.
        """
        with self._journal.explained():
            return charges_in(self._store.rows(), unit=self.budget.unit)

    def open_reservations(self) -> list[Charge]:
        """Every reservation that was not settled, as crashes leave them; `reservation` takes one up.

        Returns:
            The charges, oldest first.
        """
        return [charge for charge in self.charges() if not charge.settled]

    def lease(self, head: Head) -> Lease:
        """Who holds an open reservation, and what of it is durable; changes nothing.

        Args:
            head: The entry of the reservation.

        Returns:
            The lease.
        """
        return lease_of(self._journal, head)

    def settled(self, head: Head) -> tuple[Lease, Charge] | None:
        """What a reservation was settled to, and the lease under which it was; changes nothing.

        Args:
            head: The entry of the reservation.

        Returns:
            Lease and charge; None while the reservation is open.
        """
        entry = settlement_of(self._journal, head)
        if entry is None or entry.body.get("lease") is None:
            return None
        charge = Charge.from_entry(entry, unit=self.budget.unit, settled=True)
        return Lease.from_json(entry.body["lease"]), charge

    def snapshot(self) -> tuple[list[Charge], State, Head]:
        """The charges, what they add up to and the head, as of one moment.

        Returns:
            The charges, their sums and the newest entry.
        """
        rows = list(self._store.rows())
        with self._journal.explained():
            charges = charges_in(rows, unit=self.budget.unit)
            last = unseal(rows[-1])
        return charges, self._journal.state(last), last.head

    def export(self) -> dict[str, Any]:
        """Everything as one JSON value, with the head to check later copies against.

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
        """The certificate of a release that was charged here.

        Args:
            charge: What `charge` gave.
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
    ) -> None:
        """Raise what `charge` would raise now, and write nothing: to refuse before work that takes long.

        It holds nothing back: another process may spend what is left in the meantime.

        Args:
            event: What would be released.
            relation: The relation under which it is priced.
            unit: The unit for which it is priced.
            allocation: The name of the share it would be charged to.

        Raises:
            BudgetExceeded: If it would not fit.
        """
        self._after(event, relation, unit, self._share(allocation))

    def left_after(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        relation: Relation,
        unit: str,
        allocation: str | None = None,
    ) -> float:
        """Tell what `epsilon_left` would be if `charge` were called now, and write nothing.

        Args:
            event: What would be released.
            relation: The relation under which it is priced.
            unit: The unit for which it is priced.
            allocation: The name of the share it would be charged to.

        Returns:
            The largest further pure-ε charge that would then be accepted.

        Raises:
            BudgetExceeded: If it would not fit.
        """
        share = self._share(allocation)
        return self._after(event, relation, unit, share).left(share)

    def first_beyond(self, requests: Sequence[ChargeRequest]) -> int | None:
        """Tell which of several charges, made one after another, would be the first to find no room.

        Nothing is written, and nothing held back: to refuse a series before its first charge.

        Args:
            requests: What would be charged, in this order, each from the first of its allocations.

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

    def left_after_record(self, event: DpEvent, *, relation: Relation, unit: str) -> float | None:
        """Tell what `epsilon_left` would be if `record` were called now, and write nothing.

        Args:
            event: What was released outside.
            relation: The relation under which it is priced.
            unit: The unit for which it is priced.

        Returns:
            The largest further pure-ε charge that would then be accepted; None where `record` would close the
            ledger.

        Raises:
            RelationMismatch: If relation or unit are not the budget's.
        """
        counted = counted_event(event, self.budget, relation=relation, unit=unit)
        after = self._journal.state(self._journal.open_last()).take(counted)
        return None if after is None else after.left(self.allocation)

    def _after(
        self, event: DpEvent | Sequence[DpEvent], relation: Relation, unit: str, share: str | None
    ) -> State:
        state = self._journal.state(self._journal.open_last())
        return self._admitted(state, as_one(event), relation, unit, share)

    def _admitted(self, state: State, plan: DpEvent, relation: Relation, unit: str, share: str | None) -> State:
        counted = counted_event(plan, self.budget, relation=relation, unit=unit)
        return state.draw(share, plan, relation) if share in state.plans else state.admit(counted, share)

    def check_run(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        relation: Relation,
        unit: str,
        allocation: str | None = None,
    ) -> None:
        """As `check`, for a run that can be resumed: a refusal names the same plan if it is reserved already.

        Args:
            event: What would be released.
            relation: The relation under which it is priced.
            unit: The unit for which it is priced.
            allocation: The name of the share it would be charged to.

        Raises:
            BudgetExceeded: If it would not fit.
        """
        try:
            self.check(event, relation=relation, unit=unit, allocation=allocation)
        except BudgetExceeded as refusal:
            raise self._beside_unfinished(refusal, event, allocation) from refusal

    def _beside_unfinished(
        self, refusal: BudgetExceeded, event: DpEvent | Sequence[DpEvent], allocation: str | None
    ) -> BudgetExceeded:
        wanted = [event] if isinstance(event, DpEvent) else [*event, as_one(event)]
        return pointing_at(refusal, wanted, self.charges(), self._share(allocation))

    def verify(self, *, certificate: Certificate | None = None, head: Head | None = None) -> Head:
        """Check every entry, link and sum; and that nothing newer than what is presented was lost.

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
            replay(self.budget, entries, fine=self._journal.fine)
        except (KeyError, TypeError, ValueError) as error:
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
