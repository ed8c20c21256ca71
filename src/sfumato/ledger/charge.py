"""Charges and leases as the entries of a ledger hold them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sfumato import _validate
from sfumato.accounting import DpEvent, NoEvent, Relation, event_from_json, event_to_json
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerError, LedgerTampered
from sfumato.ledger.chain import Entry, Head, canonical, check_kind, is_hexadecimal
from sfumato.ledger.rule import part_of, same_releases
from sfumato.ledger.state import State

EXCEEDED = "exceeded"
Body = dict[str, Any]
"""The fields of an entry but for its price and its sums."""


@dataclass(frozen=True, kw_only=True)
class ChargeRequest:
    """Describe a release that is to be charged.

    Args:
        event: The release.
        purpose: One line for the ledger's readers.
        relation: The relation under which the event is priced.
        unit: The unit for which it is priced; the budget's.
        allocations: The names of the shares that may pay, the one to try first at the beginning; None for the
            one that the ledger spends under.
        private: False for a run whose noise was seeded.

    >>> from sfumato.accounting import pure
    >>> ChargeRequest(
    ...     event=pure(0.1), purpose="a count", relation=Relation.ADD_REMOVE, unit="record"
    ... ).allocations
    (None,)
    """

    event: DpEvent
    purpose: str
    relation: Relation
    unit: str
    allocations: tuple[str | None, ...] = (None,)
    private: bool = True

    def __post_init__(self) -> None:
        if not self.allocations:
            raise InvalidInput("expected at least one allocation that may pay, got none")


@dataclass(frozen=True, kw_only=True)
class Charge:
    """Describe one release as the ledger has it; `head` names its entry.

    Attributes:
        head: The entry of the charge.
        time: When it was charged, in UTC.
        purpose: One line for readers.
        event: The release, or all that may be released.
        counted: The event after conversion to the budget's relation, as the ledger counts it.
        relation: The relation under which the event was priced.
        unit: The unit that is protected.
        allocation: The share that was charged, if any.
        private: False if noise was seeded.
        settled: False while a reservation is open.
        epsilon_spent: ε of all charges up to this one.
        planned: The whole plan, if the run was stopped early.
        drawn: Whether it was paid for by an earlier charge, of the plan that `allocation` names.
    """

    head: Head
    time: str
    purpose: str
    event: DpEvent
    counted: DpEvent
    relation: Relation
    unit: str
    allocation: str | None
    private: bool
    settled: bool
    epsilon_spent: float
    planned: DpEvent | None = None
    drawn: bool = False

    @classmethod
    def from_entry(cls, entry: Entry, *, unit: str, settled: bool) -> Charge:
        """Read the charge in an entry; LedgerTampered where a field is not of its type."""
        body = entry.body
        try:
            if not all(type(body[name]) in kinds for name, kinds in _TYPES.items()):
                raise TypeError
            if body.get("drawn", True) is not True:
                raise ValueError
            return cls(
                head=entry.head,
                time=body["time"],
                purpose=body["purpose"],
                event=event_in(body["event"]),
                counted=event_in(body["counted"]),
                relation=Relation(body["relation"]),
                unit=unit,
                allocation=body["allocation"],
                private=body["private"],
                settled=settled,
                epsilon_spent=body["epsilon_spent"],
                planned=event_in(body["planned"]) if body.get("planned") else None,
                drawn=bool(body.get("drawn")),
            )
        except InvalidInput:  # an event of a later version, say
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTampered(
                f"ledger entry {entry.sequence} has no complete charge: it was forged"
            ) from error

    @property
    def stopped_early(self) -> bool:
        """Whether the run ended before its plan did."""
        return self.planned is not None


_TYPES: dict[str, tuple[type, ...]] = {
    "private": (bool,),
    "purpose": (str,),
    "time": (str,),
    "allocation": (str, type(None)),
    "epsilon_spent": (float, int),
    "price": (dict,),
    "state": (dict,),
}


def event_in(data: Any) -> DpEvent:
    """Read an event from its JSON; charges of equal events share one object."""
    return _event(canonical(data))


@lru_cache(maxsize=4096)
def _event(written: bytes) -> DpEvent:
    return event_from_json(json.loads(written))


def charges_of(entries: Iterable[Entry], *, unit: str) -> list[Charge]:
    """Return the charges in entries, a settlement in the place of its reservation."""
    return list(add_charges({}, entries, unit=unit).values())


def add_charges(found: dict[int, Charge], entries: Iterable[Entry], *, unit: str) -> dict[int, Charge]:
    """Add the charges of newer entries to those known already, by entry."""
    for entry in entries:
        check_kind(entry)
        if entry.kind in ("charge", "reserve"):
            found[entry.sequence] = Charge.from_entry(entry, unit=unit, settled=entry.kind == "charge")
        elif entry.kind == "settle":
            place = entry.body["settles"]
            if place not in found or found[place].settled:
                raise LedgerTampered(
                    f"ledger entry {entry.sequence} settles no open reservation: it was forged"
                )
            found[place] = Charge.from_entry(entry, unit=unit, settled=True)
        elif entry.about is not None and not _lease_is_private(entry):
            if entry.about not in found:
                raise LedgerTampered(f"ledger entry {entry.sequence} is about no reservation: it was forged")
            found[entry.about] = replace(found[entry.about], private=False)
    return found


def _lease_is_private(entry: Entry) -> bool:
    lease = entry.body.get("lease")
    if not isinstance(lease, dict) or type(lease.get("private")) is not bool:
        raise LedgerTampered(f"ledger entry {entry.sequence} has no complete lease: it was forged")
    return bool(lease["private"])


def check_part_of(event: DpEvent, whole: DpEvent) -> None:
    if not part_of(event, whole):
        raise InvalidInput(
            "expected event to be a part of the reserved steps, the same steps and no more of them, "
            f"got event={event!r}; settle() without an event keeps all that was reserved"
        )


@dataclass(frozen=True)
class Exceeded:
    """Describe the release outside the ledger that broke the budget and closed the ledger.

    Attributes:
        entry: The number of its entry, the last of the ledger.
        time: When it was recorded, in UTC.
        purpose: Its purpose.
        owed: ε at the budget's δ of everything with it; infinite where none holds.
    """

    entry: int
    time: str
    purpose: str
    owed: float

    def refusal(self) -> BudgetExceeded:
        """Return the error of every later charge."""
        return BudgetExceeded(
            f"this ledger was closed by entry {self.entry}: {self.purpose!r} was released outside it and broke "
            f"the budget (epsilon_spent={self.owed:.6g}); collect other data under a budget of its own",
            epsilon_spent=self.owed,
            epsilon_left=0.0,
        )


def exceeded_by(last: Entry) -> Exceeded | None:
    """Return the release that broke the budget, if the newest entry is of one."""
    if last.kind != EXCEEDED:
        return None
    body = last.body
    owed = math.inf if body["owed"] is None else float(body["owed"])
    return Exceeded(last.sequence, body["time"], body["purpose"], owed)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Say which process holds a reservation, and which of its steps are durable: a lease with a fencing token.

    The reserving process holds token 1. A process that takes the reservation up, as a resumed run does, appends
    an entry with the next token; every request of an older holder is then refused. No clock is involved: a
    holder that sleeps for a week and wakes up is refused as well. A change is a new value, or a refusal.

    Attributes:
        token: Grows when another process takes the reservation up.
        begun: Whether a row may have been touched.
        private: False once noise was seeded.
        steps: How many steps are durable.
        ran: The releases of those steps.
        digest: SHA-256 of the file that holds them.
    """

    token: int = 1
    begun: bool = True
    private: bool = True
    steps: int = 0
    ran: DpEvent | None = None
    digest: str | None = None

    def begin(self) -> Lease:
        return replace(self, begun=True)

    def taken_up(self, *, private: bool) -> Lease:
        return replace(self.with_noise(private=private), token=self.token + 1)

    def with_noise(self, *, private: bool) -> Lease:
        """Return the lease after further noise: once noise was seeded, the run stays not private."""
        return replace(self, private=self.private and bool(private))

    def marked(self, ran: DpEvent, *, steps: int, digest: str) -> Lease:
        """Return the lease with a newer durable output, never with fewer steps."""
        if not self.begun:
            raise LedgerError("expected begin() before the first step, got a mark; rows are touched after it")
        _validate.integer("steps", steps, least=self.steps, remedy="a durable step stays durable")
        if not is_hexadecimal(digest, 64):
            raise InvalidInput("expected digest to be a SHA-256 in 64 hexadecimal digits, got another")
        if self.ran is not None and not part_of(self.ran, ran):
            raise InvalidInput("expected a mark that holds all that is durable already, got one with less")
        return replace(self, steps=steps, ran=ran, digest=digest)

    def refusal(self, ran: DpEvent, whole: DpEvent) -> str | None:
        """Return the reason against settling the reservation of `whole` to `ran`; None if there is none."""
        if not self.begun:
            if same_releases(ran, NoEvent()):
                return None
            return "expected begin() before rows were touched, got none; only settle(NoEvent()) is left"
        if same_releases(ran, whole):
            return None
        if self.token > 1 and self.ran is None:
            return (
                "expected a durable mark of the steps before the reservation was taken up, got none; "
                "settle() keeps all that was reserved"
            )
        if self.ran is not None and not part_of(self.ran, ran):
            return (
                f"expected at least the steps={self.steps} that are durable and so released, got an event with "
                "fewer; settle with all started steps, or without an event"
            )
        return None

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"ran": None if self.ran is None else event_to_json(self.ran)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lease:
        return cls(**{**data, "ran": None if data["ran"] is None else event_in(data["ran"])})


@dataclass(frozen=True)
class Wanted:
    """Hold the entries by which one release may be paid, and the event as the budget counts it."""

    bodies: Sequence[Body]
    counted: DpEvent

    def after(self, state: State, body: Body | None = None) -> State:
        """Return the state after `body`: drawn from a plan, or admitted, and kept as a plan if it is one."""
        body = self.bodies[0] if body is None else body
        allocation, relation = body["allocation"], Relation(body["relation"])
        if allocation in state.plans:
            if "plan" in body:
                raise InvalidInput(f"expected a share to pay for a plan, got the plan {allocation!r}")
            return state.draw(allocation, event_in(body["event"]), relation)
        after = state.admit(self.counted, allocation)
        return after.prepay(body["plan"], self.counted, relation) if "plan" in body else after

    def first_fitting(self, state: State) -> tuple[Body, State] | BudgetExceeded:
        """Return the first body that fits and the state after it, or the last refusal."""
        refused = None
        for body in self.bodies:
            try:
                return body, self.after(state, body)
            except BudgetExceeded as error:
                refused = error
        assert refused is not None  # a request names at least one allocation
        return refused

    def paid(self, before: State, body: Body) -> Body:
        """Return the price of a charge; none, and a mark of it, where it is drawn from a plan."""
        if body["allocation"] in before.plans:
            return {"drawn": True, "price": {}}
        prices = before.price(self.counted, body["allocation"])
        return {"price": {name: tally.to_json() for name, tally in prices.items()}}
