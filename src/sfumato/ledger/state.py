"""Accounts of a ledger as values: the whole budget, the shares set aside, the plans that were paid in advance.

*A plan* is a list of releases, fixed and paid before the first of them. Later each is drawn from it at no
further price: which release comes next may depend on earlier answers, its noise may not.

*Proof.* Let each release be dominated by a pair (Pᵢ, Qᵢ) that the plan fixes. Losses of dominating pairs add up
independently, whichever queries came before (Zhu, Dong & Wang 2022, theorem 10), so that after any first draws
the worst case of the rest is the composition of the remaining pairs. That is the same in every order: by
induction over the number of releases left, no choice of the next one, made after seeing answers, changes the
total. A release that is never drawn could be run and not looked at: post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato.accounting import Budget, DpEvent, Relation, compose, event_from_json, event_to_json, repeat
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger.rule import Account, Rule, Tally, exact_epsilon, releases_of

WHOLE, PART = "whole", "part"


@dataclass(frozen=True, kw_only=True)
class Prepaid:
    """Hold the rest of a plan, and the relation under which it was priced."""

    left: DpEvent
    relation: Relation

    def draw(self, event: DpEvent, relation: Relation, name: str) -> Prepaid:
        """Return the rest after `event`; BudgetExceeded if the plan does not hold it any more."""
        releases, available = releases_of(event), releases_of(self.left)
        if not releases <= available or Relation(relation) is not self.relation:
            raise BudgetExceeded(
                f"expected a release that the plan {name!r} holds and that was not made yet, got "
                f"{_words(event)}; left are {_words(self.left)}; give it exactly the noise of the plan, or "
                "charge it under no plan",
                epsilon_spent=0.0,
                epsilon_left=0.0,
            )
        left = compose(*(repeat(one, count) for one, count in (available - releases).items()))
        return Prepaid(left=left, relation=self.relation)

    def to_json(self) -> dict[str, Any]:
        return {"left": event_to_json(self.left), "relation": str(self.relation)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Prepaid:
        return cls(left=event_from_json(data["left"]), relation=Relation(data["relation"]))


def _words(event: DpEvent) -> str:
    """Describe the first few releases with their noise."""
    found = [f"{count} × {release}" for release, count in releases_of(event).items()]
    return ", ".join(found[:4]) + (" and more" if len(found) > 4 else "") or "none"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Hold a part of the budget's ε, which only charges under its name may use and none may exceed."""

    epsilon: float
    account: Account
    origin: str | None = None  # the id under which another program knows the share


@dataclass(frozen=True, kw_only=True)
class State:
    """Hold all accounts of a ledger: every change returns a new state, or raises and changes nothing.

    Every charge counts against the whole budget. Once there are shares, a charge under a share's name also
    counts against that share, by the same rule with the share's ε; a charge under no name also counts against
    the unclaimed rest. Shares never exceed the budget together, so no charge spends another share. The
    guarantee is the whole's: a share is a cap, and is over when the whole is.
    """

    budget: Budget
    whole: Account
    rest: Account
    shares: dict[str, Share] = field(default_factory=dict)
    plans: dict[str, Prepaid] = field(default_factory=dict)  # paid for, and the rest of each

    @classmethod
    def empty(cls, budget: Budget) -> State:
        nothing = Rule(budget).nothing
        return cls(budget=budget, whole=nothing, rest=nothing)

    @property
    def of_whole(self) -> Rule:
        """The rule of the whole budget."""
        return Rule(self.budget)

    @property
    def spent(self) -> float:
        return self.of_whole.spent(self.whole)

    def spent_by(self, allocation: str | None) -> float:
        rule, account = self._part(allocation)
        return rule.spent(account)

    def left(self, allocation: str | None = None) -> float:
        """Return the largest pure ε of a charge under this allocation; of a plan, the ε it holds."""
        if allocation in self.plans:
            return exact_epsilon(self.plans[allocation].left, self.budget) or 0.0
        rule, account = self._part(allocation)
        return self.of_whole.left(self.whole, at_most=rule.left(account))

    def left_to_gaussian(self) -> float:
        """Return the largest ε of one further Gaussian release under no allocation."""
        rule, account = self._part(None)
        return min(self.of_whole.left_to_gaussian(self.whole), rule.left_to_gaussian(account))

    def price(self, event: DpEvent, allocation: str | None) -> dict[str, Tally]:
        """Return the figures of `event` for the whole and for its part."""
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
            owner = f"the share of {allocation!r}" if allocation else "the part that no share claims"
            raise self._exceeded(f"{owner}, epsilon={rule.limit:g}", allocation)
        return self._with(whole, part, allocation)

    def take(self, event: DpEvent) -> State | None:
        """Return the state with a release outside; None where the whole budget has no room for it."""
        whole = self.of_whole.admit(self.whole, event)
        if whole is None or not self.shares:
            return None if whole is None else replace(self, whole=whole, rest=whole)
        rule, account = self._part(None)
        return self._with(whole, rule.take(account, event), None)

    def lower(self, before: dict[str, Tally], event: DpEvent, allocation: str | None) -> State:
        """Return the state with a charge that counted `before` replaced by the part that ran."""
        rule, account = self._part(allocation)
        whole = self.of_whole.lower(self.whole, before[WHOLE], event)
        return self._with(whole, rule.lower(account, before[PART], event), allocation)

    def origins(self) -> dict[str, str]:
        """Return the name of each share that has an origin, by origin."""
        return {share.origin: name for name, share in self.shares.items() if share.origin is not None}

    def share_of(self, origin: str) -> Share | None:
        """Return the share of an origin; None while it has none."""
        return next((share for share in self.shares.values() if share.origin == origin), None)

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
        share = Share(
            epsilon=epsilon, account=Rule(replace(self.budget, epsilon=epsilon)).nothing, origin=origin
        )
        return replace(self, shares={**self.shares, name: share})

    def prepay(self, name: str, event: DpEvent, relation: Relation) -> State:
        """Return the state with a plan under this name, which was admitted already."""
        if name in self.shares or name in self.plans:
            raise InvalidInput(
                f"expected a name that no share or plan has yet, got plan={name!r}; give the plan another name"
            )
        return replace(self, plans={**self.plans, name: Prepaid(left=event, relation=Relation(relation))})

    def draw(self, name: str, event: DpEvent, relation: Relation) -> State:
        """Return the state with `event` taken from a plan that was paid for."""
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
    def from_json(cls, budget: Budget, data: dict[str, Any]) -> State:
        shares = {
            name: Share(**{**share, "account": Account.from_json(share["account"])})
            for name, share in data["shares"].items()
        }
        whole, rest = Account.from_json(data["whole"]), Account.from_json(data["rest"])
        plans = {name: Prepaid.from_json(plan) for name, plan in data.get("plans", {}).items()}
        return cls(budget=budget, whole=whole, rest=rest, shares=shares, plans=plans)

    @property
    def _unclaimed(self) -> float:
        return max(0.0, self.budget.epsilon - math.fsum(share.epsilon for share in self.shares.values()))

    def part(self, allocation: str | None) -> Account:
        return self._part(allocation)[1]

    def rule(self, allocation: str | None) -> Rule:
        return self._part(allocation)[0]

    def _part(self, allocation: str | None) -> tuple[Rule, Account]:
        if allocation is None:
            return Rule(self.budget, limit=self._unclaimed), self.rest
        if allocation not in self.shares:
            known = ", ".join(map(repr, sorted((*self.shares, *self.plans)))) or "none"
            raise InvalidInput(f"expected allocation to be one of: {known}; got allocation={allocation!r}")
        share = self.shares[allocation]
        return Rule(replace(self.budget, epsilon=share.epsilon)), share.account

    def _with(self, whole: Account, part: Account, allocation: str | None) -> State:
        if allocation is None:
            return replace(self, whole=whole, rest=part)
        share = replace(self.shares[allocation], account=part)
        return replace(self, whole=whole, shares={**self.shares, allocation: share})

    def _exceeded(self, limit: str, allocation: str | None) -> BudgetExceeded:
        spent, left = self.spent, self.left(allocation)
        remedy = "add noise, or ask for fewer releases"
        if self.budget.delta == 0:
            remedy += "; Gaussian noise, as in training, needs a ledger with delta above 0"
        return BudgetExceeded(
            f"expected a charge that fits {limit} at delta={self.budget.delta:g}, got one that does not; "
            f"epsilon_spent={spent:.6g}, epsilon_left={left:.6g}; {remedy}",
            epsilon_spent=spent,
            epsilon_left=left,
        )


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Take the ε of a budget, or of a share, apart: total = spent + set_aside + left + surcharge.

    `left` is the largest further pure ε that the privacy filter would accept. It can be less than the rest of
    the budget, since later charges may depend on answers: the difference is the surcharge. It is below 0 where
    several charges cost less together than one by one.

    Attributes:
        total: All of it.
        spent: By the ledger's rule; more than `total` where a release outside broke the budget.
        set_aside: The unspent parts of all shares.
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
        """Return the balance of a share; without a name that of the whole budget."""
        if allocation is not None:
            spent, left = state.spent_by(allocation), state.left(allocation)
            return cls(total=state.rule(allocation).limit, spent=spent, left=left)
        claimed = math.fsum(max(0.0, state.rule(name).limit - state.spent_by(name)) for name in state.shares)
        total, spent = state.budget.epsilon, state.spent
        # A share is a cap: after a release outside, the whole budget can be over before it.
        aside = min(claimed, max(0.0, total - spent))
        return cls(total=total, spent=spent, set_aside=aside, left=state.left())

    @classmethod
    def unclaimed(cls, state: State) -> Balance:
        """Return the balance of the part that no share claims."""
        return cls(total=state.rule(None).limit, spent=state.spent_by(None), left=state.left())

    @property
    def surcharge(self) -> float:
        return self.total - math.fsum((self.spent, self.set_aside, self.left))

    @property
    def broken(self) -> bool:
        """Whether more than the budget is owed, so that the parts do not add up."""
        return self.spent > self.total * (1 + 1e-9)

    def figure(self, value: float) -> str:
        """Format a part with as many digits as the others, so that shown parts add up to the shown total."""
        digits = 4 if self.total >= 1 else 4 - math.floor(math.log10(self.total)) if self.total > 0 else 4
        if 0 < abs(value) < 0.5 * 10**-digits:
            return f"{value:.1g}"
        return f"{value:.{digits}f}".rstrip("0").rstrip(".").replace("-", "−")

    def parts(self) -> list[tuple[str, str]]:
        """Return name and figure of each part; set aside and surcharge only where they are not 0."""
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
        """Whether it is visible in the digits of the other parts."""
        shown = self.figure(self.surcharge)
        return shown != "0" and "e" not in shown

    def in_words(self) -> str:
        """Describe the balance in one sentence."""
        if self.broken:
            owed = f"ε = {self.spent:.4g}" if math.isfinite(self.spent) else "more than any ε"
            return f"{owed} is owed in all, of a budget of ε = {self.figure(self.total)}; nothing is left."
        words = [f"{name} {figure}" for name, figure in self.parts()]
        if self._shows_surcharge and self.surcharge < 0:
            words[-1] = f"less {self.figure(-self.surcharge)} that charges save together"
        return f"S{', '.join(words)[1:]}: ε = {self.figure(self.total)} in all."
