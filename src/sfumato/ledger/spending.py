"""What a charge does to the journal: it is priced, admitted or refused, and written in one transaction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sfumato.accounting import DpEvent, Relation, event_from_json
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger.chain import Entry
from sfumato.ledger.journal import Journal
from sfumato.ledger.state import State

Body = dict[str, Any]
"""What an entry will say, but for its price and its sums."""


def spend(
    journal: Journal, body: Body, counted: DpEvent, *, noted: Callable[[Entry], None] = lambda entry: None
) -> Entry:
    """The entry of one charge; BudgetExceeded where it does not fit, and nothing is written."""
    (found,) = spend_each(journal, [([body], counted)], noted=noted)
    if isinstance(found, BudgetExceeded):
        raise found
    return found


def spend_each(
    journal: Journal,
    wanted: Sequence[tuple[Sequence[Body], DpEvent]],
    *,
    noted: Callable[[Entry], None] = lambda entry: None,
) -> list[Entry | BudgetExceeded]:
    """One entry for each event, by the first of its bodies that fits.

    `noted` is told of each entry before any of them is durable; if it raises, none is written.
    """
    # Refusals need no lock: the state read here was the newest at that moment. It also prices the events,
    # which takes long for a first plan, before others have to wait.
    now = journal.state(journal.open_last())
    refused = [_first_fitting(now, bodies, counted) for bodies, counted in wanted]
    if all(isinstance(one, BudgetExceeded) for one in refused):
        return [one for one in refused if isinstance(one, BudgetExceeded)]
    found: list[Entry | BudgetExceeded] = []
    with journal.writing() as last:
        for early, (bodies, counted) in zip(refused, wanted, strict=True):
            before = journal.state(last)
            fitting = early if isinstance(early, BudgetExceeded) else _first_fitting(before, bodies, counted)
            if isinstance(fitting, BudgetExceeded):
                found.append(fitting)
                continue
            body, after = fitting
            journal.spends()
            last = journal.append({**body, **_paid(before, body, counted)}, after, last)
            noted(last)
            found.append(last)
    return found


def record(journal: Journal, body: Body, counted: DpEvent) -> Entry | None:
    """The charge of what was released already; None where it broke the budget, which an entry then says.

    `body` says that the budget is broken, and is changed to a charge where it is not.
    """
    journal.state(journal.open_last()).take(counted)  # prices it before others have to wait
    with journal.writing() as last:
        before = journal.state(last)
        after = before.take(counted)
        journal.spends()
        if after is None:
            owed = before.of_whole.owed(before.whole, counted)
            journal.append({**body, "owed": owed if math.isfinite(owed) else None}, before, last)
            return None
        price = {name: tally.to_json() for name, tally in before.price(counted, None).items()}
        return journal.append({**body, "kind": "charge", "outside": True, "price": price}, after, last)


def set_aside(
    journal: Journal, sizes: Mapping[str, float], said: Mapping[str, str], origins: Mapping[str, str]
) -> None:
    """Write shares of the budget, all of them or none.

    A share with an origin is known by it: it is written once, under another name where its own is taken.
    """
    with journal.writing() as last:
        for name, size in sizes.items():
            before, origin = journal.state(last), origins.get(name)
            if origin is None:
                called, words = name, said
            elif origin not in (known := before.origins()):
                called, words = before.unused(name), {**said, "origin": origin}
            elif (made := before.shares[known[origin]].epsilon) == size:
                continue
            else:
                raise InvalidInput(
                    f"expected the share of origin={origin!r} with its epsilon={made:g}, got epsilon={size:g}; "
                    "ask for a share with another origin"
                )
            body = {"kind": "allocate", "allocation": called, "epsilon": size, **words}
            last = journal.append(body, before.allocate(called, size, origin=origin), last)


def _paid(before: State, body: Body, counted: DpEvent) -> Body:
    """What a charge counts; nothing, and marked as such, where it is drawn from a plan."""
    if body["allocation"] in before.plans:
        return {"drawn": True, "price": {}}
    prices = before.price(counted, body["allocation"])
    return {"price": {name: tally.to_json() for name, tally in prices.items()}}


def _after(state: State, body: Body, counted: DpEvent) -> State:
    """The state once `body` is written: drawn from a plan, or admitted, and kept as a plan if it is one."""
    allocation, relation = body["allocation"], Relation(body["relation"])
    if allocation in state.plans:
        if "plan" in body:
            raise InvalidInput(f"expected a share to pay for a plan, got the plan {allocation!r}")
        return state.draw(allocation, event_from_json(body["event"]), relation)
    after = state.admit(counted, allocation)
    return after.prepay(body["plan"], counted, relation) if "plan" in body else after


def _first_fitting(
    state: State, bodies: Sequence[Body], counted: DpEvent
) -> tuple[Body, State] | BudgetExceeded:
    """The first of several ways to charge an event that fits, and the state after it; or why none does."""
    refused = None
    for body in bodies:
        try:
            return body, _after(state, body, counted)
        except BudgetExceeded as error:
            refused = error
    assert refused is not None  # a request names at least one allocation
    return refused
