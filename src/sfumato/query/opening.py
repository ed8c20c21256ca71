"""The ledger that belongs to a policy's file."""

from __future__ import annotations

from pathlib import Path

from sfumato.accounting import warn_of_little_protection
from sfumato.ledger import Ledger
from sfumato.policy import Policy, ledger_place

__all__ = ["ledger_place", "make_ledger", "open_ledger"]


def open_ledger(policy: Policy, place: Path) -> Ledger:
    """That ledger; where there is none, the first charge makes it with the policy's budget, and nothing else.

    A query that is refused, a dry run and a prompt that is closed again leave no ledger behind: a draft of a
    policy settles no budget.
    """
    warn_of_little_protection(
        "this budget", policy.budget.epsilon, policy.budget.delta, people=policy.least_people
    )
    where = ledger_place(policy, place)
    return Ledger.open(where, budget=policy.budget, dataset=policy.dataset, when_charged=True)


def make_ledger(policy: Policy, place: Path) -> Ledger:
    """That ledger, made now if there is none: for a desk, which writes more than charges into it."""
    warn_of_little_protection(
        "this budget", policy.budget.epsilon, policy.budget.delta, people=policy.least_people
    )
    return Ledger.open(ledger_place(policy, place), budget=policy.budget, dataset=policy.dataset)
