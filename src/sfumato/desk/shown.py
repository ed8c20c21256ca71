"""What the desk tells of policies and ledgers, as plain values for pages and programs."""

from __future__ import annotations

import math
from typing import Any

from sfumato.desk.datasets import Dataset
from sfumato.desk.desk import Desk
from sfumato.ledger import Charge, Ledger
from sfumato.ledger.statement import epsilon_alone
from sfumato.policy import Column, Policy


def policy_in_words(policy: Policy) -> dict[str, Any]:
    """What is declared: no source, no path, no ledger."""
    each = policy.tables or {policy.table: policy}
    return {
        "tables": {
            name: {
                "columns": {column.name: _column(column) for column in one.columns.values()},
                "public_size": one.public_size,
                "unit": one.budget.unit,
                "rows_of_a_unit": one.unit.rows,
                "groups_of_a_unit": one.unit.groups,
            }
            for name, one in each.items()
        },
        "public_tables": {
            name: {column.name: _column(column) for column in one.columns.values()}
            for name, one in policy.public.items()
        },
        "epsilon": policy.budget.epsilon,
        "delta": policy.budget.delta,
    }


def _column(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"type": column.type}
    if column.lower is not None and column.upper is not None:
        found |= {"lower": _plain(column.lower), "upper": _plain(column.upper)}
    if column.categories is not None:
        found["categories"] = list(column.categories)
    return found


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def public_facts(desk: Desk) -> dict[str, Any]:
    """What anyone may know of the desk: what is promised, how much was released, and the heads."""
    return {"name": desk.settings.name, "datasets": [_public(dataset) for dataset in desk.each()]}


def _public(dataset: Dataset) -> dict[str, Any]:
    ledger = dataset.ledger
    charges, state, head = dataset.charges()
    broken = ledger.exceeded
    spent = state.spent if broken is None else broken.owed
    return {
        "name": dataset.name,
        "promise": promise(ledger),
        "epsilon": ledger.budget.epsilon,
        "delta": ledger.budget.delta,
        "unit": ledger.budget.unit,
        "relation": str(ledger.budget.relation),
        "epsilon_spent": spent if math.isfinite(spent) else None,
        "broken": broken is not None,
        "releases": len(charges),
        "private": all(charge.private for charge in charges),
        "head": head.to_json(),
    }


def promise(ledger: Ledger) -> str:
    """The guarantee in words, with the largest change of anybody's guess that it lets happen.

    From even odds, ε-DP moves a guess about one unit to at most 1 / (1 + e^-ε) (Wasserman and Zhou 2010).
    """
    budget, broken = ledger.budget, ledger.exceeded
    if broken is not None:
        owed = f"ε = {broken.owed:.4g}" if math.isfinite(broken.owed) else "no finite ε"
        return (
            f"We promised ε ≤ {budget.epsilon:g} for any one {budget.unit}. That promise was broken by a "
            f"release outside this desk: {owed} is what holds. Nothing more is published from these data."
        )
    return (
        f"Whatever is published from these data, all of it together, shows almost the same with or without any "
        f"one {budget.unit}: ε ≤ {budget.epsilon:g}" + (f" at δ = {budget.delta:g}." if budget.delta else ".")
    )


def charge_in_words(ledger: Ledger, charge: Charge) -> dict[str, Any]:
    """One line of the ledger, as officers see it."""
    return {
        "entry": charge.head.sequence,
        "time": charge.time,
        "purpose": charge.purpose,
        "allocation": charge.allocation,
        "epsilon": epsilon_alone(charge, ledger.state.of_whole),
        "spent": charge.epsilon_spent,
        "settled": charge.settled,
        "stopped_early": charge.stopped_early,
        "private": charge.private,
        "hash": charge.head.hash,
    }
