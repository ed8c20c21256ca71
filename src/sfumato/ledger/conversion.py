"""Charges stated under another relation or unit than the budget's: converted in the open, or refused."""

from __future__ import annotations

import math

from sfumato import _validate
from sfumato.accounting import ApproximateEvent, Budget, DpEvent, Relation, epsilon, pure, rdp_epsilon
from sfumato.accounting.events import check_norm_bound
from sfumato.errors import NotPrivate, RelationMismatch, UnitMismatch
from sfumato.ledger.rule import OUT_OF_NUMBERS, or_else

_SHARE = 0.01  # of the budget's δ, for one converted charge


def counted_event(event: DpEvent, budget: Budget, *, relation: Relation, unit: str) -> DpEvent:
    """What an event stated under `relation` for `unit` counts under the budget's."""
    check_unit(unit, budget)
    _validate.one_of("relation", str(relation), [str(known) for known in Relation])
    check_norm_bound(event, Relation(relation))
    if Relation(relation) is budget.relation:
        return event
    if Relation(relation) is Relation.ADD_REMOVE and budget.relation is Relation.REPLACE_ONE:
        return replace_one_from_add_remove(event, delta=budget.delta * _SHARE)
    raise RelationMismatch(
        f"expected relation={str(budget.relation)!r} as in the budget, got relation={str(relation)!r}; only "
        "add-remove can be converted, to replace-one; price the release under the budget's relation, or keep "
        "a ledger of its own for it"
    )


def check_unit(unit: str, budget: Budget) -> None:
    if unit != budget.unit:
        raise UnitMismatch(wanted=budget.unit, given=unit)


def replace_one_from_add_remove(event: DpEvent, *, delta: float) -> DpEvent:
    """To replace a unit is to remove it and add another: (ε, δ) becomes (2ε, (1+e^ε)δ), which is ≤ `delta`.

    >>> from sfumato.accounting import LaplaceEvent
    >>> replace_one_from_add_remove(LaplaceEvent(2.0), delta=0)
    ApproximateEvent(epsilon=1.0, delta=0.0)
    """
    alone = or_else(lambda: epsilon(event, 0.0), math.inf)
    if math.isfinite(alone):
        return pure(2 * alone)
    share = delta / 2
    for _ in range(60):
        if not share:
            break
        cost = _cost(event, share)
        total = math.inf if cost > 700 else (1 + math.exp(cost)) * share
        if total <= delta:
            return ApproximateEvent(2 * cost, total)
        share = min(share / 2, delta / (1 + math.exp(min(cost, 700))))
    raise _inconvertible()


def _cost(event: DpEvent, delta: float) -> float:
    """The exact ε; the Rényi bound for what has no exact one, or at a δ too small for it."""
    try:
        return epsilon(event, delta)
    except (NotPrivate, *OUT_OF_NUMBERS):
        try:
            return rdp_epsilon(event, delta)
        except (NotPrivate, *OUT_OF_NUMBERS) as error:
            raise _inconvertible() from error


def _inconvertible() -> RelationMismatch:
    return RelationMismatch(
        "expected an event that can be converted from add-remove to replace-one within the budget's δ, "
        "got one that cannot; price the release under replace-one instead"
    )
