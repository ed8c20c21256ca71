"""All accounts of a ledger: the whole budget, the shares set aside for teams or purposes, and the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato.accounting import Budget, DpEvent, Relation
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger.prepaid import Prepaid
from sfumato.ledger.rule import Account, Price, Rule, Tally, exact_epsilon

WHOLE, PART = "whole", "part"


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the budget's ε that only charges under its name may use, and that they may not exceed."""

    epsilon: float
    account: Account
    origin: str | None = None  # the id under which another program knows the share


@dataclass(frozen=True, kw_only=True)
class State:
    """What has been spent, as values: every change returns a new state, or raises and changes nothing.

    Every charge counts against the whole budget. Once there are shares, a charge under a share's name also
    counts against that share, by the same rule with the share's ε; a charge under no name also counts against
    what no share claims. Shares never exceed the budget together, so nobody can spend another's. The guarantee
    is the whole's: a share is a cap, and is over when the whole is.
    """

    budget: Budget
    fine: bool  # how the filter counts, for as long as the ledger lives
    whole: Account
    rest: Account
    shares: dict[str, Share] = field(default_factory=dict)
    plans: dict[str, Prepaid] = field(default_factory=dict)  # paid for, and what is left of them

    @classmethod
    def empty(cls, budget: Budget, *, fine: bool) -> State:
        nothing = Rule(budget, fine=fine).nothing
        return cls(budget=budget, fine=fine, whole=nothing, rest=nothing)

    @property
    def of_whole(self) -> Rule:
        """The rule of the whole budget."""
        return Rule(self.budget, fine=self.fine)

    @property
    def spent(self) -> float:
        return self.of_whole.spent(self.whole)

    def spent_by(self, allocation: str | None) -> float:
        rule, account = self._part(allocation)
        return rule.spent(account)

    def left(self, allocation: str | None = None) -> float:
        """The largest pure ε that a charge under this allocation may still have; of a plan, the ε it holds."""
        if allocation in self.plans:
            return exact_epsilon(self.plans[allocation].left, self.budget) or 0.0
        rule, account = self._part(allocation)
        return self.of_whole.left(self.whole, at_most=rule.left(account))

    def left_to_gaussian(self, price: Price) -> float:
        """The largest ε of one further Gaussian release that a charge under no allocation may still have."""
        rule, account = self._part(None)
        return min(self.of_whole.left_to_gaussian(self.whole, price), rule.left_to_gaussian(account, price))

    def price(self, event: DpEvent, allocation: str | None) -> dict[str, Tally]:
        """What `event` counts for the whole and for its part."""
        whole = self.of_whole.price(event)
        # Without a share's own ε the part counts at the same orders.
        part = whole if allocation is None else self._part(allocation)[0].price(event)
        return {WHOLE: whole, PART: part}

    def admit(self, event: DpEvent, allocation: str | None) -> State:
        rule, account = self._part(allocation)
        whole = self.of_whole.admit(self.whole, event)
        if whole is None:
            raise self._exceeded(f"the budget of epsilon={self.budget.epsilon:g}", allocation)
        if allocation is None and not self.shares:
            return replace(self, whole=whole, rest=whole)
        part = rule.admit(account, event)
        if part is None:
            owner = f"the share of {allocation!r}" if allocation else "what no share claims"
            raise self._exceeded(f"{owner}, epsilon={rule.limit:g}", allocation)
        return self._with(whole, part, allocation)

    def take(self, event: DpEvent) -> State | None:
        """With a release outside; None where the whole budget has no room for it, whatever shares claim."""
        whole = self.of_whole.admit(self.whole, event)
        if whole is None or not self.shares:
            return None if whole is None else replace(self, whole=whole, rest=whole)
        rule, account = self._part(None)
        return self._with(whole, rule.take(account, event), None)

    def lower(self, before: dict[str, Tally], event: DpEvent, allocation: str | None) -> State:
        """With a charge that counted `before` replaced by what ran of it."""
        rule, account = self._part(allocation)
        whole = self.of_whole.lower(self.whole, before[WHOLE], event)
        return self._with(whole, rule.lower(account, before[PART], event), allocation)

    def origins(self) -> dict[str, str]:
        """The name of each share that has an origin, by origin."""
        return {share.origin: name for name, share in self.shares.items() if share.origin is not None}

    def unused(self, name: str) -> str:
        """Return the name, with a number behind it where a share or a plan has the name already."""
        found, number = name, 1
        while found in self.shares or found in self.plans:
            number += 1
            found = f"{name} ({number})"
        return found

    def allocate(self, name: str, epsilon: float, *, origin: str | None = None) -> State:
        if origin is not None and origin in self.origins():
            raise InvalidInput(f"expected an origin that no share has yet, got origin={origin!r}")
        if name in self.shares or name in self.plans:
            raise InvalidInput(
                f"expected a name that has no share yet, got allocation={name!r}; choose another"
            )
        free = max(0.0, self._unclaimed - self.of_whole.spent(self.rest))
        if epsilon > free * (1 + 1e-12):
            raise InvalidInput(
                f"expected epsilon <= {free:g}, which is neither spent nor claimed by another share, "
                f"got epsilon={epsilon:g} for allocation={name!r}"
            )
        share = Share(epsilon=epsilon, account=self._share_rule(epsilon).nothing, origin=origin)
        return replace(self, shares={**self.shares, name: share})

    def prepay(self, name: str, event: DpEvent, relation: Relation) -> State:
        """With a plan under this name, which was admitted already."""
        if name in self.shares or name in self.plans:
            raise InvalidInput(
                f"expected a name that no share or plan has yet, got plan={name!r}; give the plan another name"
            )
        return replace(self, plans={**self.plans, name: Prepaid(left=event, relation=Relation(relation))})

    def draw(self, name: str, event: DpEvent, relation: Relation) -> State:
        """With `event` taken from a plan that was paid for."""
        return replace(self, plans={**self.plans, name: self.plans[name].draw(event, relation, name)})

    def to_json(self) -> dict[str, Any]:
        shares = {
            name: {"epsilon": share.epsilon, "account": share.account.to_json()}
            | ({} if share.origin is None else {"origin": share.origin})
            for name, share in self.shares.items()
        }
        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        state = {"whole": self.whole.to_json(), "rest": self.rest.to_json(), "shares": shares}
        return {**state, "plans": plans} if plans else state

    @classmethod
    def from_json(cls, budget: Budget, data: dict[str, Any], *, fine: bool) -> State:
        shares = {
            name: Share(
                epsilon=share["epsilon"],
                account=Account.from_json(share["account"]),
                origin=share.get("origin"),
            )
            for name, share in data["shares"].items()
        }
        whole, rest = Account.from_json(data["whole"]), Account.from_json(data["rest"])
        plans = {name: Prepaid.from_json(plan) for name, plan in data.get("plans", {}).items()}
        return cls(budget=budget, fine=fine, whole=whole, rest=rest, shares=shares, plans=plans)

    def parts(self) -> Iterator[str | None]:
        yield None
        yield from self.shares

    @property
    def _unclaimed(self) -> float:
        return max(0.0, self.budget.epsilon - math.fsum(share.epsilon for share in self.shares.values()))

    def part(self, allocation: str | None) -> Account:
        return self._part(allocation)[1]

    def rule(self, allocation: str | None) -> Rule:
        return self._part(allocation)[0]

    def limit(self, allocation: str | None) -> float:
        return self._part(allocation)[0].limit

    def _part(self, allocation: str | None) -> tuple[Rule, Account]:
        if allocation is None:
            return Rule(self.budget, fine=self.fine, limit=self._unclaimed), self.rest
        if allocation not in self.shares:
            known = ", ".join(map(repr, sorted((*self.shares, *self.plans)))) or "none"
            raise InvalidInput(f"expected allocation to be one of: {known}; got allocation={allocation!r}")
        share = self.shares[allocation]
        return self._share_rule(share.epsilon), share.account

    def _share_rule(self, epsilon: float) -> Rule:
        return Rule(replace(self.budget, epsilon=epsilon), fine=self.fine)

    def _with(self, whole: Account, part: Account, allocation: str | None) -> State:
        if allocation is None:
            return replace(self, whole=whole, rest=part)
        share = replace(self.shares[allocation], account=part)
        return replace(self, whole=whole, shares={**self.shares, allocation: share})

    def _exceeded(self, what: str, allocation: str | None) -> BudgetExceeded:
        spent, left = self.spent, self.left(allocation)
        remedy = "add noise, or ask for fewer releases"
        if self.budget.delta == 0:
            remedy += "; Gaussian noise, as in training, needs a ledger with delta above 0"
        return BudgetExceeded(
            f"expected a charge that fits {what} at delta={self.budget.delta:g}, got one that does not; "
            f"epsilon_spent={spent:.6g}, epsilon_left={left:.6g}; {remedy}",
            epsilon_spent=spent,
            epsilon_left=left,
        )
