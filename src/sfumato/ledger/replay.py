"""Follow a ledger from its first entry, and see whether its sums are what its charges add up to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sfumato.accounting import Budget, DpEvent, NoEvent, Relation, event_from_json, event_to_json
from sfumato.errors import BudgetExceeded, LedgerTampered
from sfumato.ledger.chain import Entry, canonical
from sfumato.ledger.charge import part_of, same_releases
from sfumato.ledger.conversion import counted_event
from sfumato.ledger.exceeded import KIND as EXCEEDED
from sfumato.ledger.kinds import FREE, OF_LEASES
from sfumato.ledger.lease import Lease, first_lease
from sfumato.ledger.rule import Account, Rule, Tally, exact_epsilon
from sfumato.ledger.state import PART, WHOLE, State

_SLACK = 1e-6  # relative: another version of the accountant may round otherwise
_COARSE = 1e-3  # and discretise otherwise
_NOTHING = canonical(event_to_json(NoEvent()))


def replay(budget: Budget, entries: Iterable[Entry], *, fine: bool) -> None:
    """Raise LedgerTampered where an entry is priced below its events, or a sum is not the sum of the prices.

    Hashes say that entries are as they were written; this says that they were written by the rule.
    """
    state = State.empty(budget, fine=fine)
    open_: dict[int, Held] = {}
    before = ""
    for entry in entries:
        after = State.from_json(budget, entry.body["state"], fine=fine)
        if entry.kind in ("charge", "reserve", "settle", EXCEEDED):
            _check_counted(budget, entry, open_.get(entry.body.get("settles", -1)))
        if entry.body.get("drawn"):
            _check_drawn(state, after, entry, open_)
        elif entry.kind in ("charge", "reserve"):
            _check_price(state, entry)
            _check_plans(state, after, entry)
            _check_sums(state, after, entry, {}, entry.body["price"])
            _check_limit(state, after, entry)
        elif entry.kind == "settle":
            held = open_.pop(entry.body["settles"], None)
            _check_settlement(entry, held)
            _check_price(state, entry)
            _require(after.plans == state.plans, entry)
            _check_sums(state, after, entry, held.body["price"] if held else {}, entry.body["price"])
        elif entry.kind == "allocate":
            share, size = entry.body["allocation"], entry.body["epsilon"]
            _require(after == state.allocate(share, size, origin=entry.body.get("origin")), entry)
        else:  # the first entry, or one that costs nothing
            _require(after == state and (entry.kind in FREE or entry.sequence == 0), entry)
            _require(entry.kind != EXCEEDED or _owed(entry) >= _least_owed(state, entry), entry)
        _require((entry.kind == "arrived") == (before == "moved"), entry)
        _require(before != EXCEEDED, entry)  # it is the last
        before = entry.kind
        if entry.kind == "reserve":
            open_[entry.sequence] = _opened(entry)
        elif entry.kind in OF_LEASES:
            _follow(entry, open_)
        spent = after.spent
        _require(math.isclose(entry.body["epsilon_spent"], spent, rel_tol=_SLACK), entry)
        _require(after.of_whole.keeps(after.whole, slack=_SLACK), entry)
        state = after


@dataclass
class Held:
    """An open reservation, and its lease so far."""

    body: dict[str, Any]
    lease: Lease

    @property
    def event(self) -> DpEvent:
        return event_from_json(self.body["event"])


def _opened(entry: Entry) -> Held:
    lease = first_lease(entry)
    _require(lease == Lease(begun=lease.begun, private=entry.body["private"]), entry)
    return Held(entry.body, lease)


def _follow(entry: Entry, open_: dict[int, Held]) -> None:
    """A lease changes by the rules: tokens count up, what is durable stays, and seeded noise stays seeded."""
    if "marks" in entry.body:  # format 1: the reservation had no lease, and the mark no digest
        held = open_.get(entry.body["marks"])
        if held is not None:
            held.lease = replace(held.lease, steps=max(held.lease.steps, entry.body["steps"]))
        return
    held = open_.get(entry.body["about"])
    _require(held is not None, entry)
    assert held is not None
    now = Lease.from_json(entry.body["lease"])
    if entry.kind == "mark":
        _require(now.ran is not None and now.digest is not None, entry)
        assert now.ran is not None
        assert now.digest is not None
        _require(part_of(now.ran, held.event), entry)
        expected = held.lease.marked(now.ran, steps=now.steps, digest=now.digest)
    else:
        expected = held.lease.begin() if entry.kind == "begin" else held.lease.taken_up(private=now.private)
    _require(now == expected, entry)
    held.lease = now


def _check_drawn(state: State, after: State, entry: Entry, open_: dict[int, Held]) -> None:
    """Taken from a plan that still held it; a settlement of what was taken changes nothing."""
    if entry.kind == "settle":
        held = open_.pop(entry.body["settles"], None)
        _check_settlement(entry, held)
        _require(held is not None and bool(held.body.get("drawn")) and after == state, entry)
        return
    name, event = entry.body["allocation"], event_from_json(entry.body["event"])
    _require(entry.kind in ("charge", "reserve") and name in state.plans, entry)
    expected: State | None
    try:
        expected = state.draw(name, event, Relation(entry.body["relation"]))
    except BudgetExceeded:
        expected = None
    _require(after == expected, entry)


def _check_plans(state: State, after: State, entry: Entry) -> None:
    """A plan begins with all that was charged for it, for good; no other charge touches one."""
    _require(entry.body["allocation"] not in state.plans, entry)
    _require("plan" not in entry.body or entry.kind == "charge", entry)
    expected = state
    if "plan" in entry.body:
        whole = event_from_json(entry.body["counted"])
        expected = state.prepay(entry.body["plan"], whole, Relation(entry.body["relation"]))
    _require(after.plans == expected.plans, entry)


def _check_counted(budget: Budget, entry: Entry, held: Held | None) -> None:
    """What is counted is what was released, or costs at least its conversion to the budget's relation."""
    event, counted = canonical(entry.body["event"]), canonical(entry.body["counted"])
    relation = Relation(entry.body["relation"])
    if held is not None and counted == canonical(held.body["counted"]):
        return  # all that was reserved
    if relation is budget.relation or event == _NOTHING:
        _require(counted == event, entry)
        return
    least, stated = _price(_converted(event, budget, relation), budget, False), _price(counted, budget, False)
    _require(_no_less(stated, least, slack=_COARSE), entry)


@lru_cache(maxsize=65536)
def _converted(event: bytes, budget: Budget, relation: Relation) -> bytes:
    found = counted_event(event_from_json(json.loads(event)), budget, relation=relation, unit=budget.unit)
    return canonical(event_to_json(found))


def _no_less(stated: Tally, least: Tally, *, slack: float) -> bool:
    high = all(
        one >= other * (1 - Fraction(slack)) for one, other in zip(stated.units, least.units, strict=True)
    )
    return high and stated.infinite == least.infinite


def _check_limit(state: State, after: State, entry: Entry) -> None:
    """A share is not spent beyond its size; what was released outside may exceed what no share claims."""
    allocation = entry.body["allocation"]
    rule = state.rule(allocation)
    kept = rule.keeps(after.part(allocation), slack=_SLACK)
    _require(kept or (allocation is None and bool(entry.body.get("outside"))), entry)


def _owed(entry: Entry) -> float:
    return math.inf if entry.body["owed"] is None else float(entry.body["owed"])


def _least_owed(state: State, entry: Entry) -> float:
    counted = event_from_json(entry.body["counted"])
    return state.of_whole.owed(state.whole, counted) * (1 - _COARSE)


def _check_price(state: State, entry: Entry) -> None:
    """Recomputed from the events, never trusted."""
    allocation = entry.body["allocation"]
    limit = state.limit(allocation) if allocation else None
    counted = canonical(entry.body["counted"])
    part = state.budget if limit is None else replace(state.budget, epsilon=limit)
    for name, budget in ((WHOLE, state.budget), (PART, part)):
        tally = _price(counted, budget, state.fine)
        stated = Tally.from_json(entry.body["price"][name])
        _require(_no_less(stated, tally, slack=_SLACK), entry)


@lru_cache(maxsize=65536)
def _price(counted: bytes, budget: Budget, fine: bool) -> Tally:
    return Rule(budget, fine=fine).price(event_from_json(json.loads(counted)))


def _check_sums(state: State, after: State, entry: Entry, out: dict[str, Any], into: dict[str, Any]) -> None:
    """The accounts after are the accounts before, less what was taken back, plus the price."""
    allocation = entry.body["allocation"]
    pairs = {WHOLE: (state.whole, after.whole), PART: (state.part(allocation), after.part(allocation))}
    for name, (before, now) in pairs.items():
        total = before.tally + Tally.from_json(into[name])
        if out:
            total = total - Tally.from_json(out[name])
        _require(now.tally == total, entry)
        _check_exact(state.of_whole if name == WHOLE else state.rule(allocation), before, now, entry)
    _require(_others(state, allocation) == _others(after, allocation), entry)
    _require(state.origins() == after.origins(), entry)


def _check_exact(rule: Rule, before: Account, now: Account, entry: Entry) -> None:
    """An exact price is that of the only plan; δ is left whole only by a plan that passed the filter."""
    event = event_from_json(entry.body["counted"])
    if now.exact is not None and now != before:
        _require(now.plans == 1 and _stands(now.exact, before, event, rule, entry), entry)
    if entry.kind == "settle":
        _require(now.taken == before.taken or now.tally.empty, entry)
    elif before.plans:
        _require(now.taken == before.taken, entry)
    elif not rule.passes(now, slack=_SLACK):
        _require(now.tally.empty or now.taken >= rule.failure(event) * (1 - _COARSE), entry)


def _stands(exact: float, before: Account, event: DpEvent, rule: Rule, entry: Entry) -> bool:
    """That of the whole plan, even where it was stopped; format 1 took that of the part that ran."""
    if entry.kind == "settle" and "lease" in entry.body:
        return exact == before.exact
    found = exact_epsilon(event, rule.budget)
    # An older accountant, of a coarser grid, counted a little more.
    return found is not None and exact >= found * (1 - _COARSE)


def _others(state: State, allocation: str | None) -> dict[str | None, Any]:
    return {name: (state.limit(name), state.part(name)) for name in state.parts() if name != allocation}


def _check_settlement(entry: Entry, held: Held | None) -> None:
    _require(held is not None, entry)
    assert held is not None
    ran = event_from_json(entry.body["event"])
    _require(part_of(ran, held.event), entry)
    _require(entry.body["allocation"] == held.body["allocation"], entry)
    _require(entry.body["relation"] == held.body["relation"], entry)
    _require(held.body["private"] or not entry.body["private"], entry)
    if "lease" in entry.body:
        _check_last_lease(entry, held, ran)


def _check_last_lease(entry: Entry, held: Held, ran: DpEvent) -> None:
    """Settled by the holder, with all that is durable; or given back by another, as nothing had begun."""
    now = Lease.from_json(entry.body["lease"])
    given_back = not held.lease.begun and now == held.lease.taken_up(private=now.private)
    _require(given_back or now == held.lease.with_noise(private=now.private), entry)
    _require(held.lease.refusal(ran, held.event) is None, entry)
    _require(now.private or not entry.body["private"], entry)
    stopped = not same_releases(ran, held.event) and not same_releases(ran, NoEvent())
    _require(entry.body["planned"] == (held.body["event"] if stopped else None), entry)


def _require(fine: bool, entry: Entry) -> None:
    if not fine:
        raise LedgerTampered(f"ledger entry {entry.sequence} does not follow from the entries before it")
