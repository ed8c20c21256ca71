"""Follow a ledger from its first entry, and see whether its sums are what its charges add up to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sfumato.accounting import Budget, DpEvent, NoEvent, event_from_json
from sfumato.errors import LedgerTampered
from sfumato.ledger.chain import Entry, canonical
from sfumato.ledger.charge import part_of, same_releases
from sfumato.ledger.lease import KINDS, Lease, first_lease
from sfumato.ledger.rule import Account, Rule, Tally, exact_epsilon
from sfumato.ledger.state import PART, WHOLE, State

MOVES = ("moved", "arrived")
_SLACK = 1e-6  # relative: another version of the accountant may round otherwise
_COARSE = 1e-3  # and discretise otherwise


def replay(budget: Budget, entries: Iterable[Entry]) -> None:
    """Raise LedgerTampered where an entry is priced below its events, or a sum is not the sum of the prices.

    Hashes say that entries are as they were written; this says that they were written by the rule.
    """
    state = State.empty(budget)
    open_: dict[int, Held] = {}
    before = ""
    for entry in entries:
        after = State.from_json(budget, entry.body["state"])
        if entry.kind in ("charge", "reserve"):
            _check_price(state, entry)
            _check_sums(state, after, entry, {}, entry.body["price"])
        elif entry.kind == "settle":
            held = open_.pop(entry.body["settles"], None)
            _check_settlement(entry, held)
            _check_price(state, entry)
            _check_sums(state, after, entry, held.body["price"] if held else {}, entry.body["price"])
        elif entry.kind == "allocate":
            _require(after == state.allocate(entry.body["allocation"], entry.body["epsilon"]), entry)
        else:  # the first entry, or one that costs nothing
            _require(after == state and (entry.kind in (*KINDS, *MOVES) or entry.sequence == 0), entry)
        _require((entry.kind == "arrived") == (before == "moved"), entry)
        before = entry.kind
        if entry.kind == "reserve":
            open_[entry.sequence] = _opened(entry)
        elif entry.kind in KINDS:
            _follow(entry, open_)
        spent = after.spent
        _require(math.isclose(entry.body["epsilon_spent"], spent, rel_tol=_SLACK), entry)
        _require(spent <= budget.epsilon * (1 + _SLACK), entry)
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


def _check_price(state: State, entry: Entry) -> None:
    """Recomputed from the events, never trusted."""
    allocation = entry.body["allocation"]
    limit = state.limit(allocation) if allocation else None
    counted = canonical(entry.body["counted"])
    for name, tally in (
        (WHOLE, _price(counted, state.budget)),
        (PART, _price(counted, state.budget if limit is None else replace(state.budget, epsilon=limit))),
    ):
        stated = Tally.from_json(entry.body["price"][name])
        least = [units * (1 - Fraction(_SLACK)) for units in tally.units]
        high = all(one >= other for one, other in zip(stated.units, least, strict=True))
        _require(high and stated.infinite == tally.infinite, entry)


@lru_cache(maxsize=65536)
def _price(counted: bytes, budget: Budget) -> Tally:
    return Rule(budget).price(event_from_json(json.loads(counted)))


def _check_sums(state: State, after: State, entry: Entry, out: dict[str, Any], into: dict[str, Any]) -> None:
    """The accounts after are the accounts before, less what was taken back, plus the price."""
    allocation = entry.body["allocation"]
    pairs = {WHOLE: (state.whole, after.whole), PART: (state.part(allocation), after.part(allocation))}
    for name, (before, now) in pairs.items():
        total = before.tally + Tally.from_json(into[name])
        if out:
            total = total - Tally.from_json(out[name])
        _require(now.tally == total, entry)
        _check_exact(Rule(state.budget) if name == WHOLE else state.rule(allocation), before, now, entry)
    _require(_others(state, allocation) == _others(after, allocation), entry)


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
