"""The ledger: one data set's privacy budget, kept across runs, processes and crashes."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from sfumato import _validate
from sfumato.accounting import (
    Budget,
    DpEvent,
    NoEvent,
    Relation,
    compose,
    event_from_json,
    event_to_json,
)
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerError, LedgerTampered, Refused, RelationMismatch
from sfumato.ledger.agreement import check_agreement
from sfumato.ledger.certificate import Certificate
from sfumato.ledger.chain import Entry, Head, Row, linked, seal, unseal
from sfumato.ledger.charge import Charge, ChargeRequest, charges_of, check_text
from sfumato.ledger.charge_text import charges_in
from sfumato.ledger.conversion import check_unit, counted_event
from sfumato.ledger.exceeded import KIND as EXCEEDED
from sfumato.ledger.exceeded import Exceeded, exceeded_by
from sfumato.ledger.lease import Lease, first_lease
from sfumato.ledger.replay import replay
from sfumato.ledger.reservation import Reservation, settlement_body
from sfumato.ledger.rule import Tally
from sfumato.ledger.state import State
from sfumato.ledger.store import Store, store_at

FORMAT = 3
READABLE = (1, 2, 3)
"""Format 1 had no leases and named no data set; up to format 2 the filter counts by fewer orders."""
_FINE_SINCE = 3


class Ledger:
    """Append-only charges against one budget, hash-chained, safe for many processes.

    Charge *before* anything is computed: a crash then leaves the amount spent, and nothing is ever released
    that is not on record. Into an empty ledger one plan (or a list charged at once) fits if its exact ε fits;
    everything later must pass the privacy filter, counted from the start.

    A file that was put back from a backup has a valid chain and has forgotten the newest charges. Open it with
    the newest certificate or the newest noted `head`, and it is refused if it is older.

    Args:
        store: Where entries are kept. Use `Ledger.open` or `Ledger.create`, which choose one.

    >>> import tempfile; from sfumato.accounting import LaplaceEvent
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.open(f"{folder.name}/survey.db", budget=Budget(epsilon=1))
    >>> charge = ledger.charge(
    ...     LaplaceEvent(noise_multiplier=4), purpose="mean age", relation=Relation.ADD_REMOVE, unit="record"
    ... )
    >>> ledger.epsilon_spent, ledger.epsilon_left
    (0.25, 0.75)
    >>> ledger.close(); folder.cleanup()
    """

    spent_here = False
    """Whether this process has charged anything in any ledger, or goes on with what was reserved in one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        first = store.row(0)
        if first is None:
            raise _absent(store.place)
        self._first = unseal(first)
        if self._first.body.get("format") not in READABLE:
            raise LedgerError(f"{store.place} has a format this version cannot read; use a newer sfumato")
        self.budget = Budget(**self._first.body["budget"])
        self._fine = self._first.body["format"] >= _FINE_SINCE
        self.allocation: str | None = None
        self._purpose: str | None = None
        self._newest: tuple[Row, Entry, State] | None = None  # as long as the store's newest row is this one

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        budget: Budget | None = None,
        *,
        dataset: str | None = None,
        certificate: Certificate | None = None,
        head: Head | None = None,
    ) -> Ledger:
        """Open the ledger at a path or a postgresql:// URL; make it with `budget` if there is none.

        Args:
            place: A file name, or a postgresql:// URL.
            budget: The budget of a new ledger. One that exists must have the same; None takes what it has.
            dataset: The declared id of the data set that the budget is for; a ledger of another one is
                refused.
            certificate: The newest certificate from this ledger: a ledger that has forgotten its charge is
                refused.
            head: The newest entry that was noted elsewhere, with the same effect.

        Returns:
            The open ledger; `with` closes it.

        Raises:
            LedgerError: If there is none and no budget was given, or if it cannot be opened.
            LedgerTampered: If its chain is broken, or older than `certificate` or `head`.
        """
        store = store_at(place)
        if store.last() is None:
            if budget is None:
                raise _absent(store.place)
            _make(store, budget, dataset)
        ledger = cls(store)
        ledger.check_dataset(dataset)
        if budget is not None and budget != ledger.budget:
            raise _other_budget(store.place, ledger.budget, budget)
        ledger._check_newest(certificate, head)
        return ledger

    @classmethod
    def create(cls, place: str | os.PathLike[str], budget: Budget, *, dataset: str | None = None) -> Ledger:
        """Make a new ledger where there is none yet.

        Args:
            place: A file name, or a postgresql:// URL.
            budget: What all charges together may cost.
            dataset: A declared id of the data set, such as "clinic-2026".

        Returns:
            The open ledger.

        Raises:
            LedgerError: If there is one already.
        """
        store = store_at(place)
        if store.last() is not None or not _make(store, budget, dataset):
            raise LedgerError(f"expected no ledger at {store.place}, got one; open it, or choose another place")
        return cls(store)

    # Copies: scikit-learn clones what an estimator is given, and sends it to other processes

    def __copy__(self) -> Ledger:
        """The ledger itself: a second one beside it would be a second budget."""
        return self

    def __deepcopy__(self, memo: object) -> Ledger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By its address: in another process it is opened again, and must be at least as new."""
        if not os.path.isfile(self._store.address):
            raise InvalidInput(
                f"expected a ledger in a file to be sent to another process, got {self._store.address}; "
                "open it there by its address, which may hold a password"
            )
        return _reopened, (self._store.address, self.head)

    # Spending

    def spend_under(self, allocation: str | None = None, *, purpose: str | None = None) -> Ledger:
        """Have every later charge of this object come from a share of the budget, and say what it is for.

        Whatever is handed the ledger then spends from that share, unless a charge itself names another.

        Args:
            allocation: The name of a share that `allocate` set aside; None for what no share holds.
            purpose: Put before what each charge says of itself; None for nothing.

        Returns:
            The ledger itself.

        Raises:
            InvalidInput: If the budget has no share of that name.
        """
        if allocation is not None:
            self.state.left(allocation)  # raises for one that is not there
        self.allocation = allocation
        self._purpose = None if purpose is None else check_text("purpose", purpose)
        return self

    def charge(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        purpose: str,
        relation: Relation,
        unit: str,
        allocation: str | None = None,
        private: bool = True,
    ) -> Charge:
        """Spend for good, or raise BudgetExceeded and write nothing; a list is charged as one plan.

        A list is charged as one plan. Add-remove is converted to replace-one; any other difference from the
        budget's relation or unit is refused.

        Args:
            event: What will be released, or several releases that are fixed in advance.
            purpose: One line for the ledger's readers.
            relation: The relation under which the event is priced.
            unit: The unit for which it is priced; the budget's.
            allocation: The name of the share to charge, if shares were set aside.
            private: False for a run whose noise was seeded.

        Returns:
            The charge, with its place in the ledger.

        Raises:
            BudgetExceeded: If it does not fit. Nothing is written.
            RelationMismatch: If relation or unit are not the budget's.
        """
        return self.pay(
            ChargeRequest(
                event=_one(event),
                purpose=purpose,
                relation=relation,
                unit=unit,
                allocations=(allocation,),
                private=private,
            )
        )

    def pay(self, request: ChargeRequest) -> Charge:
        """Spend for one request; `charge` does it through this method.

        Args:
            request: What is to be charged.

        Returns:
            The charge, with its place in the ledger.

        Raises:
            BudgetExceeded: If it does not fit. Nothing is written.
            RelationMismatch: If relation or unit are not the budget's.
        """
        (found,) = self.charge_each([request])
        if isinstance(found, BudgetExceeded):
            raise found
        return found

    def charge_each(self, requests: Sequence[ChargeRequest]) -> list[Charge | BudgetExceeded]:
        """Spend for several requests in one transaction: each is admitted or refused as if it came by itself.

        They are admitted in their order, each against all before it, as by calls of `charge` one after another.
        What this gives back is on disk, for all of them; before that nobody has any of the charges.

        Args:
            requests: What is to be charged. Each pays from the first of its allocations that has room.

        Returns:
            For each request its charge, or why it was refused.

        Raises:
            RelationMismatch: If relation or unit of one are not the budget's. Nothing is written.
        """
        wanted = []
        for one in requests:
            counted = counted_event(one.event, self.budget, relation=one.relation, unit=one.unit)
            words = (one.relation, one.private)
            bodies = [
                self._body("charge", one.event, counted, one.purpose, allocation, *words)
                for allocation in one.allocations
            ]
            wanted.append((bodies, counted))
        return [
            Charge.from_entry(found, unit=one.unit, settled=True) if isinstance(found, Entry) else found
            for one, found in zip(requests, self._spend_each(wanted), strict=True)
        ]

    def record(self, event: DpEvent, *, purpose: str, relation: Relation, unit: str) -> Charge | None:
        """Enter a release that has happened already, outside the ledger; it is charged, or closes the ledger.

        What was released cannot be refused any more. It counts against the whole budget and what no share
        claims, also where shares claim everything; no plan pays for it. Where the whole budget has no room, an
        entry says so and nothing can be charged after it: the promise of this budget is broken, and the ledger
        shows by how much.

        Args:
            event: What was released.
            purpose: One line for the ledger's readers.
            relation: The relation under which the event is priced.
            unit: The unit for which it is priced; the budget's.

        Returns:
            The charge; None where it did not fit and the ledger was closed.

        Raises:
            RelationMismatch: If relation or unit are not the budget's.
        """
        counted = counted_event(event, self.budget, relation=relation, unit=unit)
        body = self._body(EXCEEDED, event, counted, purpose, None, relation, True) | {"allocation": None}
        self._state(_open(self._last())).take(counted)  # prices it before others have to wait
        with self._writing() as last:
            before = self._state(last)
            after = before.take(counted)
            Ledger.spent_here = True
            if after is None:
                owed = before.of_whole.owed(before.whole, counted)
                self._append({**body, "owed": owed if math.isfinite(owed) else None}, before, last)
                return None
            price = {name: tally.to_json() for name, tally in before.price(counted, None).items()}
            entry = self._append({**body, "kind": "charge", "outside": True, "price": price}, after, last)
        return Charge.from_entry(entry, unit=unit, settled=True)

    def prepay(
        self,
        name: str,
        event: DpEvent | Sequence[DpEvent],
        *,
        purpose: str,
        relation: Relation,
        unit: str,
        allocation: str | None = None,
    ) -> Charge:
        """Charge a plan of releases as one, and keep it under a name that later releases are drawn from.

        It costs its exact price where it is the first charge, which is less than its releases one by one. A
        charge with `allocation=name` then costs nothing, as long as the plan still holds a release with exactly
        that noise.

        Args:
            name: How later charges name the plan, as they name a share.
            event: All its releases.
            purpose: One line for the ledger's readers.
            relation: The relation under which the releases are priced; the budget's.
            unit: The unit for which they are priced; the budget's.
            allocation: The share to charge, if shares were set aside.

        Returns:
            The charge.

        Raises:
            BudgetExceeded: If it does not fit. Nothing is written.
        """
        plan, name = _one(event), check_text("name", name)
        if Relation(relation) is not self.budget.relation:
            raise RelationMismatch(
                f"expected a plan priced under {self.budget.relation}, as the budget is, got {relation}; "
                f"charge it to a ledger of its own, made with --relation {relation}"
            )
        counted = counted_event(plan, self.budget, relation=relation, unit=unit)
        body = self._body("charge", plan, counted, purpose, allocation, relation, True)
        entry = self._spend({**body, "plan": name}, counted)
        return Charge.from_entry(entry, unit=unit, settled=True)

    def pay_for(
        self,
        event: DpEvent,
        *,
        purpose: str,
        relation: Relation,
        unit: str,
        private: bool = True,
        plan: Mapping[str, Any] | None = None,
        eta: float | None = None,
        caveats: Sequence[str] = (),
    ) -> Certificate:
        """Charge one release for good, before it is computed, and give its certificate.

        Args:
            event: What will be released.
            purpose: One line for the ledger's readers.
            relation: The relation under which the event is priced.
            unit: The unit for which it is priced.
            private: False for a run whose noise was seeded.
            plan: Settings that the certificate shall state.
            eta: η, the bound of rounding errors that the noise was scaled up for.
            caveats: Sentences that the certificate shall state.

        Returns:
            The certificate, to be put beside the release.

        Raises:
            BudgetExceeded: If it does not fit. Nothing is written.
        """
        charge = self.charge(event, purpose=purpose, relation=relation, unit=unit, private=private)
        return self.certificate(charge, plan=plan, eta=eta, caveats=caveats)

    def reserve(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        purpose: str,
        relation: Relation,
        unit: str,
        allocation: str | None = None,
        private: bool = True,
        begun: bool = True,
    ) -> Reservation:
        """Like `charge`, but what provably did not run can be given back by `settle`.

        Args:
            event: All that may be released.
            purpose: One line for the ledger's readers.
            relation: The relation under which the event is priced.
            unit: The unit for which it is priced.
            allocation: The name of the share to charge, if shares were set aside.
            private: False for a run whose noise was seeded.
            begun: False promises to call `begin` before a row is touched. Until then `give_back` can undo
                the reservation, from any process.

        Returns:
            The reservation, to be settled.

        Raises:
            BudgetExceeded: If it does not fit. Nothing is written.
        """
        return self.hold(
            ChargeRequest(
                event=_one(event),
                purpose=purpose,
                relation=relation,
                unit=unit,
                allocations=(allocation,),
                private=private,
            ),
            begun=begun,
        )

    def hold(self, request: ChargeRequest, *, begun: bool = True) -> Reservation:
        """Reserve for one request; `reserve` does it through this method.

        Args:
            request: What is to be reserved, from one allocation.
            begun: As in `reserve`.

        Returns:
            The reservation, to be settled.

        Raises:
            BudgetExceeded: If it does not fit. Nothing is written.
        """
        (allocation,) = request.allocations
        words = (request.purpose, allocation, request.relation, request.private)
        counted = counted_event(request.event, self.budget, relation=request.relation, unit=request.unit)
        lease = Lease(begun=bool(begun), private=bool(request.private))
        body = self._body("reserve", request.event, counted, *words)
        entry = self._spend({**body, "lease": lease.to_json()}, counted)
        return Reservation(self, Charge.from_entry(entry, unit=request.unit, settled=False), lease)

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
        plan, share = _one(event), self._share(allocation)
        counted = counted_event(plan, self.budget, relation=relation, unit=unit)
        state = self._state(_open(self._last()))
        if share in state.plans:
            state.draw(share, plan, relation)
        else:
            state.admit(counted, share)

    # Reservations of other processes

    def lease(self, head: Head) -> Lease:
        """Who holds an open reservation, and what of it is durable; changes nothing.

        Args:
            head: The entry of the reservation.

        Returns:
            The lease.
        """
        return self._lease_of(head)

    def reservation(self, head: Head, *, seen: Lease | None = None, private: bool = True) -> Reservation:
        """Take an open reservation up, to go on with and settle; whoever held it before no longer does.

        Args:
            head: The entry of the reservation.
            seen: The lease on which the decision was based; if it has changed since, nothing is done.
            private: False says that the noise from here on is seeded: the run is then never private again.

        Returns:
            The reservation, held by this process.

        Raises:
            LedgerError: If it is settled, or changed since it was seen.
        """
        with self._writing() as last:
            before = self._lease_of(head)
            if seen is not None and seen != before:
                raise LedgerError(
                    f"expected the lease of entry {head.sequence} as it was seen, got a newer one; another "
                    "process goes on with the run: let it finish, or look again"
                )
            lease = before.taken_up(private=private)
            Ledger.spent_here = True
            self._append_about(head, "lease", lease, last)
        charge = Charge.from_entry(self._check_holds(head), unit=self.budget.unit, settled=False)
        return Reservation(self, charge, lease)

    def open_reservations(self) -> list[Charge]:
        """Every reservation that was not settled, as crashes leave them; `reservation` takes one up.

        Returns:
            The charges, oldest first.
        """
        return [charge for charge in self.charges() if not charge.settled]

    def give_back(self, entry: int) -> Charge:
        """Undo a reservation under which provably nothing ran: made with `begun=False`, and never begun.

        A process that was about to begin is refused when it does.

        Args:
            entry: The number of the reservation's entry.

        Returns:
            The charge, now settled to nothing.

        Raises:
            Refused: If something may have run.
        """
        with self._writing() as last:
            row = self._store.row(_validate.integer("entry", entry))
            if row is None:
                raise InvalidInput(f"expected an entry up to {last.sequence}, got entry={entry}")
            head = unseal(row).head
            lease = self._lease_of(head)
            if lease.begun:
                raise Refused(
                    f"expected a reservation that was never begun, got entry {entry}: rows may have been "
                    "touched under it, so it stays spent; resume its run, which settles what it did not use"
                )
            lease = lease.taken_up(private=True)
            settled = self._append_settlement(head, lease, NoEvent(), NoEvent(), last)
        return Charge.from_entry(settled, unit=self.budget.unit, settled=True)

    def allocate(self, name: str, epsilon: float) -> None:
        """Set a share of the budget's ε aside for charges under `name`, which may spend no more than that.

        Args:
            name: How charges name the share.
            epsilon: Its size.

        Raises:
            InvalidInput: If the name has a share, or so much is not left.
        """
        self.allocate_all({name: epsilon})

    def allocate_all(self, shares: Mapping[str, float], *, purpose: str | None = None) -> None:
        """Set several shares aside at once, or none of them.

        Args:
            shares: The size of each, by name.
            purpose: One line for the ledger's readers, such as who approved it and why.

        Raises:
            InvalidInput: If a name has a share, or so much is not left. Nothing is written.
        """
        said = {} if purpose is None else {"purpose": check_text("purpose", purpose)}
        sizes = {check_text("name", name): _validate.positive("epsilon", size) for name, size in shares.items()}
        with self._writing() as last:
            for name, size in sizes.items():
                state = self._state(last).allocate(name, size)
                last = self._append(
                    {"kind": "allocate", "allocation": name, "epsilon": size, **said}, state, last
                )

    def note(self, text: str) -> Head:
        """Write a line that costs nothing, such as a decision, into the chain.

        Args:
            text: The line.

        Returns:
            Its entry.
        """
        text = check_text("text", text)
        with self._writing() as last:
            return self._append({"kind": "note", "text": text}, self._state(last), last).head

    # Reading

    @property
    def head(self) -> Head:
        """The newest entry; noted down elsewhere, it shows a later roll-back."""
        return self._last().head

    @property
    def state(self) -> State:
        return self._state(self._last())

    @property
    def epsilon_spent(self) -> float:
        """ε at the budget's δ of all that was charged, under the ledger's rule."""
        broken = self.exceeded
        return self.state.spent if broken is None else broken.owed

    @property
    def exceeded(self) -> Exceeded | None:
        """What was released outside and broke the budget; None while the budget holds."""
        return exceeded_by(self._last())

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
    def epsilon_left(self) -> float:
        """The largest further pure-ε charge that would be accepted, from the share that this object spends."""
        return 0.0 if self.exceeded is not None else self.state.left(self.allocation)

    @property
    def private(self) -> bool:
        """Whether no charge was marked as made with seeded, and so predictable, noise."""
        return all(charge.private for charge in self.charges())

    @property
    def name(self) -> str:
        return str(self._first.body["name"])

    @property
    def dataset(self) -> str | None:
        """The declared id of the data set; None where none was declared."""
        return self._first.body.get("dataset")

    @property
    def place(self) -> str:
        return self._store.place

    @property
    def moved_to(self) -> str | None:
        """Where the ledger went on; None while it is open here."""
        last = self._last()
        return str(last.body["to"]) if last.kind == "moved" else None

    def entries(self) -> Iterator[Entry]:
        """All entries, each checked against its hash and the one before.

        Returns:
            An iterator over the entries, oldest first.

        Raises:
            LedgerTampered: If an entry does not agree with its hash.
        """
        return linked(self._store.rows())

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
            if entry.body["previous"] != head.hash:
                raise LedgerTampered(f"ledger entry {entry.sequence} does not follow entry {head.sequence}")
            yield entry
            head = entry.head

    def charges(self) -> list[Charge]:
        """Every charge with what it was settled to.

        Returns:
            The charges, oldest first.
        """
        return charges_in(self._store.rows(), unit=self.budget.unit)

    def snapshot(self) -> tuple[list[Charge], State, Head]:
        """The charges, what they add up to and the head, as of one moment.

        Returns:
            The charges, their sums and the newest entry.
        """
        rows = list(self._store.rows())
        charges = charges_in(rows, unit=self.budget.unit)
        last = unseal(rows[-1])
        return charges, self._state(last), last.head

    def export(self) -> dict[str, Any]:
        """Everything as one JSON value, with the head to check later copies against.

        Returns:
            A dictionary for `json.dumps`.
        """
        entries = list(self.entries())
        listed = [{**entry.body, "hash": entry.hash} for entry in entries]
        return {"budget": asdict(self.budget), "head": entries[-1].head.to_json(), "entries": listed}

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
        entries = list(self.entries())
        if not entries:
            raise LedgerTampered(f"the ledger {self.place} has lost its entries")
        try:
            charges_of(entries, unit=self.budget.unit)
            replay(self.budget, entries, fine=self._fine)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTampered(
                f"the ledger {self.place} holds an entry that makes no sense: {error}"
            ) from error
        self._check_newest(certificate, head)
        return entries[-1].head

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

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside

    def check_head(self, head: Head) -> None:
        """Raise LedgerTampered unless the ledger holds the entry that `head` names.

        Args:
            head: The entry.
        """
        self._check_holds(head)

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
        if dataset is not None and dataset != self.dataset:
            raise LedgerError(
                f"expected dataset={self.dataset!r}, which the ledger {self.place} is for, got "
                f"dataset={dataset!r}; one data set has one ledger, so use that one"
            )

    def _share(self, allocation: str | None) -> str | None:
        return self.allocation if allocation is None else allocation

    def _body(
        self,
        kind: str,
        plan: DpEvent,
        counted: DpEvent,
        purpose: str,
        allocation: str | None,
        relation: Relation,
        private: bool,
    ) -> dict[str, Any]:
        purpose = purpose if self._purpose is None else f"{self._purpose}: {purpose}"
        return {
            "kind": kind,
            "purpose": check_text("purpose", purpose),
            "allocation": self._share(allocation),
            "private": bool(private),
            "event": event_to_json(plan),
            "counted": event_to_json(counted),
            "relation": str(Relation(relation)),
        }

    def _spend(self, body: dict[str, Any], counted: DpEvent) -> Entry:
        (found,) = self._spend_each([([body], counted)])
        if isinstance(found, BudgetExceeded):
            raise found
        return found

    def _spend_each(
        self, wanted: Sequence[tuple[Sequence[dict[str, Any]], DpEvent]]
    ) -> list[Entry | BudgetExceeded]:
        """One entry for each event, by the first of its bodies that fits."""
        # Refusals need no lock: the state read here was the newest at that moment. It also prices the events,
        # which takes long for a first plan, before others have to wait.
        now = self._state(_open(self._last()))
        refused = [_first_fitting(now, bodies, counted) for bodies, counted in wanted]
        if all(isinstance(one, BudgetExceeded) for one in refused):
            return [one for one in refused if isinstance(one, BudgetExceeded)]
        found: list[Entry | BudgetExceeded] = []
        with self._writing() as last:
            for early, (bodies, counted) in zip(refused, wanted, strict=True):
                before = self._state(last)
                fitting = (
                    early if isinstance(early, BudgetExceeded) else _first_fitting(before, bodies, counted)
                )
                if isinstance(fitting, BudgetExceeded):
                    found.append(fitting)
                    continue
                body, after = fitting
                drawn = body["allocation"] in before.plans
                prices = {} if drawn else before.price(counted, body["allocation"])
                price = {name: tally.to_json() for name, tally in prices.items()}
                Ledger.spent_here = True
                last = self._append({**body, **({"drawn": True} if drawn else {}), "price": price}, after, last)
                found.append(last)
        return found

    @contextmanager
    def _writing(self) -> Iterator[Entry]:
        """Alone among all processes, with the newest entry."""
        with self._store.transaction():
            yield _open(self._last())

    def _close_for(self, address: str) -> None:
        """End the ledger here, as it goes on at `address`; nothing more if that was done before."""
        with self._store.transaction():
            last = self._last()
            if last.kind != "moved" or last.body["to"] != address:
                self._append({"kind": "moved", "to": address}, self._state(_open(last)), last)

    def _lease_of(self, head: Head) -> Lease:
        """The newest lease of an open reservation."""
        reserved = self._check_holds(head)
        if reserved.kind != "reserve" or self._store.settlement(head.sequence) is not None:
            raise LedgerError(
                f"expected an open reservation at entry {head.sequence}, got one that was settled already or "
                "given back, or another entry; reserve anew"
            )
        row = self._store.newest_about(head.sequence)
        if row is not None:
            return Lease.from_json(unseal(row).body["lease"])
        lease = first_lease(reserved)
        return lease if "lease" in reserved.body else replace(lease, steps=self._marked_in_format_1(head))

    def _marked_in_format_1(self, head: Head) -> int:
        marks = (entry.body for entry in self.entries() if entry.kind == "mark")
        return max((body["steps"] for body in marks if body.get("marks") == head.sequence), default=0)

    def _append_about(self, head: Head, kind: str, lease: Lease, last: Entry) -> None:
        body = {"kind": kind, "about": head.sequence, "lease": lease.to_json()}
        self._append(body, self._state(last), last)

    def _append_settlement(
        self, head: Head, lease: Lease, ran: DpEvent, counted: DpEvent, last: Entry
    ) -> Entry:
        reserved = self._check_holds(head)
        before, allocation = self._state(last), reserved.body["allocation"]
        if reserved.body.get("drawn"):  # paid with its plan: what did not run is not given back
            return self._append(settlement_body(reserved, lease, ran, counted, {}), before, last)
        prices = before.price(counted, allocation)
        held = {name: Tally.from_json(tally) for name, tally in reserved.body["price"].items()}
        if not all(prices[name] <= held[name] for name in held):
            # A conversion may round up; never above the reserved.
            counted, prices = event_from_json(reserved.body["counted"]), held
        same = event_to_json(counted) == reserved.body["counted"]
        state = before if same else before.lower(held, counted, allocation)
        return self._append(settlement_body(reserved, lease, ran, counted, prices), state, last)

    def _append(self, body: Mapping[str, Any], state: State, last: Entry) -> Entry:
        stamp = {"time": _now(), "epsilon_spent": state.spent, "state": state.to_json()}
        entry, row = seal({**body, **stamp}, after=last.head)
        self._store.append(row)
        self._newest = row, entry, state
        return entry

    def _last(self) -> Entry:
        row, known = self._store.last(), self._newest
        if row is None:
            raise LedgerTampered(f"the ledger {self.place} has lost its entries")
        if known is None or known[0] != row:
            entry = unseal(row)
            self._newest = known = row, entry, self._read_state(entry)
        return known[1]

    def _state(self, entry: Entry) -> State:
        known = self._newest
        return known[2] if known is not None and known[1] is entry else self._read_state(entry)

    def _read_state(self, entry: Entry) -> State:
        return State.from_json(self.budget, entry.body["state"], fine=self._fine)

    def _check_newest(self, certificate: Certificate | None, head: Head | None) -> None:
        if head is not None:
            self._check_holds(head)
        if certificate is None:
            return
        if certificate.head is None:
            raise InvalidInput(
                "expected a certificate that names a ledger entry, got one of an unrecorded release"
            )
        entry = self._check_holds(certificate.head)
        check_agreement(certificate, entry, self.budget, dataset=self.dataset)

    def _check_holds(self, head: Head) -> Entry:
        row = self._store.row(head.sequence)
        if row is None:
            raise LedgerTampered(
                f"the ledger {self.place} has lost entry {head.sequence}: it was cut off, or is an older copy; "
                "restore the newest one"
            )
        entry = unseal(row)
        if entry.hash != head.hash:
            raise LedgerTampered(
                f"entry {head.sequence} of the ledger {self.place} is not the one expected: it is another "
                "ledger, or was rolled back and written again"
            )
        return entry


def _make(store: Store, budget: Budget, dataset: str | None) -> bool:
    """Write the first entry, unless another process just did."""
    if dataset is not None:
        _refuse_second(store, dataset)
    return store.create([_first_row(budget, dataset)])


def _refuse_second(store: Store, dataset: str) -> None:
    """Two budgets for one data set add up unseen; where their ledgers lie side by side, it shows."""
    for place, row in store.neighbours():
        if json.loads(row.text).get("dataset") == dataset:
            raise LedgerError(
                f"expected no ledger for dataset={dataset!r} yet, got one at {place}; one data set has one "
                "ledger, so use that one"
            )


def _first_row(budget: Budget, dataset: str | None) -> Row:
    body = {
        "kind": "create",
        "format": FORMAT,
        "name": str(uuid.uuid4()),  # so that no two ledgers share a hash
        "dataset": None if dataset is None else check_text("dataset", dataset),
        "time": _now(),
        "budget": asdict(budget),
        "epsilon_spent": 0.0,
        "state": State.empty(budget, fine=True).to_json(),
    }
    return seal(body, after=None)[1]


def _one(event: DpEvent | Sequence[DpEvent]) -> DpEvent:
    return event if isinstance(event, DpEvent) else compose(*event)


def _after(state: State, body: Mapping[str, Any], counted: DpEvent) -> State:
    """The state once `body` is written: drawn from a plan, or admitted, and kept as a plan if it is one."""
    allocation, relation = body["allocation"], Relation(body["relation"])
    if allocation in state.plans:
        if "plan" in body:
            raise InvalidInput(f"expected a share to pay for a plan, got the plan {allocation!r}")
        return state.draw(allocation, event_from_json(body["event"]), relation)
    after = state.admit(counted, allocation)
    return after.prepay(body["plan"], counted, relation) if "plan" in body else after


def _first_fitting(
    state: State, bodies: Sequence[dict[str, Any]], counted: DpEvent
) -> tuple[dict[str, Any], State] | BudgetExceeded:
    """The first of several ways to charge an event that fits, and the state after it; or why none does."""
    refused = None
    for body in bodies:
        try:
            return body, _after(state, body, counted)
        except BudgetExceeded as error:
            refused = error
    assert refused is not None  # a request names at least one allocation
    return refused


def _open(last: Entry) -> Entry:
    """Refuse to go on where the ledger went on elsewhere, or where its budget was broken."""
    if last.kind == "moved":
        raise LedgerError(f"this ledger was moved to {last.body['to']}, and is closed here; use it there")
    broken = exceeded_by(last)
    if broken is not None:
        raise broken.refusal()
    return last


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _reopened(address: str, head: Head) -> Ledger:
    return Ledger.open(address, head=head)


def _absent(place: str) -> LedgerError:
    return LedgerError(
        f"there is no ledger at {place}; make one with: sfumato ledger create {place} --epsilon 1 --delta 1e-6"
    )


def _other_budget(place: str, has: Budget, given: Budget) -> LedgerError:
    names = [item.name for item in fields(Budget) if getattr(has, item.name) != getattr(given, item.name)]
    expected, got = (" and ".join(f"{name}={getattr(one, name)}" for name in names) for one in (has, given))
    return LedgerError(
        f"expected the budget of {place}, {expected}, got {got}; declare the same (a policy in [budget]) "
        "or make another ledger for other data"
    )
