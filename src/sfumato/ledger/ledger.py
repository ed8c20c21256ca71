"""The ledger: one data set's privacy budget, kept across runs, processes and crashes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from sfumato import _validate, interruption
from sfumato.accounting import Budget, DpEvent, Relation, compose, event_to_json, warn_of_little_protection
from sfumato.caveats import Code
from sfumato.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
    LedgerTampered,
    NotPrivate,
    RelationMismatch,
    UnitMismatch,
)
from sfumato.ledger import reservation as reservations
from sfumato.ledger.certificate import Certificate, check_statable
from sfumato.ledger.chain import Entry, Head, Row, linked, unseal
from sfumato.ledger.charge import (
    EXCEEDED,
    Body,
    Charge,
    ChargeRequest,
    Exceeded,
    Lease,
    Wanted,
    charges_of,
    exceeded_by,
)
from sfumato.ledger.log import Log, absent, first_row, known_as, make, other_budget, refuse_second
from sfumato.ledger.reservation import Reservation
from sfumato.ledger.rule import counted_event, same_releases
from sfumato.ledger.state import Balance, State
from sfumato.ledger.store import Store, store_at
from sfumato.ledger.verify import check_agreement, replay

_MOST_UNUSED = 10_000  # charges that are remembered until something is released under them
_NOT_UNUSED = (
    "expected a charge that this ledger has just made, and under which nothing was released yet, got another: "
    "one charge pays for one release; charge again"
)
_COSTS_NOTHING = ("create", "allocate", "note")


@dataclass
class SpentHere:
    """Record whether this process has charged a ledger, and its open reservations."""

    anything: bool = False
    open: set[Head] = field(default_factory=set)

    @property
    def goes_on(self) -> bool:
        """Whether a later process takes up an open reservation; a charge is for one computation only."""
        return bool(self.open)


class Ledger:
    """Append-only charges against one budget, hash-chained, safe for many processes.

    Charge *before* anything is computed: a crash then leaves the amount spent, and every release is on record.
    Into an empty ledger one plan (or a list charged at once) fits if its exact ε fits; every later charge must
    pass the privacy filter, counted from the start. A charge that does not fit raises `BudgetExceeded`, one
    for another relation or unit than the budget's `RelationMismatch`; nothing is written then.

    A file that was put back from a backup has a valid chain without the newest charges. Open it with the newest
    certificate or the newest noted `head`, and it is refused if it is older.

    Args:
        store: Where entries are kept. Use `Ledger.open` or `Ledger.create`, which choose one.
        pending: The first entry of a ledger that is made with its first charge.

    Attributes:
        budget: The limit of all charges together.
        allocation: The share of the budget that `epsilon_left` speaks of; None for the unclaimed rest.

    Terms:
        event: The release; a list is one plan of releases that are fixed in advance.
        purpose: One line for the ledger's readers.
        relation: The relation under which the event is priced. Add-remove is converted to replace-one.
        unit: The unit for which it is priced; the budget's.
        allocation: The name of the share that pays, if shares were set aside.
        private: False for a run whose noise was seeded.
        place: A file name, or a postgresql:// URL.
        head: The newest entry that was noted elsewhere, or the entry of a reservation.
        certificate: The newest certificate from this ledger; one that has forgotten its charge is refused.
        dataset: The declared id of the data set, such as "clinic-2026"; a ledger of another one is refused.
        people: How many people there are, where that is public; a new ledger keeps it for statements. A
            `LittleProtection` warning tells of a budget that hardly protects.
        charge: A charge that `charge` returned.
        begun: False promises to call `begin` before a row is touched. Until then `give_back` can undo the
            reservation, from any process.
        noted: Called with the reservation inside the ledger's transaction, to write it down elsewhere before it
            is durable, so that after a crash a later process takes it up. It does not use the ledger. If it
            raises, nothing is reserved.
        plan: Settings that the certificate shall state.
        eta: η, the bound of rounding errors that the noise was scaled up for.
        caveats: Caveats that the certificate shall state.
        request: The releases, and the allocations that may pay.

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
        self._log = Log(store, pending)
        self.budget = self._log.budget
        self.allocation: str | None = None
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
    ) -> Self:
        """Return the ledger at a path or a postgresql:// URL; make it with `budget` if there is none.

        Args:
            budget: The budget of a new ledger. One that exists must have the same; None accepts its budget.
            when_charged: True to make a new ledger with its first charge. Until then there is no file, and
                the budget can still be changed.

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
            unused = os.path.isfile(store.address) and all(e.kind in _COSTS_NOTHING for e in ledger.entries())
            raise other_budget(store.place, ledger.budget, budget, unused_file=unused)
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
    ) -> Self:
        """Return a new ledger; LedgerError if there is one already."""
        if people is not None:
            warn_of_little_protection("this budget", budget.epsilon, budget.delta, people=people)
        store = store_at(place)
        if store.last() is not None or not make(store, first_row(budget, dataset, people)):
            raise LedgerError(f"expected no ledger at {store.place}, got one; open it, or choose another place")
        return cls(store)

    # Copies: scikit-learn clones arguments of an estimator, and sends them to other processes

    def __copy__(self) -> Ledger:
        """Return the ledger itself: a second one beside it would be a second budget."""
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

    # Figures

    @property
    def _store(self) -> Store:
        return self._log.store

    @property
    def head(self) -> Head:
        """The newest entry; noted down elsewhere, it shows a later roll-back."""
        return self._log.last().head

    @property
    def id(self) -> str:
        """The hash of the first entry, which no other ledger has, wherever this one lies."""
        return self._log.first.hash

    @property
    def state(self) -> State:
        return self._log.state(self._log.last())

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
        """Return the parts of the budget, or of a share, as they are in a state of this ledger.

        Args:
            state: One of `snapshot`.
        """
        broken = self.exceeded
        if broken is None:
            return Balance.of(state, allocation)
        return Balance(total=self.budget.epsilon, spent=broken.owed, left=0.0)

    @property
    def exceeded(self) -> Exceeded | None:
        """The release outside that broke the budget; None while the budget holds."""
        return exceeded_by(self._log.last())

    def counted_after(self, event: DpEvent, *, relation: Relation, unit: str) -> float:
        """Return the ε that later charges would start from if `event` were charged now, whether it fits or not.

        It is more than `epsilon_spent` would say of a single plan, whose exact price holds while it is alone.
        """
        counted = counted_event(event, self.budget, relation=relation, unit=unit)
        return self.state.of_whole.counted_after(self.state.whole, counted)

    @property
    def private(self) -> bool:
        """Whether no charge was marked as made with seeded, and so predictable, noise."""
        return all(charge.private for charge in self.charges())

    @property
    def name(self) -> str:
        return str(self._log.first.body["name"])

    @property
    def people(self) -> float | None:
        """How many people there are, as the ledger was told when it was made."""
        people = self._log.first.body.get("people")
        if people is not None and not (type(people) in (int, float) and 0 < people < math.inf):
            raise LedgerTampered(
                f"expected a number of people in ledger entry 0, got {people!r:.80}; it was forged"
            )
        return people

    @property
    def dataset(self) -> str | None:
        """The declared id of the data set; None where none was declared."""
        return self._log.first.body.get("dataset")

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
        last = self._log.last()
        return str(last.body["to"]) if last.kind == "moved" else None

    # Entries and charges

    def entries(self) -> Iterator[Entry]:
        """Return all entries, oldest first, each checked against its hash and the one before."""
        return self._log.entries()

    def entries_after(self, head: Head) -> Iterator[Entry]:
        """Return the entries after a known one, oldest first, each checked as in `entries`."""
        while (row := self._log.find("sequence", head.sequence + 1)) is not None:
            for entry in linked([row], after=head):
                yield entry
                head = entry.head

    def charges(self) -> list[Charge]:
        """Return every charge, oldest first, settled ones as they were settled."""
        with self._log.explained():
            return charges_of(self.entries(), unit=self.budget.unit)

    def open_reservations(self) -> list[Charge]:
        """Return every reservation that was not settled, as crashes leave them; `reservation` takes one up."""
        return [charge for charge in self.charges() if not charge.settled]

    def lease(self, head: Head) -> Lease:
        """Return the lease of an open reservation: its holder and its durable steps. Nothing changes."""
        return reservations.lease_of(self._log, head)

    def settled(self, head: Head) -> tuple[Lease, Charge] | None:
        """Return the lease under which a reservation was settled and its charge; None while it is open."""
        self._log.holding(head)
        row = self._log.find("settles", head.sequence)
        if row is None:
            return None
        entry = unseal(row)
        charge = Charge.from_entry(entry, unit=self.budget.unit, settled=True)
        return Lease.from_json(entry.body["lease"]), charge

    def snapshot(self) -> tuple[list[Charge], State, Head]:
        """Return the charges, their sums and the newest entry, as of one moment."""
        with self._log.explained():
            entries = list(self.entries())
            charges = charges_of(entries, unit=self.budget.unit)
        return charges, self._log.state(entries[-1]), entries[-1].head

    def export(self) -> dict[str, Any]:
        """Return all entries as one JSON value, with the head to check later copies against."""
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
        """Return the certificate of a release that was charged here."""
        if charge.relation is not self.budget.relation:
            caveats = (
                Code.COUNTED_AS(relation=str(self.budget.relation), event=str(charge.counted)),
                *caveats,
            )
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
        """Return the sums after a charge, or raise its error, and write nothing: to refuse before long work.

        It holds nothing back: another process may spend the rest in the meantime.

        Args:
            resumable: True for a run that can be resumed: a refusal then names an open reservation of the same
                plan.
        """
        state = self._log.state(self._log.open_last())
        try:
            return self._wanted("charge", _request(event, "a check", relation, unit, allocation)).after(state)
        except BudgetExceeded as refusal:
            if not resumable:
                raise
            raise self._beside_unfinished(refusal, event, allocation) from refusal

    def first_beyond(self, requests: Sequence[ChargeRequest]) -> int | None:
        """Return the place of the first of several charges that would find no room; None if there is for all.

        Nothing is written, and nothing held back: to refuse a series before its first charge.

        Args:
            requests: The releases in their order, each to be paid from the first of its allocations.
        """
        state = self._log.state(self._log.open_last())
        for place, one in enumerate(requests):
            try:
                state = self._wanted("charge", one).after(state)
            except BudgetExceeded:
                return place
        return None

    def _beside_unfinished(
        self, refusal: BudgetExceeded, event: DpEvent | Sequence[DpEvent], allocation: str | None
    ) -> BudgetExceeded:
        """Name the newest unfinished run of the same plan and share in a refusal.

        Other plans are not named: a reader of the refusal may not be allowed to see the ledger.
        """
        wanted = [event] if isinstance(event, DpEvent) else [*event, compose(*event)]
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
        """Return the newest entry, once every entry, link and sum was checked, and the presented entries found.

        A chain that was cut off or rolled back is itself valid: only a certificate or a head that was noted
        elsewhere shows it. `LedgerTampered` if something does not agree.
        """
        with self._log.explained():
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
        """Raise LedgerTampered unless the ledger holds the entry that `head` names."""
        self._log.holding(head)

    def check_unit(self, unit: str) -> None:
        """Refuse to have anything priced for another unit than the budget's."""
        if unit != self.budget.unit:
            raise UnitMismatch(wanted=self.budget.unit, given=unit)

    def check_dataset(self, dataset: str | None) -> None:
        """Refuse a data set other than the one that this ledger names."""
        if dataset is not None and (self.dataset is None or known_as(dataset) != known_as(self.dataset)):
            raise LedgerError(
                f"expected dataset={self.dataset!r}, which the ledger {self.place} is for, got "
                f"dataset={dataset!r}; one data set has one ledger, so use that one"
            )

    def _check_newest(self, certificate: Certificate | None, head: Head | None) -> None:
        if head is not None:
            self._log.holding(head)
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
        entry = self._log.holding(certificate.head)
        check_agreement(certificate, entry, self.budget, dataset=self.dataset)

    # Charging

    def spend_under(self, allocation: str | None = None, *, purpose: str | None = None) -> Self:
        """Return the ledger, whose later charges are paid from a share and have a purpose before their own.

        All code that is handed the ledger then spends from that share, unless a charge itself names another.

        Args:
            allocation: The name of a share that `allocate` set aside; None for the unclaimed rest.
            purpose: Text before the purpose of each charge; None for none.
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
        """Return a charge, which is spent for good; BudgetExceeded if it does not fit."""
        return self.pay(_request(event, purpose, relation, unit, allocation, private=private))

    def pay(self, request: ChargeRequest) -> Charge:
        """Return the charge of one request; `charge` makes it through this method."""
        (found,) = self.charge_each([request])
        if isinstance(found, BudgetExceeded):
            raise found
        return found

    def charge_each(self, requests: Sequence[ChargeRequest]) -> list[Charge | BudgetExceeded]:
        """Return for each request its charge or its refusal, all of them in one transaction.

        They are admitted in their order, each against all before it, as by calls of `charge` one after another.
        All charges are on disk when this returns.

        Args:
            requests: The releases. Each is paid from the first of its allocations that has room.
        """
        found = self._spend([self._wanted("charge", one) for one in requests])
        answers = [
            Charge.from_entry(one, unit=self.budget.unit, settled=True) if isinstance(one, Entry) else one
            for one in found
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
        """
        if not isinstance(charge, Charge) or self._unused.get(charge.head) != charge:
            raise InvalidInput(_NOT_UNUSED)
        if self._unused.pop(charge.head, None) is None:  # another thread was first
            raise InvalidInput(_NOT_UNUSED)

    def record(self, event: DpEvent, *, purpose: str, relation: Relation, unit: str) -> Charge | None:
        """Return the charge of a release that has happened already, outside the ledger.

        A past release cannot be refused. It counts against the whole budget and the part that no share claims,
        also where shares claim everything; no plan pays for it. Where the whole budget has no room, an entry
        says so and nothing can be charged after it: the promise of this budget is broken, and the ledger shows
        by how much. None is returned then.
        """
        wanted = self._wanted(EXCEEDED, _request(event, purpose, relation, unit))
        body, counted = wanted.bodies[0] | {"allocation": None}, wanted.counted
        self._log.state(self._log.open_last()).take(counted)  # prices it before other processes have to wait
        with self._log.writing() as last:
            before = self._log.state(last)
            after = before.take(counted)
            _spent_here()
            if after is None:
                owed = before.of_whole.owed(before.whole, counted)
                self._log.append({**body, "owed": owed if math.isfinite(owed) else None}, before, last)
                return None
            price = {name: tally.to_json() for name, tally in before.price(counted, None).items()}
            entry = self._log.append({**body, "kind": "charge", "outside": True, "price": price}, after, last)
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
        """Return the charge of a plan of releases, kept under a name that later releases are drawn from.

        It costs its exact price where it is the first charge, which is less than its releases one by one. A
        charge with `allocation=name` then costs nothing, as long as the plan still holds a release with exactly
        that noise.

        Args:
            name: How later charges name the plan, as they name a share.
            relation: The relation under which the releases are priced; the budget's.
        """
        name = _validate.text("name", name)
        if Relation(relation) is not self.budget.relation:
            raise RelationMismatch(
                f"expected a plan priced under {self.budget.relation}, as the budget is, got {relation}; "
                f"charge it to a ledger of its own, made with --relation {relation}"
            )
        request = _request(event, purpose, relation, unit, allocation)
        entry = self._spend_one(self._wanted("charge", request, plan=name))
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
        """Return the certificate of one release, charged for good before it is computed."""
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
        """Return a reservation, charged as by `charge`; its `settle` can give back steps that did not run.

        Args:
            event: All releases that may run.
        """
        request = _request(event, purpose, relation, unit, allocation, private=private)
        return self.hold(request, begun=begun, noted=noted)

    def hold(
        self,
        request: ChargeRequest,
        *,
        begun: bool = True,
        noted: Callable[[Reservation], None] | None = None,
    ) -> Reservation:
        """Return the reservation of one request; `reserve` makes it through this method."""
        (allocation,) = request.allocations
        lease = Lease(begun=bool(begun), private=bool(request.private))

        def held(entry: Entry) -> Reservation:
            return Reservation(self, Charge.from_entry(entry, unit=request.unit, settled=False), lease)

        def note(entry: Entry) -> None:
            if noted is not None:
                noted(held(entry))
                self.spent_here.open.add(entry.head)

        try:
            return held(self._spend_one(self._wanted("reserve", request, lease=lease.to_json()), noted=note))
        except BudgetExceeded as refusal:
            raise self._beside_unfinished(refusal, request.event, allocation) from refusal

    def reservation(self, head: Head, *, seen: Lease | None = None, private: bool = True) -> Reservation:
        """Return an open reservation, taken up to go on with and settle; its earlier holder loses it.

        Args:
            seen: The lease on which the decision was based; if it has changed since, nothing is done.
            private: False says that the noise from here on is seeded: the run is then never private again.

        Raises:
            LedgerError: If it is settled, or changed since it was seen.
        """
        lease = reservations.take_up(self._log, head, seen=seen, private=private, spends=_spent_here)
        self.spent_here.open.add(head)
        charge = Charge.from_entry(self._log.holding(head), unit=self.budget.unit, settled=False)
        return Reservation(self, charge, lease)

    def give_back(self, entry: int) -> Charge:
        """Return the charge of a reservation, settled to nothing: one made with `begun=False` and never begun.

        A process that was about to begin is refused when it does.

        Args:
            entry: The number of the reservation's entry.

        Raises:
            Refused: If something may have run.
        """
        settled = reservations.give_back(self._log, _validate.integer("entry", entry))
        return Charge.from_entry(settled, unit=self.budget.unit, settled=True)

    # Shares and notes

    def allocate(self, name: str, epsilon: float) -> None:
        """Set a share of the budget's ε aside for charges under `name`, which may spend no more than that.

        Args:
            name: How charges name the share.
            epsilon: Its size.
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
        with self._log.writing() as last:
            for name, size in sizes.items():
                before, origin = self._log.state(last), ids.get(name)
                made = None if origin is None else before.share_of(origin)
                if made is not None and made.epsilon == size:
                    continue
                if made is not None:
                    raise InvalidInput(
                        f"expected the share of origin={origin!r} with its epsilon={made.epsilon:g}, got "
                        f"epsilon={size:g}; ask for a share with another origin"
                    )
                body: Body = {"kind": "allocate", "allocation": name, "epsilon": size, **said}
                if origin is not None:
                    body |= {"allocation": before.unused(name), "origin": origin}
                after = before.allocate(body["allocation"], size, origin=origin)
                last = self._log.append(body, after, last)

    def note(self, text: str) -> Head:
        """Return the entry of a line that costs nothing, such as a decision, written into the chain.

        Args:
            text: The line.
        """
        text = _validate.text("text", text)
        with self._log.writing() as last:
            return self._log.append({"kind": "note", "text": text}, self._log.state(last), last).head

    def _wanted(self, kind: str, request: ChargeRequest, **more: Any) -> Wanted:
        counted = counted_event(request.event, self.budget, relation=request.relation, unit=request.unit)
        bodies = [self._body(kind, request, counted, share) | more for share in request.allocations]
        return Wanted(bodies, counted)

    def _body(self, kind: str, request: ChargeRequest, counted: DpEvent, allocation: str | None) -> Body:
        purpose = request.purpose if self._purpose is None else f"{self._purpose}: {request.purpose}"
        return {
            "kind": kind,
            "purpose": _validate.text("purpose", purpose),
            "allocation": self._share(allocation),
            "private": bool(request.private),
            "event": event_to_json(request.event),
            "counted": event_to_json(counted),
            "relation": str(Relation(request.relation)),
        }

    def _share(self, allocation: str | None) -> str | None:
        return self.allocation if allocation is None else allocation

    def _spend_one(self, wanted: Wanted, noted: Callable[[Entry], None] | None = None) -> Entry:
        (found,) = self._spend([wanted], noted)
        if isinstance(found, BudgetExceeded):
            raise found
        return found

    def _spend(
        self, wanted: Sequence[Wanted], noted: Callable[[Entry], None] | None = None
    ) -> list[Entry | BudgetExceeded]:
        """Write one entry for each event, in one transaction, by the first of its bodies that fits.

        `noted` is called with each entry before any of them is durable; if it raises, none is written.
        """
        # Refusals need no lock: the state read here was the newest at that moment. The events are also priced
        # here, which takes long for a first plan, before other processes have to wait.
        now = self._log.state(self._log.open_last())
        refusals = [one.first_fitting(now) for one in wanted]
        if all(isinstance(one, BudgetExceeded) for one in refusals):
            return [one for one in refusals if isinstance(one, BudgetExceeded)]
        found: list[Entry | BudgetExceeded] = []
        with self._log.writing() as last:
            for early, one in zip(refusals, wanted, strict=True):
                before = self._log.state(last)
                fitting = early if isinstance(early, BudgetExceeded) else one.first_fitting(before)
                if isinstance(fitting, BudgetExceeded):
                    found.append(fitting)
                    continue
                body, after = fitting
                _spent_here()
                last = self._log.append({**body, **one.paid(before, body)}, after, last)
                if noted is not None:
                    noted(last)
                found.append(last)
        return found

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _request(
    event: DpEvent | Sequence[DpEvent],
    purpose: str,
    relation: Relation,
    unit: str,
    allocation: str | None = None,
    *,
    private: bool = True,
) -> ChargeRequest:
    plan = event if isinstance(event, DpEvent) else compose(*event)
    return ChargeRequest(
        event=plan, purpose=purpose, relation=relation, unit=unit, allocations=(allocation,), private=private
    )


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
        ledger._log.move(there, ledger.dataset)
    there.close()
    return Ledger.open(target)
