"""The rule of a budget: the exact price for a first plan, the privacy filter for everything later.

*A first plan* (or a list charged at once) was chosen before any answer was seen, so its exact price holds.
*Later charges* may have been chosen after seeing answers, so all charges from the start must pass the filter.

A first plan that fits by its exact price P only may be settled lower, and whether to stop it may have been
decided on its answers. Runs that went on to later charges and runs that did not are then told apart by an
answer, and their failure probabilities add up: δ_P(ε) for those that stop, and the filter's for the others.
So the filter of later charges works with the rest, δ − δ_P(ε). A plan that passes the filter
itself takes nothing: steps of a plan are charges, and a filter may be left at any time.

A charge stated under another relation is converted (`counted_event`), or refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from sfumato import _validate
from sfumato.accounting import (
    ApproximateEvent,
    Budget,
    DpEvent,
    GaussianEvent,
    PrivacyFilter,
    Relation,
    pure,
    rdp_epsilon,
)
from sfumato.accounting import delta as delta_of
from sfumato.accounting import epsilon as epsilon_of
from sfumato.accounting.events import check_norm_bound, hashable, merged
from sfumato.accounting.filter import Spending
from sfumato.errors import InvalidInput, NotPrivate, RelationMismatch, UnitMismatch

_T = TypeVar("_T")
OUT_OF_NUMBERS = (ArithmeticError, TypeError, ValueError)
"""Errors of accountants where floating point ends, as at an ε of a thousand."""

_CONVERTED = 0.01  # of the budget's δ, for one converted charge
_UNIT = 2**100  # sums are kept in whole units of 2⁻¹⁰⁰, so that a charge can be taken back exactly


def releases_of(event: DpEvent) -> Counter[DpEvent]:
    """Count the releases of an event."""
    return Counter(merged(event))


def part_of(event: DpEvent, whole: DpEvent) -> bool:
    """Return whether `event` has only releases of `whole`, each no more often: it then cannot cost more.

    >>> from sfumato.accounting import GaussianEvent, repeat
    >>> part_of(repeat(GaussianEvent(2.0), 3), repeat(GaussianEvent(2.0), 8))
    True
    >>> part_of(GaussianEvent(4.0), repeat(GaussianEvent(2.0), 8))
    False
    """
    return releases_of(event) <= releases_of(whole)


def same_releases(event: DpEvent, other: DpEvent) -> bool:
    """Return whether both consist of the same releases, each as often."""
    return releases_of(event) == releases_of(other)


@dataclass(frozen=True)
class Tally:
    """Sum the filter's figures exactly, the failure probability last; infinite terms are counted apart."""

    units: tuple[int, ...]
    infinite: tuple[int, ...]

    @classmethod
    def of(cls, spending: Spending) -> Tally:
        """Round each sum up to whole units; NaN counts as infinite, and a sum below 0 as 0."""
        found = [_whole_units(value) for value in (*spending.divergences, spending.failure)]
        return cls(tuple(value or 0 for value in found), tuple(int(value is None) for value in found))

    def __add__(self, other: Tally) -> Tally:
        return self._combine(other, 1)

    def __sub__(self, other: Tally) -> Tally:
        return self._combine(other, -1)

    def _combine(self, other: Tally, sign: int) -> Tally:
        units = zip(self.units, other.units, strict=True)
        infinite = zip(self.infinite, other.infinite, strict=True)
        return Tally(tuple(a + sign * b for a, b in units), tuple(a + sign * b for a, b in infinite))

    def __le__(self, other: Tally) -> bool:
        mine = zip(self.infinite, self.units, strict=True)
        theirs = zip(other.infinite, other.units, strict=True)
        return all(a <= b for a, b in zip(mine, theirs, strict=True))

    @property
    def empty(self) -> bool:
        return not any(self.units) and not any(self.infinite)

    def spending(self) -> Spending:
        pairs = zip(self.units, self.infinite, strict=True)
        *divergences, failure = (math.inf if infinite else units / _UNIT for units, infinite in pairs)
        return Spending(tuple(divergences), failure)

    def to_json(self) -> dict[str, list[int]]:
        return {"units": list(self.units), "infinite": list(self.infinite)}

    @classmethod
    def from_json(cls, data: dict[str, list[int]]) -> Tally:
        return cls(tuple(data["units"]), tuple(data["infinite"]))


def _whole_units(value: float) -> int | None:
    if not math.isfinite(value):
        return 0 if value < 0 else None
    numerator, denominator = value.as_integer_ratio()
    return max(0, -(-numerator * _UNIT // denominator))


def or_else(compute: Callable[[], _T], otherwise: _T) -> _T:
    """Return the computed value, or `otherwise` where floating point ends; wrong input is still refused."""
    try:
        return compute()
    except InvalidInput:
        raise
    except OUT_OF_NUMBERS:
        return otherwise


@dataclass(frozen=True, kw_only=True)
class Account:
    """The sums of one budget or share; every entry holds them, so that a charge reads only the last entry."""

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
    """Decide for one budget whether an event fits, and compute ε spent and left. Accounts are values.

    Args:
        budget: The budget that fixes δ and the orders of the filter.
        limit: An ε to hold charges to in place of the budget's.

    >>> rule = Rule(Budget(epsilon=1))
    >>> account = rule.admit(rule.nothing, pure(0.25))
    >>> rule.spent(account), rule.left(account), rule.admit(account, pure(0.8)) is None
    (0.25, 0.75, True)
    """

    def __init__(self, budget: Budget, *, limit: float | None = None) -> None:
        self.budget = budget
        self.limit = budget.epsilon if limit is None else limit

    @property
    def nothing(self) -> Account:
        return Account(tally=Tally.of(self._filter(0.0).nothing))

    def price(self, event: DpEvent) -> Tally:
        """Return the filter's figures; infinite, which never fits, where floating point ends."""
        return _price(hashable(event), self.budget)

    def admit(self, account: Account, event: DpEvent) -> Account | None:
        """Return the account after `event`, or None when it does not fit."""
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
        """Return the account after `event`, fitting or not; if not, δ is used up and nothing fits later."""
        fitting = self.admit(account, event)
        if fitting is not None:
            return fitting
        exact = None if account.plans else exact_epsilon(event, self.budget)
        total = account.tally + self.price(event)
        return Account(tally=total, plans=account.plans + 1, exact=exact, taken=account.taken or 1.0)

    def lower(self, account: Account, before: Tally, event: DpEvent) -> Account:
        """Return the account with a charge of `before` replaced by the smaller `event`, at which it stopped.

        The stop may depend on answers, so the exact price of `event` does not hold. That of the whole plan
        does, since a part of its output is post-processing; and the filter's, which allows for stopping.
        """
        price = self.price(event)
        total = account.tally - before + price
        if total.empty:
            return self.nothing
        plans = account.plans - int(price.empty)
        return replace(account, tally=total, plans=plans, exact=None if price.empty else account.exact)

    def spent(self, account: Account) -> float:
        """Return ε at the budget's δ of all charges, under this rule."""
        counted = self._filter(account.taken).epsilon(account.tally.spending())
        return counted if account.exact is None else min(account.exact, counted)

    def spent_on_stopped(self, ran: DpEvent, whole: DpEvent, exact: float | None) -> float:
        """Return the ε of a ledger whose only plan, of the price `exact`, was stopped after `ran`."""
        passes = self.passes(Account(tally=self.price(whole)), slack=0.0)
        taken = 0.0 if passes else self.failure(whole)
        return self.spent(Account(tally=self.price(ran), plans=1, exact=exact, taken=taken))

    def counted_after(self, account: Account, event: DpEvent) -> float:
        """Return the ε that later charges would start from after `event`, fitting or not."""
        total = account.tally + self.price(event)
        return self._filter(account.taken).epsilon(total.spending())

    def owed(self, account: Account, event: DpEvent) -> float:
        """Return ε of all charges and of `event` as the last one: exact where it is alone."""
        counted = self.counted_after(account, event)
        exact = None if account.plans else exact_epsilon(event, self.budget)
        return counted if exact is None else min(exact, counted)

    def left(self, account: Account, *, at_most: float = math.inf) -> float:
        """Return the largest further pure ε up to `at_most` that would be admitted."""
        if not account.plans:
            return min(self.limit, at_most)
        return self._filter(account.taken).largest_pure_charge(account.tally.spending(), at_most=at_most)

    def left_to_gaussian(self, account: Account) -> float:
        """Return the largest ε at the budget's δ of one further Gaussian release that would be admitted."""
        if not account.plans:
            return self.limit if self.budget.delta else 0.0
        noise = self._filter(account.taken).least_gaussian_noise(account.tally.spending())
        return 0.0 if math.isinf(noise) else exact_epsilon(GaussianEvent(noise), self.budget) or 0.0

    def failure(self, event: DpEvent) -> float:
        """Return the probability δ_P(ε) at which a plan P, fixed in advance, loses more than this rule's ε."""
        found = or_else(lambda: delta_of(event, self.limit, relation=self.budget.relation), 1.0)
        return found if found <= 1.0 else 1.0  # 1 for NaN too

    def passes(self, account: Account, *, slack: float) -> bool:
        """Return whether the filter alone would have admitted all of it, up to relative rounding `slack`."""
        return self._filter(0.0).fits(account.tally.spending(), slack=slack)

    def keeps(self, account: Account, *, slack: float) -> bool:
        """Return whether an account is within ε and δ, by the exact price of its only plan or by the filter."""
        filtered = self._filter(account.taken).fits(account.tally.spending(), slack=slack)
        return filtered or (account.exact is not None and account.exact <= self.limit * (1 + slack))

    def _filter(self, taken: float) -> PrivacyFilter:
        return _filter(self.budget, taken, self.limit)


@lru_cache(maxsize=1024)
def _filter(budget: Budget, taken: float, limit: float) -> PrivacyFilter:
    return PrivacyFilter(budget, taken=taken, limit=limit)


@lru_cache(maxsize=65536)
def _price(event: DpEvent, budget: Budget) -> Tally:
    rule = _filter(budget, 0.0, budget.epsilon)
    everything = Spending((math.inf,) * len(rule.nothing.divergences), math.inf)
    return Tally.of(or_else(lambda: rule.spending(event), everything))


def exact_epsilon(event: DpEvent, budget: Budget) -> float | None:
    """Return the exact ε of a plan at the budget's δ; None where it is infinite or cannot be computed."""
    return _exact_epsilon(hashable(event), budget.delta, budget.relation)


@lru_cache(maxsize=4096)
def _exact_epsilon(event: DpEvent, delta: float, relation: Relation) -> float | None:
    alone = or_else(lambda: epsilon_of(event, 0.0, relation=relation), math.inf)
    try:
        value = min(alone, epsilon_of(event, delta, relation=relation)) if delta else alone
    except (NotPrivate, *OUT_OF_NUMBERS):
        value = alone
    return value if math.isfinite(value) else None


# Conversion


def counted_event(event: DpEvent, budget: Budget, *, relation: Relation, unit: str) -> DpEvent:
    """Convert an event stated under `relation` for `unit` to the budget's, or refuse it."""
    if unit != budget.unit:
        raise UnitMismatch(wanted=budget.unit, given=unit)
    _validate.one_of("relation", str(relation), [str(known) for known in Relation])
    check_norm_bound(event, Relation(relation))
    if Relation(relation) is budget.relation:
        return event
    if Relation(relation) is Relation.ADD_REMOVE and budget.relation is Relation.REPLACE_ONE:
        return _replace_one_from_add_remove(event, delta=budget.delta * _CONVERTED)
    raise RelationMismatch(
        f"expected relation={str(budget.relation)!r} as in the budget, got relation={str(relation)!r}; only "
        "add-remove can be converted, to replace-one; price the release under the budget's relation, or keep "
        "a ledger of its own for it"
    )


def _replace_one_from_add_remove(event: DpEvent, *, delta: float) -> DpEvent:
    """Convert a price: to replace a unit is to remove it and add another.

    (ε, δ) becomes (2ε, (1+e^ε)δ), where the second is at most `delta`.

    >>> from sfumato.accounting import LaplaceEvent
    >>> _replace_one_from_add_remove(LaplaceEvent(2.0), delta=0)
    ApproximateEvent(epsilon=1.0, delta=0.0)
    """
    alone = or_else(lambda: epsilon_of(event, 0.0), math.inf)
    if math.isfinite(alone):
        return pure(2 * alone)
    share = delta / 2
    for _ in range(60):
        if not share:
            break
        cost = _cost(event, share)
        total = math.inf if cost > 700 else (1 + math.exp(cost)) * share
        if total <= delta:
            return ApproximateEvent(2 * cost, total)
        share = min(share / 2, delta / (1 + math.exp(min(cost, 700))))
    raise RelationMismatch(_INCONVERTIBLE)


def _cost(event: DpEvent, delta: float) -> float:
    """Return the exact ε; the Rényi bound where there is no exact one, or at a δ too small for it."""
    try:
        return epsilon_of(event, delta)
    except (NotPrivate, *OUT_OF_NUMBERS):
        try:
            return rdp_epsilon(event, delta)
        except (NotPrivate, *OUT_OF_NUMBERS) as error:
            raise RelationMismatch(_INCONVERTIBLE) from error


_INCONVERTIBLE = (
    "expected an event that can be converted from add-remove to replace-one within the budget's δ, "
    "got one that cannot; price the release under replace-one instead"
)
