"""What the stages cost together, and what happens when more is asked than is left."""

from __future__ import annotations

from typing import Any

from sfumato.accounting import GaussianEvent, gaussian_noise_multiplier
from sfumato.demo.context import Scene
from sfumato.demo.size import BUDGET
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Ledger, statement


def balance(scene: Scene) -> dict[str, Any]:
    """The ledger's statement, with what was spent after each charge, and a refusal."""
    with scene.ledger() as ledger:
        spent = {charge.head.sequence: charge.epsilon_spent for charge in ledger.charges()}
        found = statement.as_json(ledger)
        for line in found["charges"]:
            line.pop("event")
            line["epsilon_spent"] = spent.get(line["entry"], found["epsilon_spent"])
        refusal = _ask_for_too_much(ledger) if found["charges"] else None
    return {**found, "refusal": refusal}


def _ask_for_too_much(ledger: Ledger) -> str:
    """A release that costs the whole budget, where some of it is spent already."""
    everything = GaussianEvent(gaussian_noise_multiplier(BUDGET.epsilon, BUDGET.delta))
    try:
        ledger.charge(
            everything,
            purpose="one release more than the budget allows",
            relation=BUDGET.relation,
            unit=BUDGET.unit,
        )
    except BudgetExceeded as error:
        return str(error)
    raise AssertionError("the ledger let an overspending release through")
