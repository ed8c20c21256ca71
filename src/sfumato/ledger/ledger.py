"""The ledger: one data set's privacy budget, kept across runs, processes and crashes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato import _validate, interruption
from sfumato.accounting import (
    Budget,
    DpEvent,
    Relation,
    event_to_json,
    warn_of_little_protection,
)
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerError, RelationMismatch
from sfumato.ledger import spending
from sfumato.ledger.book import Book
from sfumato.ledger.certificate import Certificate, check_statable
from sfumato.ledger.chain import Entry, Head, Row
from sfumato.ledger.charge import EXCEEDED, Charge, ChargeRequest, Lease, as_one
from sfumato.ledger.log import absent, first_row, make, other_budget, refuse_second
from sfumato.ledger.rule import counted_event
from sfumato.ledger.spending import Body, Reservation
from sfumato.ledger.store import Store, store_at

_MOST_UNUSED = 10_000  # charges that are remembered until something is released under them
_NOT_UNUSED = (
    "expected a charge that this ledger has just made, and under which nothing was released yet, got another: "
    "one charge pays for one release; charge again"
)


@dataclass
class SpentHere:
    """Record whether this process has charged a ledger, and its open reservations."""

    anything: bool = False
    open: set[Head] = field(default_factory=set)

    @property
    def goes_on(self) -> bool:
        """Whether a later process takes up an open reservation; a charge is for one computation only."""
        return bool(self.open)


class Ledger(Book):
    """Append-only charges against one budget, hash-chained, safe for many processes.

    Charge *before* anything is computed: a crash then leaves the amount spent, and every release is on record.
    Into an empty ledger one plan (or a list charged at once) fits if its exact ε fits; every later charge must
    pass the privacy filter, counted from the start.

    A file that was put back from a backup has a valid chain without the newest charges. Open it with the newest
    certificate or the newest noted `head`, and it is refused if it is older.

    Args:
        store: Where entries are kept. Use `Ledger.open` or `Ledger.create`, which choose one.
        pending: The first entry of a ledger that is made with its first charge.

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

    spent_here = SpentHere()
    """The charges of this process in all ledgers, for the message after an interruption."""

    def __init__(self, store: Store, pending: Row | None = None) -> None:
        super().__init__(store, pending)
        self._purpose: str | None = None
        self._unused: dict[Head, Charge] = {}  # charged by this object, with nothing released under them yet

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        budget: Budget | None = None,
        *,
        dataset: str | None = None,
        certificate: Certificate | None = None,
        head: Head | None = None,
        when_charged: bool = False,
        people: float | None = None,
    ) -> Ledger:
        """Open the ledger at a path or a postgresql:// URL; make it with `budget` if there is none.

        Args:
            place: A file name, or a postgresql:// URL.
            budget: The budget of a new ledger. One that exists must have the same; None accepts its budget.
            dataset: The declared id of the data set that the budget is for; a ledger of another one is
                refused.
            certificate: The newest certificate from this ledger: a ledger that has forgotten its charge is
                refused.
            head: The newest entry that was noted elsewhere, with the same effect.
            when_charged: True to make a new ledger with its first charge. Until then there is no file, and
                the budget can still be changed.
            people: How many people there are, where that is public; a new ledger keeps it for statements. A
                `LittleProtection` warning tells of a `budget` that hardly protects, such as one with a δ of
                1 / people or more.

        Returns:
            The open ledger; `with` closes it.

        Raises:
            LedgerError: If there is none and no budget was given, or if it cannot be opened.
            LedgerTampered: If its chain is broken, or older than `certificate` or `head`.
        """
        if budget is not None and people is not None:
            warn_of_little_protection("this budget", budget.epsilon, budget.delta, people=people)
        store, pending = store_at(place), None
        if store.last() is None:
            if budget is None:
                raise absent(store.place)
            pending = first_row(budget, dataset, people)
            if when_charged:
                refuse_second(store, dataset)
            else:
                make(store, pending)
                pending = None
        ledger = cls(store, pending)
        ledger.check_dataset(dataset)
        if budget is not None and budget != ledger.budget:
            unused_file = os.path.isfile(store.address) and ledger.unused
            raise other_budget(store.place, ledger.budget, budget, unused_file=unused_file)
        ledger._check_newest(certificate, head)
        return ledger

    @classmethod
    def create(
        cls,
        place: str | os.PathLike[str],
        budget: Budget,
        *,
        dataset: str | None = None,
        people: float | None = None,
    ) -> Ledger:
        """Make a new ledger where there is none yet.

        Args:
            place: A file name, or a postgresql:// URL.
            budget: The limit of all charges together.
            dataset: A declared id of the data set, such as "clinic-2026".
            people: How many people there are, where that is public; as in `open`.

        Returns:
            The open ledger.

        Raises:
            LedgerError: If there is one already.
        """
        if people is not None:
            warn_of_little_protection("this budget", budget.epsilon, budget.delta, people=people)
        store = store_at(place)
        if store.last() is not None or not make(store, first_row(budget, dataset, people)):
            raise LedgerError(f"expected no ledger at {store.place}, got one; open it, or choose another place")
        return cls(store)

    # Copies: scikit-learn clones arguments of an estimator, and sends them to other processes

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

    # Charging

    def spend_under(self, allocation: str | None = None, *, purpose: str | None = None) -> Ledger:
        """Take every later charge of this object from a share of the budget, and put a purpose before its own.

        All code that is handed the ledger then spends from that share, unless a charge itself names another.

        Args:
            allocation: The name of a share that `allocate` set aside; None for the unclaimed rest.
            purpose: Text before the purpose of each charge; None for none.

        Returns:
            The ledger itself.

        Raises:
            InvalidInput: If the budget has no share of that name.
        """
        if allocation is not None:
            self.state.left(allocation)  # raises for one that is not there
        self.allocation = allocation
        self._purpose = None if purpose is None else _validate.text("purpose", purpose)
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
            event: The release, or several releases that are fixed in advance.
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
                event=as_one(event),
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
            request: The release.

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
        All charges are on disk when this returns.

        Args:
            requests: The releases. Each is paid from the first of its allocations that has room.

        Returns:
            For each request its charge, or its refusal.

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
        answers = [
            Charge.from_entry(found, unit=one.unit, settled=True) if isinstance(found, Entry) else found
            for one, found in zip(
                requests, spending.spend_each(self._journal, wanted, spends=_spent_here), strict=True
            )
        ]
        self._unused |= {charge.head: charge for charge in answers if isinstance(charge, Charge)}
        if len(self._unused) > _MOST_UNUSED:
            for head in list(self._unused)[: _MOST_UNUSED // 2]:
                self._unused.pop(head, None)
        return answers

    def use(self, charge: Charge) -> None:
        """Take a charge for one release; no other release can be made under it.

        Code that is handed a charge, and does not make it itself, calls this before it touches a row. This very
        object must have made the charge: one that was read from a ledger may have been used before.

        Args:
            charge: A charge that `charge` returned.

        Raises:
            InvalidInput: If it is not a charge that this object made, or was used before.
        """
        if not isinstance(charge, Charge) or self._unused.get(charge.head) != charge:
            raise InvalidInput(_NOT_UNUSED)
        if self._unused.pop(charge.head, None) is None:  # another thread was first
            raise InvalidInput(_NOT_UNUSED)

    def record(self, event: DpEvent, *, purpose: str, relation: Relation, unit: str) -> Charge | None:
        """Enter a release that has happened already, outside the ledger; it is charged, or closes the ledger.

        A past release cannot be refused. It counts against the whole budget and the part that no share claims,
        also where shares claim everything; no plan pays for it. Where the whole budget has no room, an entry
        says so and nothing can be charged after it: the promise of this budget is broken, and the ledger shows
        by how much.

        Args:
            event: The release.
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
        entry = spending.record(self._journal, body, counted, spends=_spent_here)
        return None if entry is None else Charge.from_entry(entry, unit=unit, settled=True)

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
        plan, name = as_one(event), _validate.text("name", name)
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
            event: The release.
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
        check_statable(plan, caveats)
        charge = self.charge(event, purpose=purpose, relation=relation, unit=unit, private=private)
        return self.certificate(charge, plan=plan, eta=eta, caveats=caveats)

    # Reserving

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
        noted: Callable[[Reservation], None] | None = None,
    ) -> Reservation:
        """Charge as `charge` does; `settle` can give back steps that provably did not run.

        Args:
            event: All releases that may run.
            purpose: One line for the ledger's readers.
            relation: The relation under which the event is priced.
            unit: The unit for which it is priced.
            allocation: The name of the share to charge, if shares were set aside.
            private: False for a run whose noise was seeded.
            begun: False promises to call `begin` before a row is touched. Until then `give_back` can undo
                the reservation, from any process.
            noted: Called with the reservation inside the ledger's transaction, to write it down elsewhere
                before it is durable, so that after a crash a later process takes it up. It does not use the
                ledger. If it raises, nothing is reserved.

        Returns:
            The reservation, to be settled.

        Raises:
            BudgetExceeded: If it does not fit. Nothing is written.
        """
        return self.hold(
            ChargeRequest(
                event=as_one(event),
                purpose=purpose,
                relation=relation,
                unit=unit,
                allocations=(allocation,),
                private=private,
            ),
            begun=begun,
            noted=noted,
        )

    def hold(
        self,
        request: ChargeRequest,
        *,
        begun: bool = True,
        noted: Callable[[Reservation], None] | None = None,
    ) -> Reservation:
        """Reserve for one request; `reserve` does it through this method.

        Args:
            request: The releases to reserve, from one allocation.
            begun: As in `reserve`.
            noted: As in `reserve`.

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

        def held(entry: Entry) -> Reservation:
            return Reservation(self, Charge.from_entry(entry, unit=request.unit, settled=False), lease)

        def note(entry: Entry) -> None:
            if noted is not None:
                noted(held(entry))
                self.spent_here.open.add(entry.head)

        try:
            entry = self._spend({**body, "lease": lease.to_json()}, counted, noted=note)
        except BudgetExceeded as refusal:
            raise self._beside_unfinished(refusal, request.event, allocation) from refusal
        return held(entry)

    def reservation(self, head: Head, *, seen: Lease | None = None, private: bool = True) -> Reservation:
        """Take an open reservation up, to go on with and settle; its earlier holder loses it.

        Args:
            head: The entry of the reservation.
            seen: The lease on which the decision was based; if it has changed since, nothing is done.
            private: False says that the noise from here on is seeded: the run is then never private again.

        Returns:
            The reservation, held by this process.

        Raises:
            LedgerError: If it is settled, or changed since it was seen.
        """
        lease = spending.take_up(self._journal, head, seen=seen, private=private, spends=_spent_here)
        self.spent_here.open.add(head)
        charge = Charge.from_entry(self._journal.holding(head), unit=self.budget.unit, settled=False)
        return Reservation(self, charge, lease)

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
        settled = spending.give_back(self._journal, _validate.integer("entry", entry))
        return Charge.from_entry(settled, unit=self.budget.unit, settled=True)

    # Shares and notes

    def allocate(self, name: str, epsilon: float) -> None:
        """Set a share of the budget's ε aside for charges under `name`, which may spend no more than that.

        Args:
            name: How charges name the share.
            epsilon: Its size.

        Raises:
            InvalidInput: If the name has a share, or so much is not left.
        """
        self.allocate_all({name: epsilon})

    def allocate_all(
        self,
        shares: Mapping[str, float],
        *,
        purpose: str | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """Set several shares aside at once, or none of them.

        Args:
            shares: The size of each, by name.
            purpose: One line for the ledger's readers, such as the reason and the approver.
            origins: By name, an id that the chain keeps with the share, for a program that finds its shares
                by id. Such a share is made once, however often it is asked for; where its name is taken, it
                gets another.

        Raises:
            InvalidInput: If a name has a share, or so much is not left, or the share of an origin has another
                size. Nothing is written.
        """
        ids = {name: _validate.text("origin", origin) for name, origin in (origins or {}).items()}
        said = {} if purpose is None else {"purpose": _validate.text("purpose", purpose)}
        sizes = {
            _validate.text("name", name): _validate.positive("epsilon", size) for name, size in shares.items()
        }
        spending.set_aside(self._journal, sizes, said, ids)

    def note(self, text: str) -> Head:
        """Write a line that costs nothing, such as a decision, into the chain.

        Args:
            text: The line.

        Returns:
            Its entry.
        """
        text = _validate.text("text", text)
        with self._journal.writing() as last:
            return self._journal.append({"kind": "note", "text": text}, self._journal.state(last), last).head

    def _spend(
        self, body: Body, counted: DpEvent, *, noted: Callable[[Entry], None] = lambda entry: None
    ) -> Entry:
        (found,) = spending.spend_each(self._journal, [([body], counted)], spends=_spent_here, noted=noted)
        if isinstance(found, BudgetExceeded):
            raise found
        return found

    def _body(
        self,
        kind: str,
        plan: DpEvent,
        counted: DpEvent,
        purpose: str,
        allocation: str | None,
        relation: Relation,
        private: bool,
    ) -> Body:
        purpose = purpose if self._purpose is None else f"{self._purpose}: {purpose}"
        return {
            "kind": kind,
            "purpose": _validate.text("purpose", purpose),
            "allocation": self._share(allocation),
            "private": bool(private),
            "event": event_to_json(plan),
            "counted": event_to_json(counted),
            "relation": str(Relation(relation)),
        }


def _spent_here() -> None:
    interruption.check()  # after Ctrl-C nothing more is paid
    Ledger.spent_here.anything = True


def _reopened(address: str, head: Head) -> Ledger:
    return Ledger.open(address, head=head)


def move(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Ledger:
    """Move a ledger to another place, with the same entries and hashes; the old one is closed for good.

    The old ledger is closed first, by an entry that says where it went: at no moment can both be charged. If
    the process dies in between, neither can, and the same call finishes the move. A place that the ledger was
    moved away from can take it back.

    Args:
        source: The file or postgresql:// URL where it is.
        target: Where it goes; there must be none.

    Returns:
        The ledger at its new place.

    Raises:
        LedgerError: If there is another ledger at the target, or one for the same data set beside it.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Ledger.create(f"{folder}/old.db", Budget(epsilon=1)).close()
    ...     with move(f"{folder}/old.db", f"{folder}/new.db") as ledger:
    ...         ledger.epsilon_left
    1.0
    """
    there = store_at(target)
    with Ledger.open(source) as ledger:
        ledger.verify()
        ledger._journal.move(there, ledger.dataset)
    there.close()
    return Ledger.open(target)
