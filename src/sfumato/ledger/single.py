"""What one charge costs by itself, at a price that holds also where its run was stopped early.

When to stop may have been decided on answers, and then the exact price of the shorter plan does not hold. That
of the whole plan does, and the filter's of what ran. The ledger counts by the smaller of these two, and so does
this module: of a ledger with one charge, the price of the charge is what the ledger has spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sfumato.accounting import Budget, DpEvent
from sfumato.ledger.charge import Charge
from sfumato.ledger.conversion import counted_event
from sfumato.ledger.rule import Price, Rule, exact_epsilon
from sfumato.ledger.state import State


def whole_plan(charge: Charge, budget: Budget) -> DpEvent:
    """All that was reserved for a charge, as the budget counts it; it bounds what can be seen of any part."""
    if charge.planned is None:
        return charge.counted
    return counted_event(charge.planned, budget, relation=charge.relation, unit=budget.unit)


def epsilon_alone(charge: Charge, rule: Rule, price: Price = exact_epsilon) -> float | None:
    """ε of one charge, were it the only one of the ledger; None where no finite one is known."""
    whole = whole_plan(charge, rule.budget)
    exact = price(whole, rule.budget)
    if not charge.stopped_early:
        return exact
    spent = rule.spent_on_stopped(charge.counted, whole, exact)
    return spent if math.isfinite(spent) else None


def only_plan(charges: Iterable[Charge], state: State) -> DpEvent | None:
    """The plan that alone was charged, and in full; None where charges may have been chosen on answers."""
    if state.whole.exact is None:
        return None
    paid = [charge for charge in charges if not charge.drawn and not _is_free(charge, state)]
    return whole_plan(paid[0], state.budget) if len(paid) == 1 else None


def _is_free(charge: Charge, state: State) -> bool:
    return state.of_whole.price(charge.counted).empty
