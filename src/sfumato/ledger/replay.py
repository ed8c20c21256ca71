"""Follow a ledger from its first entry, and see whether its sums are what its charges add up to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sfumato.accounting import Budget, event_from_json
from sfumato.errors import LedgerTampered
from sfumato.ledger.chain import Entry, canonical
from sfumato.ledger.charge import part_of
from sfumato.ledger.rule import Account, Rule, Tally, exact_epsilon
from sfumato.ledger.state import PART, WHOLE, State

_SLACK = 1e-6  # relative: another version of the accountant may round otherwise
_COARSE = 1e-3  # and discretise otherwise


def replay(budget: Budget, entries: Iterable[Entry]) -> None:
    """Raise LedgerTampered where an entry is priced below its events, or a sum is not the sum of the prices.

    Hashes say that entries are as they were written; this says that they were written by the rule.
    """
    state = State.empty(budget)
    reserved: dict[int, dict[str, Any]] = {}
    for entry in entries:
        after = State.from_json(budget, entry.body["state"])
        if entry.kind in ("charge", "reserve"):
            _check_price(state, entry)
            _check_sums(state, after, entry, {}, entry.body["price"])
        elif entry.kind == "settle":
            held = reserved.pop(entry.body["settles"], None)
            _check_settlement(entry, held)
            _check_price(state, entry)
            _check_sums(state, after, entry, held["price"] if held else {}, entry.body["price"])
        elif entry.kind == "allocate":
            _require(after == state.allocate(entry.body["allocation"], entry.body["epsilon"]), entry)
        else:  # the first entry, or a mark
            _require(after == state and (entry.kind == "mark" or entry.sequence == 0), entry)
        if entry.kind == "reserve":
            reserved[entry.sequence] = entry.body
        spent = after.spent
        _require(math.isclose(entry.body["epsilon_spent"], spent, rel_tol=_SLACK), entry)
        _require(spent <= budget.epsilon * (1 + _SLACK), entry)
        state = after


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
        high = all(one >= other * (1 - _SLACK) for one, other in zip(stated.units, tally.units, strict=True))
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
        exact = exact_epsilon(event, rule.budget)
        _require(
            # An older accountant, of a coarser grid, counted a little more.
            now.plans == 1 and exact is not None and now.exact >= exact * (1 - _COARSE),
            entry,
        )
    if entry.kind == "settle":
        _require(now.taken == before.taken or now.tally.empty, entry)
    elif before.plans:
        _require(now.taken == before.taken, entry)
    elif not rule.passes(now, slack=_SLACK):
        _require(now.tally.empty or now.taken >= rule.failure(event) * (1 - _COARSE), entry)


def _others(state: State, allocation: str | None) -> dict[str | None, Any]:
    return {name: (state.limit(name), state.part(name)) for name in state.parts() if name != allocation}


def _check_settlement(entry: Entry, held: dict[str, Any] | None) -> None:
    _require(held is not None, entry)
    assert held is not None
    _require(part_of(event_from_json(entry.body["event"]), event_from_json(held["event"])), entry)
    _require(entry.body["allocation"] == held["allocation"], entry)


def _require(fine: bool, entry: Entry) -> None:
    if not fine:
        raise LedgerTampered(f"ledger entry {entry.sequence} does not follow from the entries before it")
