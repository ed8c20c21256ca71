"""The ledger: one data set's privacy budget, kept across runs, processes and crashes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget, DpEvent, Relation, compose, event_to_json
from sfumato.errors import InvalidInput, LedgerError, LedgerTampered
from sfumato.ledger.agreement import check_agreement
from sfumato.ledger.certificate import Certificate
from sfumato.ledger.chain import Entry, Head, linked, seal, unseal
from sfumato.ledger.charge import Charge, Reservation, charges_of, check_part_of, check_text
from sfumato.ledger.conversion import counted_event
from sfumato.ledger.replay import replay
from sfumato.ledger.rule import Tally
from sfumato.ledger.state import State
from sfumato.ledger.store import Store, store_at

FORMAT = 1


class Ledger:
    """Append-only charges against one budget, hash-chained, safe for many processes.

    Charge *before* anything is computed: a crash then leaves the amount spent, and nothing is ever released
    that is not on record. Into an empty ledger one plan (or a list charged at once) fits if its exact ε fits;
    everything later must pass the privacy filter, counted from the start.

    A file that was put back from a backup has a valid chain and has forgotten the newest charges. Open it with
    the newest certificate or the newest noted `head`, and it is refused if it is older.

    >>> import tempfile; from sfumato.accounting import LaplaceEvent
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.open(f"{folder.name}/survey.db", budget=Budget(epsilon=1))
    >>> charge = ledger.charge(LaplaceEvent(noise_multiplier=4), purpose="mean age")
    >>> ledger.epsilon_spent, ledger.epsilon_left
    (0.25, 0.75)
    >>> ledger.close(); folder.cleanup()
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        first = store.row(0)
        if first is None:
            raise _absent(store.place)
        self._first = unseal(first)
        if self._first.body.get("format") != FORMAT:
            raise LedgerError(f"{store.place} has a format this version cannot read; use a newer sfumato")
        self.budget = Budget(**self._first.body["budget"])

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        budget: Budget | None = None,
        *,
        certificate: Certificate | None = None,
        head: Head | None = None,
    ) -> Ledger:
        """The ledger at a path or a postgresql:// URL; made there with `budget` if there is none."""
        store = store_at(place)
        if store.last() is None:
            if budget is None:
                raise _absent(store.place)
            _begin(store, budget)
        ledger = cls(store)
        if budget is not None and budget != ledger.budget:
            raise LedgerError(
                f"expected the budget of {store.place}, {ledger.budget}, got {budget}; "
                "open it without a budget, or make another ledger for other data"
            )
        ledger._check_newest(certificate, head)
        return ledger

    @classmethod
    def create(cls, place: str | os.PathLike[str], budget: Budget) -> Ledger:
        """A new ledger, where there must be none yet."""
        store = store_at(place)
        if store.last() is not None or not _begin(store, budget):
            raise LedgerError(f"expected no ledger at {store.place}, got one; open it, or choose another place")
        return cls(store)

    # Spending

    def charge(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        purpose: str,
        allocation: str | None = None,
        relation: Relation | None = None,
        unit: str | None = None,
        private: bool = True,
    ) -> Charge:
        """Spend for good, or raise BudgetExceeded and write nothing; a list is charged as one plan.

        `relation` and `unit` say under which the event is priced, where that is not the budget's: add-remove is
        converted to replace-one, anything else refused. `private=False` marks a run whose noise was seeded.
        """
        entry = self._spend(
            "charge",
            event,
            purpose=purpose,
            allocation=allocation,
            relation=relation,
            unit=unit,
            private=private,
        )
        return Charge.from_entry(entry, unit=self.budget.unit, settled=True)

    def reserve(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        purpose: str,
        allocation: str | None = None,
        relation: Relation | None = None,
        unit: str | None = None,
        private: bool = True,
    ) -> Reservation:
        """Like `charge`, but what provably did not run can be given back by `settle`."""
        entry = self._spend(
            "reserve",
            event,
            purpose=purpose,
            allocation=allocation,
            relation=relation,
            unit=unit,
            private=private,
        )
        charge = Charge.from_entry(entry, unit=self.budget.unit, settled=False)
        return Reservation(charge=charge, _ledger=self)

    def check(
        self,
        event: DpEvent | Sequence[DpEvent],
        *,
        allocation: str | None = None,
        relation: Relation | None = None,
        unit: str | None = None,
    ) -> None:
        """Raise what `charge` would raise now, and write nothing: for a refusal before work that takes long.

        It holds nothing back: another process may spend what is left in the meantime.
        """
        plan = event if isinstance(event, DpEvent) else compose(*event)
        self.state.admit(counted_event(plan, self.budget, relation=relation, unit=unit), allocation)

    def reservation(self, head: Head) -> Reservation:
        """An open reservation of an earlier process, to go on with and settle."""
        entry = self._check_holds(head)
        if entry.kind != "reserve" or self._store.settlement(head.sequence) is not None:
            raise LedgerError(f"expected an open reservation at entry {head.sequence}, got a settled charge")
        return Reservation(charge=Charge.from_entry(entry, unit=self.budget.unit, settled=False), _ledger=self)

    def open_reservations(self) -> list[Reservation]:
        """Every reservation that was not settled, as crashes leave them."""
        return [Reservation(charge=charge, _ledger=self) for charge in self.charges() if not charge.settled]

    def allocate(self, name: str, epsilon: float) -> None:
        """Set a share of the budget's ε aside for charges under `name`: theirs, and all they may spend."""
        name, epsilon = check_text("name", name), _validate.positive("epsilon", epsilon)
        with self._store.transaction():
            last = self._last()
            state = self._state(last).allocate(name, epsilon)
            self._append({"kind": "allocate", "allocation": name, "epsilon": epsilon}, state, last)

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
        return self.state.spent

    @property
    def epsilon_left(self) -> float:
        """The largest further pure-ε charge that would be accepted."""
        return self.state.left()

    @property
    def private(self) -> bool:
        """Whether no charge was marked as made with seeded, and so predictable, noise."""
        return all(charge.private for charge in self.charges())

    @property
    def name(self) -> str:
        return str(self._first.body["name"])

    @property
    def place(self) -> str:
        return self._store.place

    def entries(self) -> Iterator[Entry]:
        """All entries, each checked against its hash and the one before."""
        return linked(self._store.rows())

    def charges(self) -> list[Charge]:
        """Every charge with what it was settled to."""
        return charges_of(self.entries(), unit=self.budget.unit)

    def snapshot(self) -> tuple[list[Charge], State, Head]:
        """The charges, what they add up to and the head, as of one moment."""
        entries = list(self.entries())
        return charges_of(entries, unit=self.budget.unit), self._state(entries[-1]), entries[-1].head

    def export(self) -> dict[str, Any]:
        """Everything as one JSON value, with the head to check later copies against."""
        entries = list(self.entries())
        listed = [{**entry.body, "hash": entry.hash} for entry in entries]
        return {"budget": asdict(self.budget), "head": entries[-1].head.to_json(), "entries": listed}

    def verify(self, *, certificate: Certificate | None = None, head: Head | None = None) -> Head:
        """Check every entry, link and sum; and that nothing newer than what is presented was lost.

        A chain that was cut off or rolled back is itself valid: only a certificate or a head that was noted
        elsewhere shows it. Raises LedgerTampered, or returns the head that was found.
        """
        entries = list(self.entries())
        if not entries:
            raise LedgerTampered(f"the ledger {self.place} has lost its entries")
        try:
            replay(self.budget, entries)
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
        """The certificate of a release that was charged here."""
        if charge.relation is not self.budget.relation:
            caveats = (f"the ledger counts it as {self.budget.relation}: {charge.counted}", *caveats)
        return Certificate.of(
            charge.event,
            purpose=charge.purpose,
            delta=self.budget.delta,
            unit=charge.unit,
            relation=charge.relation,
            private=charge.private,
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

    def _spend(
        self,
        kind: str,
        event: DpEvent | Sequence[DpEvent],
        *,
        purpose: str,
        allocation: str | None,
        relation: Relation | None,
        unit: str | None,
        private: bool,
    ) -> Entry:
        plan = event if isinstance(event, DpEvent) else compose(*event)
        counted = counted_event(plan, self.budget, relation=relation, unit=unit)
        body = {
            "kind": kind,
            "purpose": check_text("purpose", purpose),
            "allocation": allocation,
            "private": bool(private),
            "event": event_to_json(plan),
            "counted": event_to_json(counted),
            "relation": str(self.budget.relation if relation is None else Relation(relation)),
        }
        # Refusals need no lock: the state read here was the newest at that moment. It also prices the event,
        # which takes long for a first plan, before others have to wait.
        self.state.admit(counted, allocation)
        with self._store.transaction():
            last = self._last()
            before = self._state(last)
            state = before.admit(counted, allocation)
            body["price"] = {name: tally.to_json() for name, tally in before.price(counted, allocation).items()}
            return self._append(body, state, last)

    def _settle(self, reservation: Reservation, event: DpEvent | None) -> Charge:
        charge = reservation.charge
        ran = charge.event if event is None else event
        check_part_of(ran, charge.event)
        counted = counted_event(ran, self.budget, relation=charge.relation, unit=None)
        with self._store.transaction():
            if self._store.settlement(charge.head.sequence) is not None:
                raise LedgerError(
                    f"expected an open reservation, got entry {charge.head.sequence}, settled already"
                )
            reserved = self._check_holds(charge.head).body
            last = self._last()
            before = self._state(last)
            prices = before.price(counted, charge.allocation)
            held = {name: Tally.from_json(tally) for name, tally in reserved["price"].items()}
            if not all(prices[name] <= held[name] for name in held):
                counted, prices = charge.counted, held  # a conversion may round up; never above the reserved
            state = before if counted == charge.counted else before.lower(held, counted, charge.allocation)
            body = {
                **{key: reserved[key] for key in ("purpose", "allocation", "private", "relation")},
                "kind": "settle",
                "settles": charge.head.sequence,
                "event": event_to_json(ran),
                "counted": event_to_json(counted),
                "price": {name: tally.to_json() for name, tally in prices.items()},
            }
            return Charge.from_entry(self._append(body, state, last), unit=self.budget.unit, settled=True)

    def _mark(self, reservation: Reservation, steps: int) -> None:
        body = {
            "kind": "mark",
            "marks": reservation.head.sequence,
            "steps": _validate.integer("steps", steps),
        }
        with self._store.transaction():
            last = self._last()
            self._append(body, self._state(last), last)

    def _marked(self, reservation: Reservation) -> int:
        marks = (entry.body for entry in self.entries() if entry.kind == "mark")
        own = (body["steps"] for body in marks if body["marks"] == reservation.head.sequence)
        return max(own, default=0)

    def _append(self, body: Mapping[str, Any], state: State, last: Entry) -> Entry:
        stamp = {"time": _now(), "epsilon_spent": state.spent, "state": state.to_json()}
        entry, row = seal({**body, **stamp}, after=last.head)
        self._store.append(row)
        return entry

    def _last(self) -> Entry:
        row = self._store.last()
        if row is None:
            raise LedgerTampered(f"the ledger {self.place} has lost its entries")
        return unseal(row)

    def _state(self, entry: Entry) -> State:
        return State.from_json(self.budget, entry.body["state"])

    def _check_newest(self, certificate: Certificate | None, head: Head | None) -> None:
        if head is not None:
            self._check_holds(head)
        if certificate is None:
            return
        if certificate.head is None:
            raise InvalidInput(
                "expected a certificate that names a ledger entry, got one of an unrecorded release"
            )
        check_agreement(certificate, self._check_holds(certificate.head), self.budget)

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


def _begin(store: Store, budget: Budget) -> bool:
    """Write the first entry, unless another process just did."""
    store.prepare()
    with store.transaction():
        if store.last() is not None:
            return False
        _, row = seal(_first_body(budget), after=None)
        store.append(row)
        return True


def _first_body(budget: Budget) -> dict[str, Any]:
    return {
        "kind": "create",
        "format": FORMAT,
        "name": str(uuid.uuid4()),  # so that no two ledgers share a hash
        "time": _now(),
        "budget": asdict(budget),
        "epsilon_spent": 0.0,
        "state": State.empty(budget).to_json(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _absent(place: str) -> LedgerError:
    return LedgerError(
        f"there is no ledger at {place}; make one with a budget, Ledger.open(…, budget=Budget(…))"
    )
