"""What fits a budget: the exact price for a first plan, the privacy filter for everything later.

*A first plan* (or a list charged at once) was chosen before any answer was seen, so its exact price holds.
*Later charges* may have been chosen after seeing answers, so all charges from the start must pass the filter.

A first plan that fits by its exact price P only may be settled lower, and whether to stop it may have been
decided on its answers. Runs that went on to later charges and runs that did not are then told apart by an
answer, and their failure probabilities add up: δ_P(ε) for those that stop, and the filter's for the others.
So the filter of later charges works with what the plan left over, δ − δ_P(ε). A plan that passes the filter
itself takes nothing: steps of a plan are charges, and a filter may be left at any time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from sfumato.accounting import (
    Budget,
    DpEvent,
    GaussianEvent,
    PrivacyFilter,
    Relation,
    event_from_json,
    event_to_json,
)
from sfumato.accounting import delta as delta_of
from sfumato.accounting import epsilon as epsilon_of
from sfumato.accounting.events import hashable
from sfumato.accounting.filter import Spending
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.ledger.chain import canonical

_T = TypeVar("_T")
Price = Callable[[DpEvent, Budget], float | None]
"""The exact ε of an event at a budget's δ; None where there is none."""
OUT_OF_NUMBERS = (ArithmeticError, TypeError, ValueError)
"""What accountants raise where floating point ends, as at an ε of a thousand."""

_UNIT = 2**100  # sums are kept in whole units of 2⁻¹⁰⁰, so that a charge can be taken back exactly


@dataclass(frozen=True)
class Tally:
    """Exact sums of what the filter counts, its failure probability last; infinite terms are counted apart."""

    units: tuple[int, ...]
    infinite: tuple[int, ...]

    @classmethod
    def of(cls, spending: Spending) -> Tally:
        values = (*spending.divergences, spending.failure)
        units = tuple(0 if math.isinf(value) else _ceiling(value) for value in values)
        return cls(units, tuple(int(math.isinf(value)) for value in values))

    def __add__(self, other: Tally) -> Tally:
        return self._combine(other, 1)

    def __sub__(self, other: Tally) -> Tally:
        return self._combine(other, -1)

    def _combine(self, other: Tally, sign: int) -> Tally:
        return Tally(
            tuple(a + sign * b for a, b in zip(self.units, other.units, strict=True)),
            tuple(a + sign * b for a, b in zip(self.infinite, other.infinite, strict=True)),
        )

    def __le__(self, other: Tally) -> bool:
        mine, theirs = (
            zip(self.infinite, self.units, strict=True),
            zip(other.infinite, other.units, strict=True),
        )
        return all(a <= b for a, b in zip(mine, theirs, strict=True))

    @property
    def empty(self) -> bool:
        return not any(self.units) and not any(self.infinite)

    def spending(self) -> Spending:
        *divergences, failure = (
            math.inf if infinite else units / _UNIT
            for units, infinite in zip(self.units, self.infinite, strict=True)
        )
        return Spending(tuple(divergences), failure)

    def to_json(self) -> dict[str, list[int]]:
        return {"units": list(self.units), "infinite": list(self.infinite)}

    @classmethod
    def from_json(cls, data: dict[str, list[int]]) -> Tally:
        return cls(tuple(data["units"]), tuple(data["infinite"]))


def or_else(compute: Callable[[], _T], otherwise: _T) -> _T:
    """What `compute` finds, or `otherwise` where floating point ends; what makes no sense is still refused."""
    try:
        return compute()
    except InvalidInput:
        raise
    except OUT_OF_NUMBERS:
        return otherwise


def _everything(nothing: Spending) -> Spending:
    return Spending((math.inf,) * len(nothing.divergences), math.inf)


def _counted(spending: Spending) -> Spending:
    """What is no number is more than any; what rounding took below 0 is 0."""
    divergences = tuple(_at_least_nothing(value) for value in spending.divergences)
    return Spending(divergences, _at_least_nothing(spending.failure))


def _at_least_nothing(value: float) -> float:
    return math.inf if math.isnan(value) else max(0.0, value)


def _ceiling(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return -(-numerator * _UNIT // denominator)


@dataclass(frozen=True, kw_only=True)
class Account:
    """The running state of one budget or share, kept in every entry so that a charge reads only the last."""

    tally: Tally
    plans: int = 0  # that cost something
    exact: float | None = None  # the price of the only plan, in full, while there is only one
    taken: float = 0.0  # of δ, by a first plan that did not pass the filter

    def to_json(self) -> dict[str, Any]:
        return {**self.tally.to_json(), "plans": self.plans, "exact": self.exact, "taken": self.taken}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Account:
        tally = Tally.from_json(data)
        return cls(tally=tally, plans=data["plans"], exact=data["exact"], taken=data["taken"])


class Rule:
    """Decides, for one budget, what fits and what has been spent. Holds no state: accounts are values.

    `fine` says by which orders the filter counts; a ledger keeps what it was made with (see accounting.filter).

    >>> from sfumato.accounting import pure
    >>> rule = Rule(Budget(epsilon=1), fine=True)
    >>> account = rule.admit(rule.nothing, pure(0.25))
    >>> rule.spent(account), rule.left(account), rule.admit(account, pure(0.8)) is None
    (0.25, 0.75, True)
    """

    def __init__(self, budget: Budget, *, fine: bool, limit: float | None = None) -> None:
        self.budget = budget
        self.fine = fine
        self.limit = budget.epsilon if limit is None else limit

    @property
    def nothing(self) -> Account:
        return Account(tally=Tally.of(self._filter(0.0).nothing))

    def price(self, event: DpEvent) -> Tally:
        """What the filter counts; infinite, which never fits, where numbers end before the price does."""
        return _price(hashable(event), self.budget, self.fine)

    def admit(self, account: Account, event: DpEvent) -> Account | None:
        """The account after `event`, or None when it does not fit."""
        price = self.price(event)
        total = account.tally + price
        if price.empty:
            return account
        passes = self._filter(account.taken).fits(total.spending())
        if account.plans:
            plans = account.plans + 1
            return Account(tally=total, plans=plans, taken=account.taken) if passes else None
        exact = exact_epsilon(event, self.budget)
        if passes:
            return Account(tally=total, plans=1, exact=exact)
        if exact is None or exact > self.limit:
            return None
        return Account(tally=total, plans=1, exact=exact, taken=self.failure(event))

    def take(self, account: Account, event: DpEvent) -> Account:
        """The account after `event`, whether it fits or not; where not, δ is used up and nothing fits later."""
        fitting = self.admit(account, event)
        if fitting is not None:
            return fitting
        exact = None if account.plans else exact_epsilon(event, self.budget)
        total = account.tally + self.price(event)
        return Account(tally=total, plans=account.plans + 1, exact=exact, taken=account.taken or 1.0)

    def lower(self, account: Account, before: Tally, event: DpEvent) -> Account:
        """The account with a charge of `before` replaced by the smaller `event`, at which it was stopped.

        When to stop may have been decided on answers, so the exact price of `event` does not hold. That of the
        whole plan does, as what was seen of it is post-processing; and the filter's, which is for stopping.
        """
        price = self.price(event)
        total = account.tally - before + price
        if total.empty:
            return self.nothing
        plans = account.plans - int(price.empty)
        return replace(account, tally=total, plans=plans, exact=None if price.empty else account.exact)

    def spent(self, account: Account) -> float:
        """ε at the budget's δ of all that was charged, under this rule."""
        counted = self._filter(account.taken).epsilon(account.tally.spending())
        return counted if account.exact is None else min(account.exact, counted)

    def spent_on_stopped(self, ran: DpEvent, whole: DpEvent, exact: float | None) -> float:
        """ε that a ledger has spent whose only plan, of the price `exact`, was stopped when `ran` had run."""
        passes = self.passes(Account(tally=self.price(whole)), slack=0.0)
        taken = 0.0 if passes else self.failure(whole)
        return self.spent(Account(tally=self.price(ran), plans=1, exact=exact, taken=taken))

    def counted_after(self, account: Account, event: DpEvent) -> float:
        """ε that later charges would start from after `event`, whether it fits or not."""
        total = account.tally + self.price(event)
        return self._filter(account.taken).epsilon(total.spending())

    def owed(self, account: Account, event: DpEvent) -> float:
        """ε of all that was charged and of `event`, after which nothing follows: exact where it is alone."""
        counted = self.counted_after(account, event)
        exact = None if account.plans else exact_epsilon(event, self.budget)
        return counted if exact is None else min(exact, counted)

    def left(self, account: Account, *, at_most: float = math.inf) -> float:
        """The largest further pure ε up to `at_most` that would be admitted."""
        if not account.plans:
            return min(self.limit, at_most)
        return self._filter(account.taken).largest_pure_charge(account.tally.spending(), at_most=at_most)

    def left_to_gaussian(self, account: Account, price: Price) -> float:
        """The largest ε, at the budget's δ, of one further Gaussian release that would be admitted."""
        if not account.plans:
            return self.limit if self.budget.delta else 0.0
        noise = self._filter(account.taken).least_gaussian_noise(account.tally.spending())
        return 0.0 if math.isinf(noise) else price(GaussianEvent(noise), self.budget) or 0.0

    def failure(self, event: DpEvent) -> float:
        """The probability δ_P(ε) at which a plan P, fixed in advance, loses more than this rule's ε."""
        found = or_else(lambda: delta_of(event, self.limit, relation=self.budget.relation), 1.0)
        return found if found <= 1.0 else 1.0  # 1 for NaN too

    def passes(self, account: Account, *, slack: float) -> bool:
        """Whether the filter alone would have admitted all of it, give or take rounding."""
        return self._filter(0.0).fits(account.tally.spending(), slack=slack)

    def keeps(self, account: Account, *, slack: float) -> bool:
        """Whether an account is within ε and δ: by the exact price of its only plan, or by the filter."""
        filtered = self._filter(account.taken).fits(account.tally.spending(), slack=slack)
        exact = account.exact is not None and account.exact <= self.limit * (1 + slack)
        return filtered or exact

    def _filter(self, taken: float) -> PrivacyFilter:
        return _filter(self.budget, taken, self.limit, self.fine)


@lru_cache(maxsize=1024)
def _filter(budget: Budget, taken: float, limit: float, fine: bool) -> PrivacyFilter:
    return PrivacyFilter(budget, taken=taken, limit=limit, fine=fine)


@lru_cache(maxsize=4096)
def _price(event: DpEvent, budget: Budget, fine: bool) -> Tally:
    rule = _filter(budget, 0.0, budget.epsilon, fine)
    found = or_else(lambda: rule.spending(event), _everything(rule.nothing))
    return Tally.of(_counted(found))


def exact_epsilon(event: DpEvent, budget: Budget) -> float | None:
    """The exact ε of a plan at the budget's δ; None where it is infinite or cannot be computed."""
    return _exact_epsilon(canonical(event_to_json(event)), budget.delta, budget.relation)


@lru_cache(maxsize=4096)
def _exact_epsilon(text: bytes, delta: float, relation: Relation) -> float | None:
    event = event_from_json(json.loads(text))
    pure = or_else(lambda: epsilon_of(event, 0.0, relation=relation), math.inf)
    try:
        value = min(pure, epsilon_of(event, delta, relation=relation)) if delta else pure
    except (NotPrivate, *OUT_OF_NUMBERS):
        value = pure
    return value if math.isfinite(value) else None
