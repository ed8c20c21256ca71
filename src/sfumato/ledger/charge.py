"""A charge as the ledger has it, and what part of another an event is."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sfumato.accounting import DpEvent, Relation, compose, event_from_json, event_to_json
from sfumato.accounting.events import atoms, with_norm_bound
from sfumato.errors import InvalidInput, LedgerTampered
from sfumato.ledger.chain import Entry, Head, canonical
from sfumato.ledger.kinds import check_kind


@dataclass(frozen=True, kw_only=True)
class ChargeRequest:
    """A release that is to be charged, as a value.

    Args:
        event: What will be released.
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
    """One release as the ledger has it; `head` names its entry.

    Attributes:
        head: The entry of the charge.
        time: When it was charged, in UTC.
        purpose: One line for readers.
        event: What is released, or may be.
        counted: What the ledger counts: the event after conversion to the budget's relation.
        relation: The relation under which the event was priced.
        unit: Who is protected.
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
    counted: DpEvent  # differs from `event` if that was stated under another relation
    relation: Relation
    unit: str
    allocation: str | None
    private: bool
    settled: bool
    epsilon_spent: float  # of the whole ledger, with this charge
    planned: DpEvent | None = None  # all that was reserved, if it was stopped before it had all run
    drawn: bool = False  # from a plan that was charged before: it costs nothing more

    @classmethod
    def from_entry(cls, entry: Entry, *, unit: str, settled: bool) -> Charge:
        try:
            return cls._read(entry, unit=unit, settled=settled)
        except InvalidInput:  # an event of a later version, say
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTampered(
                f"ledger entry {entry.sequence} does not tell what a charge tells: it was forged"
            ) from error

    @classmethod
    def _read(cls, entry: Entry, *, unit: str, settled: bool) -> Charge:
        body = entry.body
        if not all(type(body[name]) in kinds for name, kinds in _TYPES.items()):
            raise TypeError
        if body.get("drawn", True) is not True:
            raise ValueError
        event = _event(repr(body["event"]))
        same = body["counted"] == body["event"]
        return cls(
            head=entry.head,
            time=body["time"],
            purpose=body["purpose"],
            event=event,
            counted=event if same else _event(repr(body["counted"])),
            relation=_RELATIONS[body["relation"]],
            unit=unit,
            allocation=body["allocation"],
            private=body["private"],
            settled=settled,
            epsilon_spent=body["epsilon_spent"],
            planned=_event(repr(body["planned"])) if body.get("planned") else None,
            drawn=bool(body.get("drawn")),
        )

    @property
    def stopped_early(self) -> bool:
        """Whether how much ran was decided while it ran."""
        return self.planned is not None


_RELATIONS = {str(relation): relation for relation in Relation}
_TYPES: dict[str, tuple[type, ...]] = {
    "private": (bool,),
    "purpose": (str,),
    "time": (str,),
    "allocation": (str, type(None)),
    "epsilon_spent": (float, int),
    "price": (dict,),
    "state": (dict,),
}


@lru_cache(maxsize=4096)
def _event(written: str) -> DpEvent:
    """Of what JSON held, as Python writes it: many charges are alike, and then have one event."""
    return event_from_json(ast.literal_eval(written))


def charges_of(entries: Iterable[Entry], *, unit: str) -> list[Charge]:
    """The charges that entries tell of, a settlement in the place of its reservation."""
    return list(add_charges({}, entries, unit=unit).values())


def add_charges(found: dict[int, Charge], entries: Iterable[Entry], *, unit: str) -> dict[int, Charge]:
    """The charges that are known already, by entry, with what newer entries tell."""
    for entry in entries:
        check_kind(entry)
        if entry.kind in ("charge", "reserve"):
            found[entry.sequence] = Charge.from_entry(entry, unit=unit, settled=entry.kind == "charge")
        elif entry.kind == "settle":
            settle(found, entry.body["settles"], Charge.from_entry(entry, unit=unit, settled=True))
        elif entry.about is not None and not _lease_is_private(entry):
            if entry.about not in found:
                raise LedgerTampered(f"ledger entry {entry.sequence} is about no reservation: it was forged")
            found[entry.about] = replace(found[entry.about], private=False)
    return found


def settle(found: dict[int, Charge], place: int, charge: Charge) -> None:
    """Put a settlement in the place of its reservation."""
    if place not in found or found[place].settled:
        raise LedgerTampered(f"ledger entry {charge.head.sequence} settles no open reservation: it was forged")
    found[place] = charge


def _lease_is_private(entry: Entry) -> bool:
    lease = entry.body.get("lease")
    if not isinstance(lease, dict) or type(lease.get("private")) is not bool:
        raise LedgerTampered(f"ledger entry {entry.sequence} does not tell what a lease tells: it was forged")
    return bool(lease["private"])


def part_of(event: DpEvent, whole: DpEvent) -> bool:
    """Whether `event` consists of releases of `whole`, each no more often: it then cannot cost more.

    >>> from sfumato.accounting import GaussianEvent, repeat
    >>> part_of(repeat(GaussianEvent(2.0), 3), repeat(GaussianEvent(2.0), 8))
    True
    >>> part_of(GaussianEvent(4.0), repeat(GaussianEvent(2.0), 8))
    False
    """
    available = _releases(whole)
    return all(count <= available[release] for release, count in _releases(event).items())


def _releases(event: DpEvent) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for release, count in atoms(event):  # one written before norm bounds were stated is the same with its bound
        counts[canonical(event_to_json(with_norm_bound(release)))] += count
    return counts


def same_releases(event: DpEvent, other: DpEvent) -> bool:
    """Whether both consist of the same releases, each as often."""
    return _releases(event) == _releases(other)


def check_part_of(event: DpEvent, whole: DpEvent) -> None:
    if not part_of(event, whole):
        raise InvalidInput(
            "expected event to be what ran of the reserved steps, the same steps and no more of them, "
            f"got event={event!r}; settle() without an event keeps all that was reserved"
        )


def as_one(event: DpEvent | Sequence[DpEvent]) -> DpEvent:
    """A plan of several releases as one event."""
    return event if isinstance(event, DpEvent) else compose(*event)
