"""Checks that a ledger is true: its sums follow from its events, and no entry that a reader kept is lost.

Hashes show that entries are as they were written; `replay` shows that they were written by the rule.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from sfumato import _validate
from sfumato.accounting import Budget, DpEvent, NoEvent, Relation, event_to_json
from sfumato.accounting.events import hashable
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerTampered
from sfumato.ledger.certificate import Certificate
from sfumato.ledger.chain import FREE, OF_LEASES, Digest, Entry, Head, canonical
from sfumato.ledger.charge import EXCEEDED, Lease, event_in
from sfumato.ledger.documents import WITNESS, refuse_others
from sfumato.ledger.log import now
from sfumato.ledger.rule import Account, Rule, Tally, counted_event, exact_epsilon, part_of, same_releases
from sfumato.ledger.signing import PrivateKey, PublicKey, signer
from sfumato.ledger.state import PART, WHOLE, State
from sfumato.schema import Count, Json, Model, Words, read, read_file

if TYPE_CHECKING:
    from sfumato.ledger.ledger import Ledger

_SLACK = 1e-6  # relative: another version of the accountant may round otherwise
_COARSE = 1e-3  # and discretise otherwise


def replay(budget: Budget, entries: Iterable[Entry]) -> None:
    """Raise LedgerTampered where an entry is priced below its events, or a sum is not the sum of the prices."""
    state, before = State.empty(budget), ""
    open_: dict[int, Held] = {}
    for entry in entries:
        after = State.from_json(budget, entry.body["state"])
        _check_entry(state, after, entry, open_)
        _require((entry.kind == "arrived") == (before == "moved"), entry)
        _require(before != EXCEEDED, entry)  # it is the last
        if entry.kind == "reserve":
            open_[entry.sequence] = _opened(entry)
        elif entry.kind in OF_LEASES:
            _follow(entry, open_)
        _require(math.isclose(entry.body["epsilon_spent"], after.spent, rel_tol=_SLACK), entry)
        _require(after.of_whole.keeps(after.whole, slack=_SLACK), entry)
        state, before = after, entry.kind


@dataclass
class Held:
    """Hold an open reservation, and its lease so far."""

    body: dict[str, Any]
    lease: Lease

    @property
    def event(self) -> DpEvent:
        return event_in(self.body["event"])


def _check_entry(state: State, after: State, entry: Entry, open_: dict[int, Held]) -> None:
    """Check that an entry turns `state` into `after` by the rule."""
    held = open_.pop(entry.body["settles"], None) if entry.kind == "settle" else None
    if entry.kind in ("charge", "reserve", "settle", EXCEEDED):
        _check_counted(state.budget, entry, held)
    if entry.kind == "settle":
        _check_settlement(entry, held)
    if entry.body.get("drawn"):
        _check_drawn(state, after, entry, held)
    elif entry.kind in ("charge", "reserve"):
        _check_price(state, entry)
        _check_plans(state, after, entry)
        _check_sums(state, after, entry, {}, entry.body["price"])
        _check_limit(state, after, entry)
    elif entry.kind == "settle":
        _check_price(state, entry)
        _require(after.plans == state.plans, entry)
        _check_sums(state, after, entry, held.body["price"] if held else {}, entry.body["price"])
    elif entry.kind == "allocate":
        share, size = entry.body["allocation"], entry.body["epsilon"]
        _require(after == state.allocate(share, size, origin=entry.body.get("origin")), entry)
    else:  # the first entry, or one that costs nothing
        _require(after == state and (entry.kind in FREE or entry.sequence == 0), entry)
        _require(entry.kind != EXCEEDED or _owed(entry) >= _least_owed(state, entry), entry)


def _opened(entry: Entry) -> Held:
    lease = Lease.from_json(entry.body["lease"])
    _require(lease == Lease(begun=lease.begun, private=entry.body["private"]), entry)
    return Held(entry.body, lease)


def _follow(entry: Entry, open_: dict[int, Held]) -> None:
    """Check that tokens count up, durable steps stay, and seeded noise stays seeded."""
    held = open_.get(entry.body["about"])
    _require(held is not None, entry)
    assert held is not None
    lease = Lease.from_json(entry.body["lease"])
    if entry.kind == "mark":
        _require(lease.ran is not None and lease.digest is not None, entry)
        assert lease.ran is not None
        assert lease.digest is not None
        _require(part_of(lease.ran, held.event), entry)
        expected = held.lease.marked(lease.ran, steps=lease.steps, digest=lease.digest)
    else:
        expected = held.lease.begin() if entry.kind == "begin" else held.lease.taken_up(private=lease.private)
    _require(lease == expected, entry)
    held.lease = lease


def _check_drawn(state: State, after: State, entry: Entry, held: Held | None) -> None:
    """Check a release from a plan that still held it; its settlement changes nothing."""
    if entry.kind == "settle":
        _require(held is not None and bool(held.body.get("drawn")) and after == state, entry)
        return
    name, event = entry.body["allocation"], event_in(entry.body["event"])
    _require(entry.kind in ("charge", "reserve") and name in state.plans, entry)
    try:
        expected = state.draw(name, event, Relation(entry.body["relation"]))
    except BudgetExceeded:
        expected = None
    _require(after == expected, entry)


def _check_plans(state: State, after: State, entry: Entry) -> None:
    """Check that a plan begins with all that was charged for it, and that no other charge touches one."""
    _require(entry.body["allocation"] not in state.plans, entry)
    _require("plan" not in entry.body or entry.kind == "charge", entry)
    expected = state
    if "plan" in entry.body:
        whole = event_in(entry.body["counted"])
        expected = state.prepay(entry.body["plan"], whole, Relation(entry.body["relation"]))
    _require(after.plans == expected.plans, entry)


def _check_counted(budget: Budget, entry: Entry, held: Held | None) -> None:
    """Check that the released event is counted, or one that costs at least its conversion."""
    event, counted = event_in(entry.body["event"]), event_in(entry.body["counted"])
    if held is not None and counted == event_in(held.body["counted"]):
        return  # all that was reserved
    if event == NoEvent():
        _require(counted == event, entry)
        return
    relation = Relation(entry.body["relation"])
    converted = _converted(hashable(event), budget, relation)  # refuses an event without a bound that it needs
    if relation is budget.relation:
        _require(counted == event, entry)
    else:
        _require(_no_less(Rule(budget).price(counted), Rule(budget).price(converted), slack=_COARSE), entry)


@lru_cache(maxsize=65536)
def _converted(event: DpEvent, budget: Budget, relation: Relation) -> DpEvent:
    return counted_event(event, budget, relation=relation, unit=budget.unit)


def _no_less(stated: Tally, least: Tally, *, slack: float) -> bool:
    pairs = zip(stated.units, least.units, strict=True)
    return all(one >= other * (1 - Fraction(slack)) for one, other in pairs) and (
        stated.infinite == least.infinite
    )


def _check_limit(state: State, after: State, entry: Entry) -> None:
    """Check that a share keeps to its size; a release outside may exceed the part that no share claims."""
    allocation = entry.body["allocation"]
    kept = state.rule(allocation).keeps(after.part(allocation), slack=_SLACK)
    _require(kept or (allocation is None and bool(entry.body.get("outside"))), entry)


def _owed(entry: Entry) -> float:
    return math.inf if entry.body["owed"] is None else float(entry.body["owed"])


def _least_owed(state: State, entry: Entry) -> float:
    counted = event_in(entry.body["counted"])
    return state.of_whole.owed(state.whole, counted) * (1 - _COARSE)


def _check_price(state: State, entry: Entry) -> None:
    """Compute the price from the events again."""
    allocation = entry.body["allocation"]
    part = state.rule(allocation).budget if allocation else state.budget
    for name, budget in ((WHOLE, state.budget), (PART, part)):
        stated = Tally.from_json(entry.body["price"][name])
        _require(_no_less(stated, Rule(budget).price(event_in(entry.body["counted"])), slack=_SLACK), entry)


def _check_sums(state: State, after: State, entry: Entry, out: dict[str, Any], into: dict[str, Any]) -> None:
    """Check that the accounts after are those before, less the sums taken back, plus the price."""
    allocation = entry.body["allocation"]
    pairs = {WHOLE: (state.whole, after.whole), PART: (state.part(allocation), after.part(allocation))}
    for name, (before, now_) in pairs.items():
        total = before.tally + Tally.from_json(into[name])
        if out:
            total = total - Tally.from_json(out[name])
        _require(now_.tally == total, entry)
        _check_exact(state.of_whole if name == WHOLE else state.rule(allocation), before, now_, entry)
    _require(_others(state, allocation) == _others(after, allocation), entry)
    _require(state.origins() == after.origins(), entry)


def _check_exact(rule: Rule, before: Account, after: Account, entry: Entry) -> None:
    """Check that an exact price is that of the only plan, and that δ is whole only if it passed the filter."""
    event = event_in(entry.body["counted"])
    if after.exact is not None and after != before:
        _require(after.plans == 1, entry)
        if entry.kind == "settle":  # that of the whole plan stands, even where it was stopped
            _require(after.exact == before.exact, entry)
        else:  # an older accountant, of a coarser grid, counted a little more
            found = exact_epsilon(event, rule.budget)
            _require(found is not None and after.exact >= found * (1 - _COARSE), entry)
    if entry.kind == "settle":
        _require(after.taken == before.taken or after.tally.empty, entry)
    elif before.plans:
        _require(after.taken == before.taken, entry)
    elif not rule.passes(after, slack=_SLACK):
        _require(after.tally.empty or after.taken >= rule.failure(event) * (1 - _COARSE), entry)


def _others(state: State, allocation: str | None) -> dict[str | None, Any]:
    parts = [name for name in (None, *state.shares) if name != allocation]
    return {name: (state.rule(name).limit, state.part(name)) for name in parts}


def _check_settlement(entry: Entry, held: Held | None) -> None:
    """Check a settlement by the holder, with all durable steps, or of a reservation that was never begun."""
    _require(held is not None, entry)
    assert held is not None
    ran = event_in(entry.body["event"])
    _require(part_of(ran, held.event), entry)
    _require(entry.body["allocation"] == held.body["allocation"], entry)
    _require(entry.body["relation"] == held.body["relation"], entry)
    _require(held.body["private"] or not entry.body["private"], entry)
    lease = Lease.from_json(entry.body["lease"])
    given_back = not held.lease.begun and lease == held.lease.taken_up(private=lease.private)
    _require(given_back or lease == held.lease.with_noise(private=lease.private), entry)
    _require(held.lease.refusal(ran, held.event) is None, entry)
    _require(lease.private or not entry.body["private"], entry)
    stopped = not same_releases(ran, held.event) and not same_releases(ran, NoEvent())
    _require(entry.body["planned"] == (held.body["event"] if stopped else None), entry)


def _require(fine: bool, entry: Entry) -> None:
    if not fine:
        raise LedgerTampered(f"ledger entry {entry.sequence} does not follow from the entries before it")


# Evidence that a reader kept


def check_agreement(certificate: Certificate, entry: Entry, budget: Budget, *, dataset: str | None) -> None:
    """Raise LedgerTampered for the first field in which a certificate and its entry differ."""
    body, stated = entry.body, certificate.to_json()
    in_ledger: dict[str, tuple[Any, Any]] = {
        "event": (event_to_json(certificate.event), body.get("event")),
        "planned event": (stated["planned"], body.get("planned")),
        "dataset": (stated["dataset"], dataset),
        "relation": (stated["relation"], body.get("relation")),
        "unit": (stated["unit"], budget.unit),
        "delta": (float(stated["delta"]), budget.delta),
        "purpose": (stated["purpose"], body.get("purpose")),
        "private": (stated["private"], body.get("private")),
        "time": (stated["time"], body.get("time")),
        "ledger epsilon": (stated["epsilon"]["ledger"], body.get("epsilon_spent")),
        "entry": (stated["ledger"], entry.head.to_json()),
    }
    for name, (said, kept) in in_ledger.items():
        if canonical(said) != canonical(kept):
            raise LedgerTampered(
                f"the certificate does not say what entry {entry.sequence} says: expected {name}="
                f"{_validate.shown(kept)}, got {name}={_validate.shown(said)}"
            )


class _WitnessFile(Model):
    kind: Literal["witness"]
    name: Words
    sequence: Count
    hash: Digest
    time: Words
    signature: Json = None


@dataclass(frozen=True, kw_only=True)
class Witness:
    """State the newest entry of a ledger at one time.

    Kept where the keeper of the ledger cannot reach it, it shows a roll-back. It tells nothing about charges
    except the number of entries.

    Args:
        name: The ledger's own random name.
        head: The newest entry.
        time: When it was noted.
        signer: The key that signed it, if one did.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.create(f"{folder}/l.db", Budget(epsilon=1))
    ...     Witness.of(ledger).head == ledger.verify()
    ...     ledger.close()
    True
    """

    name: str
    head: Head
    time: str
    signer: PublicKey | None = None

    @classmethod
    def of(cls, ledger: Ledger) -> Witness:
        """Note the newest entry of a ledger.

        Args:
            ledger: The ledger.

        Returns:
            The witness.
        """
        return cls(name=ledger.name, head=ledger.head, time=now())

    def to_json(self, key: PrivateKey | None = None) -> dict[str, Any]:
        """Return the witness as a dictionary, signed if a key is given."""
        data = {"kind": "witness", "name": self.name, **self.head.to_json(), "time": self.time}
        return data if key is None else key.sign("witness", data)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Witness:
        return cls.from_json(read_file(path, "a witness of a ledger"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Witness:
        """Read the witness in `data`; NotVerified where it carries a signature that does not fit."""
        refuse_others(data, WITNESS)
        file: _WitnessFile = read(_WitnessFile, data, name="the witness")
        head = Head(sequence=file.sequence, hash=file.hash)
        return cls(name=file.name, head=head, time=file.time, signer=signer("witness", data))

    def check_followed_by(self, ledger: Ledger, key: PrivateKey | None) -> None:
        """Refuse to let the newest head of `ledger`, signed with `key`, take the place of this witness.

        It may, if it says more: the same ledger later on, under the same signature.
        """
        if self.name != ledger.name:
            raise InvalidInput(
                f"expected a witness of the ledger {ledger.place}, got one of another ledger; choose another "
                "file"
            )
        ledger.check_head(self.head)
        if self.signer is not None and (key is None or key.public != self.signer):
            raise InvalidInput(
                "expected the key that signed the witness, got another or none; sign with that key, or choose "
                "another file"
            )

    def expected_in(self, ledger: Ledger) -> Head:
        """Return the entry that `ledger.verify` must find; LedgerTampered if it is another ledger."""
        if ledger.name != self.name:
            raise LedgerTampered(
                f"the ledger {ledger.place} is not the one of the witness: it was made anew, or is another"
            )
        return self.head
