"""A budget that was broken by a release outside the ledger: recorded, and the end of the ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.errors import BudgetExceeded
from sfumato.ledger.chain import Entry

KIND = "exceeded"


@dataclass(frozen=True)
class Exceeded:
    """The release that broke the budget.

    Attributes:
        entry: The number of its entry, the last of the ledger.
        time: When it was recorded, in UTC.
        purpose: What it was.
        owed: ε at the budget's δ of everything with it; infinite where none holds.
    """

    entry: int
    time: str
    purpose: str
    owed: float

    def refusal(self) -> BudgetExceeded:
        """Why nothing can be charged any more."""
        return BudgetExceeded(
            f"this ledger was closed by entry {self.entry}: {self.purpose!r} was released outside it and broke "
            f"the budget (epsilon_spent={self.owed:.6g}); collect other data under a budget of its own",
            epsilon_spent=self.owed,
            epsilon_left=0.0,
        )


def exceeded_by(last: Entry) -> Exceeded | None:
    """What the newest entry says of a broken budget."""
    if last.kind != KIND:
        return None
    body = last.body
    owed = math.inf if body["owed"] is None else float(body["owed"])
    return Exceeded(last.sequence, body["time"], body["purpose"], owed)
