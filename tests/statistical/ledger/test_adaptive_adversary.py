"""The best of all adversaries that pick the next charge after seeing the last answer, computed exactly.

Every ε-DP release is dominated by binary randomized response with that ε (Kairouz, Oh, Viswanath 2015), whose
privacy loss is +ε or −ε. With all ε on one lattice the loss stays on the lattice, and the largest
E[(1 − e^{ε−L})₊] that any adaptive adversary reaches under a given rule of admission — the δ that the rule
really gives — follows by dynamic programming backwards over what has been charged. Nothing is sampled, so
the false-alarm rate is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
import pytest

from sfumato.accounting import Budget, GaussianEvent, PrivacyFilter, delta, pure, rdp, repeat
from sfumato.accounting.filter import Spending
from sfumato.accounting.rdp import to_epsilon
from sfumato.ledger.rule import Account, Rule

LATTICE = 0.05  # of ε
REACH = 500  # lattice points on either side of 0: more than any run below can reach
LOSS = np.arange(-REACH, REACH + 1) * LATTICE

Counts = tuple[int, ...]  # how often each of the sizes was charged
Admits = Callable[[Counts], bool]
SETTINGS = [
    (Budget(epsilon=1, delta=1e-2), (1, 3, 8, 19)),
    (Budget(epsilon=3, delta=1e-2), (2, 6, 20, 50)),
    (Budget(epsilon=3, delta=1e-4), (2, 6, 20, 50)),
    (Budget(epsilon=2, delta=0.1), (3, 9, 30)),
]


def failure(budget: Budget) -> np.ndarray:
    """(1 − e^{ε−L})₊ at every loss."""
    return -np.expm1(np.minimum(0, budget.epsilon - LOSS))


def after_release(value: np.ndarray, size: int) -> np.ndarray:
    """E[value(L ± size)] under the distribution with the victim: + with probability e^ε/(1+e^ε)."""
    plus = 1 / (1 + math.exp(-size * LATTICE))
    up = np.concatenate([value[size:], np.full(size, value[-1])])
    down = np.concatenate([np.full(size, value[0]), value[:-size]])
    return plus * up + (1 - plus) * down


def more(counts: Counts, which: int) -> Counts:
    return tuple(count + (place == which) for place, count in enumerate(counts))


def best_value(budget: Budget, sizes: Counts, admits: Admits) -> np.ndarray:
    """The most the adversary can expect from the start, at every loss."""

    @cache
    def value(counts: Counts) -> np.ndarray:
        best = failure(budget)
        for which, size in enumerate(sizes):
            following = more(counts, which)
            if admits(following):
                best = np.maximum(best, after_release(value(following), size))
        return best

    return value((0,) * len(sizes))


def delta_reached(budget: Budget, sizes: Counts, admits: Admits) -> float:
    return float(best_value(budget, sizes, admits)[REACH])


def our_filter(budget: Budget, sizes: Counts) -> Admits:
    rule = PrivacyFilter(budget)
    prices = np.array([[*rule.spending(pure(size * LATTICE)).divergences] for size in sizes])
    return lru_cache(maxsize=None)(lambda counts: rule.fits(Spending(tuple(np.array(counts) @ prices), 0.0)))


def any_order_at_full_delta(budget: Budget, sizes: Counts) -> Admits:
    """The tempting rule: go on while the ordinary conversion, by the best order of a grid, fits."""
    orders = 1 + np.geomspace(0.05, 200, 200)
    prices = np.array([rdp(pure(size * LATTICE), orders.tolist()) for size in sizes])

    def admits(counts: Counts) -> bool:
        return float(np.min(to_epsilon(orders, np.array(counts) @ prices, budget.delta))) <= budget.epsilon

    return lru_cache(maxsize=None)(admits)


def exact_price_each_time(budget: Budget, sizes: Counts) -> Admits:
    """Another: go on while the exact price of what was done so far, as if fixed in advance, fits."""

    @cache
    def value(counts: Counts) -> np.ndarray:
        which = next((place for place, count in enumerate(counts) if count), None)
        if which is None:
            return failure(budget)
        fewer = tuple(count - (place == which) for place, count in enumerate(counts))
        return after_release(value(fewer), sizes[which])

    return lambda counts: float(value(counts)[REACH]) <= budget.delta


@pytest.mark.parametrize(("budget", "sizes"), SETTINGS)
def test_no_adaptive_adversary_exceeds_our_filter(budget: Budget, sizes: Counts) -> None:
    reached = delta_reached(budget, sizes, our_filter(budget, sizes))
    assert 0 < reached <= budget.delta


@pytest.mark.parametrize(
    "budget", [Budget(epsilon=e, delta=d) for e in (0.01, 1.0, 30.0) for d in (1e-2, 1e-9)]
)
@pytest.mark.parametrize("taken", [0.0, 0.3])
def test_the_shares_of_delta_are_at_most_delta(budget: Budget, taken: float) -> None:
    """What the proof needs of the orders: they are fixed, and their shares add up to no more than δ."""
    rule = PrivacyFilter(budget, taken=taken * budget.delta)
    assert len(rule.orders) == len(rule._deltas)
    assert math.fsum([*rule._deltas, rule._failure]) <= (1 - taken) * budget.delta * (1 + 1e-12)


def test_larger_orders_count_little_as_little_and_take_next_to_nothing(monkeypatch) -> None:
    """A Gaussian charge of ε ≈ 0.1 counts a fifth of what three orders say, and the budget is as large."""
    budget, one = Budget(epsilon=3, delta=1e-6), GaussianEvent(50.0)
    many = PrivacyFilter(budget)
    monkeypatch.setattr("sfumato.accounting.filter._larger_orders", lambda *_: ())
    few = PrivacyFilter(budget)
    assert many.epsilon(many.spending(one)) < 0.2 * few.epsilon(few.spending(one))
    spent = repeat(one, 700)
    assert many.epsilon(many.spending(spent)) < 1.01 * few.epsilon(few.spending(spent))


@pytest.mark.parametrize(("budget", "sizes"), SETTINGS)
def test_every_order_at_full_delta_is_looser(budget: Budget, sizes: Counts) -> None:
    ours, theirs = our_filter(budget, sizes), any_order_at_full_delta(budget, sizes)
    assert delta_reached(budget, sizes, theirs) > 2 * delta_reached(budget, sizes, ours)


@pytest.mark.parametrize(("budget", "sizes"), SETTINGS[1:3])
def test_every_order_at_full_delta_breaks_the_budget(budget: Budget, sizes: Counts) -> None:
    assert delta_reached(budget, sizes, any_order_at_full_delta(budget, sizes)) > 1.1 * budget.delta


@pytest.mark.parametrize(("budget", "sizes"), SETTINGS)
def test_exact_prices_break_the_budget_when_charges_are_chosen_adaptively(
    budget: Budget, sizes: Counts
) -> None:
    assert delta_reached(budget, sizes, exact_price_each_time(budget, sizes)) > 1.2 * budget.delta


# The ledger's rule as a whole: a first plan at its exact price, stopped at will, settled, and gone on from.


def delta_with_a_first_plan(rule: Rule, sizes: Counts, step: int, steps: int, *, forget: bool) -> float:
    """The adversary runs a plan of `steps` equal steps, may settle after any of them, and goes on charging."""
    plan = repeat(pure(step * LATTICE), steps)
    reserved = rule.admit(rule.nothing, plan)
    assert reserved is not None
    value = failure(rule.budget)
    for ran in range(steps, -1, -1):  # backwards
        settled = rule.lower(reserved, rule.price(plan), repeat(pure(step * LATTICE), ran))
        if forget:
            settled = Account(tally=settled.tally, plans=settled.plans)
        onward = np.zeros_like(value)
        if 0 < ran < steps:
            onward = best_value(rule.budget, sizes, from_account(rule, settled, sizes))
        further = after_release(value, step) if ran < steps else value
        value = np.maximum(np.maximum(failure(rule.budget), onward), further)
    return float(value[REACH])


def from_account(rule: Rule, account: Account, sizes: Counts) -> Admits:
    @cache
    def reached(counts: Counts) -> Account | None:
        which = next((place for place, count in enumerate(counts) if count), None)
        if which is None:
            return account
        before = reached(tuple(count - (place == which) for place, count in enumerate(counts)))
        return None if before is None else rule.admit(before, pure(sizes[which] * LATTICE))

    return lambda counts: reached(counts) is not None


@pytest.mark.parametrize(("epsilon", "step", "sizes"), [(2, 2, (10, 30)), (3, 2, (10, 50))])
def test_a_plan_stopped_on_its_answers_and_gone_on_from_keeps_the_budget(
    epsilon: float, step: int, sizes: Counts
) -> None:
    """And does not, if the later filter is given the whole of δ again: the sabotaged rule must fail."""
    plan = repeat(pure(step * LATTICE), 60)
    rule = Rule(Budget(epsilon=epsilon, delta=1.002 * delta(plan, epsilon)))  # the plan just fits
    limit = rule.budget.delta
    assert delta_with_a_first_plan(rule, sizes, step, 60, forget=False) <= limit
    assert delta_with_a_first_plan(rule, sizes, step, 60, forget=True) > 1.005 * limit
