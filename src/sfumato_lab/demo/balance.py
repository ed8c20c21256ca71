"""What the stages cost together, and what happens when more is asked than is left."""

from __future__ import annotations

from sfumato.accounting import GaussianEvent, gaussian_noise_multiplier
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Ledger, statement
from sfumato.runs import ChargeLine, LedgerStatement
from sfumato_lab.demo.context import StageContext
from sfumato_lab.demo.size import BUDGET

_STATED = (
    *("epsilon", "delta", "unit", "relation"),
    *("epsilon_spent", "epsilon_left", "balance", "epsilon_if_fixed_in_advance"),
)


def balance(context: StageContext) -> LedgerStatement:
    """The ledger's statement, with what was spent after each charge, and a refusal."""
    with context.ledger() as ledger:
        spent = {charge.head.sequence: charge.epsilon_spent for charge in ledger.charges()}
        found = statement.as_json(ledger)
        refusal = _ask_for_too_much(ledger) if found["charges"] else None
    charges = [
        ChargeLine(
            epsilon_spent=spent.get(line["entry"], found["epsilon_spent"]),
            **{name: line[name] for name in ("entry", "purpose", "epsilon", "private")},
        )
        for line in found["charges"]
    ]
    return LedgerStatement(**{name: found[name] for name in _STATED}, charges=tuple(charges), refusal=refusal)


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
