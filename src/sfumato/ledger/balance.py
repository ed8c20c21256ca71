"""A budget taken apart, so that what is shown of it adds up: spent, set aside, left, and a surcharge.

What is left is the largest further pure ε that the privacy filter would accept. It can be less than the rest of
the budget: later charges may have been chosen after seeing answers, which is what the surcharge is for. Several
charges can also cost less together than one by one; the surcharge is then below 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.ledger.state import State


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The ε of a budget or of a share of it: total = spent + set_aside + left + surcharge.

    Attributes:
        total: All of it.
        spent: By the ledger's rule; more than `total` where a release outside broke the budget.
        set_aside: What shares claim and have not spent.
        left: The largest further pure ε of a charge.

    >>> Balance(total=6.0, spent=0.7, set_aside=4.3, left=1.0).in_words()
    'Spent 0.7, set aside 4.3, left 1: ε = 6 in all.'
    >>> Balance(total=2.0, spent=1.2, left=0.7).in_words()
    'Spent 1.2, left 0.7, surcharge of the privacy filter 0.1: ε = 2 in all.'
    >>> Balance(total=2.0, spent=1.494, left=0.5388).in_words()
    'Spent 1.494, left 0.5388, less 0.0328 that charges save together: ε = 2 in all.'
    """

    total: float
    spent: float
    set_aside: float = 0.0
    left: float

    @classmethod
    def of(cls, state: State, allocation: str | None = None) -> Balance:
        """The balance of a share; without a name that of the whole budget."""
        if allocation is not None:
            spent, left = state.spent_by(allocation), state.left(allocation)
            return cls(total=state.limit(allocation), spent=spent, left=left)
        claimed = math.fsum(max(0.0, state.limit(name) - state.spent_by(name)) for name in state.shares)
        total, spent = state.budget.epsilon, state.spent
        # A share is a cap: after a release outside, the whole budget can be over before it.
        aside = min(claimed, max(0.0, total - spent))
        return cls(total=total, spent=spent, set_aside=aside, left=state.left())

    @classmethod
    def unclaimed(cls, state: State) -> Balance:
        """The balance of what no share claims."""
        return cls(total=state.limit(None), spent=state.spent_by(None), left=state.left())

    @property
    def surcharge(self) -> float:
        return self.total - math.fsum((self.spent, self.set_aside, self.left))

    @property
    def broken(self) -> bool:
        """Whether more is owed than the budget, so that nothing adds up any more."""
        return self.spent > self.total * (1 + 1e-9)

    def figure(self, value: float) -> str:
        """A part in digits: as many for each part, so that the shown parts add up to the shown total."""
        digits = 4 if self.total >= 1 else 4 - math.floor(math.log10(self.total)) if self.total > 0 else 4
        if 0 < abs(value) < 0.5 * 10**-digits:
            return f"{value:.1g}"
        return f"{value:.{digits}f}".rstrip("0").rstrip(".").replace("-", "−")

    def parts(self) -> list[tuple[str, str]]:
        """The name and the figure of each part; set aside and surcharge only where they are not 0."""
        if self.broken:
            return [("owed", self.figure(self.spent)), ("left", "0")]
        found = [("spent", self.figure(self.spent)), ("left", self.figure(self.left))]
        if self.set_aside:
            found.insert(1, ("set aside", self.figure(self.set_aside)))
        if self._shows_surcharge:
            found.append(("surcharge of the privacy filter", self.figure(self.surcharge)))
        return found

    @property
    def _shows_surcharge(self) -> bool:
        """Unless it is 0, or below the digits of the other parts."""
        shown = self.figure(self.surcharge)
        return shown != "0" and "e" not in shown

    def in_words(self) -> str:
        """One sentence."""
        if self.broken:
            owed = f"ε = {self.spent:.4g}" if math.isfinite(self.spent) else "more than any ε"
            return f"{owed} is owed in all, of a budget of ε = {self.figure(self.total)}; nothing is left."
        words = [f"{name} {figure}" for name, figure in self.parts()]
        if self._shows_surcharge and self.surcharge < 0:
            words[-1] = f"less {self.figure(-self.surcharge)} that charges save together"
        return f"S{', '.join(words)[1:]}: ε = {self.figure(self.total)} in all."
