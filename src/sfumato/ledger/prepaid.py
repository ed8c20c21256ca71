"""A plan that was charged as one, and what of it was not drawn yet.

A plan is a list of releases, fixed and paid before the first of them. Later each is drawn from it at no further
price: what is asked may depend on earlier answers, how much noise it gets may not.

*Proof.* Let each release be dominated by a pair (Pᵢ, Qᵢ) that the plan fixes. Losses of dominating pairs add up
independently, whatever was asked before (Zhu, Dong & Wang 2022, theorem 10), so that after any first draws the
worst case of what is left is the composition of the pairs that are left. That is the same in every order: by
induction over the number of releases left, no choice of the next one, made after seeing answers, changes the
total. A release that is never drawn could be run and not looked at: post-processing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sfumato.accounting import DpEvent, Relation, compose, event_from_json, event_to_json, repeat
from sfumato.accounting.events import atoms, with_norm_bound
from sfumato.errors import BudgetExceeded
from sfumato.ledger.chain import canonical


@dataclass(frozen=True, kw_only=True)
class Prepaid:
    """What is left of a plan, and the relation under which it was priced."""

    left: DpEvent
    relation: Relation

    def draw(self, event: DpEvent, relation: Relation, name: str) -> Prepaid:
        """What is left after `event`; BudgetExceeded if the plan does not hold it any more."""
        releases, available = _counted(event), _counted(self.left)
        short = [key for key, (_, count) in releases.items() if count > available.get(key, (None, 0))[1]]
        if short or Relation(relation) is not self.relation:
            raise BudgetExceeded(
                f"expected a release that the plan {name!r} holds and that was not made yet, got "
                f"{_words(event)}; left are {_words(self.left)}; give it exactly the noise of the plan, or "
                "charge it under no plan",
                epsilon_spent=0.0,
                epsilon_left=0.0,
            )
        rest = Counter({key: count for key, (_, count) in available.items()})
        rest.subtract({key: count for key, (_, count) in releases.items()})
        return Prepaid(
            left=compose(*(repeat(available[key][0], count) for key, count in rest.items() if count)),
            relation=self.relation,
        )

    def to_json(self) -> dict[str, Any]:
        return {"left": event_to_json(self.left), "relation": str(self.relation)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Prepaid:
        return cls(left=event_from_json(data["left"]), relation=Relation(data["relation"]))


def _words(event: DpEvent) -> str:
    """The releases with their noise, the first few of them."""
    found = [f"{count} × {release}" for release, count in _counted(event).values()]
    return ", ".join(found[:4]) + (" and more" if len(found) > 4 else "") or "none"


def _counted(event: DpEvent) -> dict[bytes, tuple[DpEvent, int]]:
    found: dict[bytes, tuple[DpEvent, int]] = {}
    for release, count in atoms(event):
        key = canonical(event_to_json(with_norm_bound(release)))
        found[key] = (release, found.get(key, (release, 0))[1] + count)
    return dict(sorted(found.items()))
