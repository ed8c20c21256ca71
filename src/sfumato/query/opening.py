"""The ledger that belongs to a policy's file."""

from __future__ import annotations

from pathlib import Path

from sfumato.ledger import Ledger
from sfumato.policy import Policy, ledger_place

__all__ = ["ledger_place", "open_ledger"]


def open_ledger(policy: Policy, place: Path) -> Ledger:
    """That ledger; a new one gets the policy's budget."""
    return Ledger.open(ledger_place(policy, place), budget=policy.budget, dataset=policy.dataset)
