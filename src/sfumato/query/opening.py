"""The ledger that belongs to a policy's file."""

from __future__ import annotations

from pathlib import Path

from sfumato.ledger import Ledger
from sfumato.policy import Policy


def ledger_place(policy: Policy, place: Path) -> str:
    """Where the ledger of the policy in the file `place` is: where it says, or beside it."""
    return policy.ledger or str(place.with_suffix(".ledger.db"))


def open_ledger(policy: Policy, place: Path) -> Ledger:
    """That ledger; a new one gets the policy's budget."""
    return Ledger.open(ledger_place(policy, place), budget=policy.budget, dataset=policy.dataset)
