"""A refusal of a plan that is reserved already: perhaps a run was started again instead of being resumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sfumato.accounting import DpEvent
from sfumato.errors import BudgetExceeded
from sfumato.ledger.charge import Charge, same_releases


def pointing_at(
    refusal: BudgetExceeded, wanted: Sequence[DpEvent], charges: Iterable[Charge], allocation: str | None
) -> BudgetExceeded:
    """The refusal, with the newest unfinished run of the same plan and the same share if there is one.

    Plans of others are not spoken of: whoever may not see the ledger reads refusals too.
    """
    same = [
        charge
        for charge in charges
        if not charge.settled
        and charge.allocation == allocation
        and any(same_releases(charge.event, event) for event in wanted)
    ]
    if not same:
        return refusal
    run = same[-1]
    return BudgetExceeded(
        f"{refusal}; entry {run.head.sequence}, {run.purpose!r}, holds the same plan and is not finished: if "
        "it is this run, resume its checkpoint, which costs nothing more (resume() in Python, the same --out "
        "in a command)",
        epsilon_spent=refusal.epsilon_spent,
        epsilon_left=refusal.epsilon_left,
    )
