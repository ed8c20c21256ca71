"""The rule that keeps a budget however adaptively it is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sfumato.accounting.events import ApproximateEvent, Budget, DpEvent, Relation, atoms, compose, pure, repeat
from sfumato.accounting.pld import epsilon
from sfumato.accounting.rdp import Divergences, pure_divergences, rdp, to_epsilon
from sfumato.errors import NotPrivate

_LEAST = 2.0**-20  # above 1, of an order: nearer to it floating point cannot divide by the difference
_LARGER = (4.0, 8.0, 16.0, 32.0, 64.0)  # times the order that suits the whole budget
_LARGER_SHARE = 0.1  # of δ
_LARGEST_ORDER = 2048.0  # a sampled Gaussian's price takes as many terms
_APPROXIMATE_SHARE = 0.1  # of δ, for charges of which only (ε, δ) is known


@dataclass(frozen=True)
class Spending:
    """The sum of the charges so far, in the units of the filter."""

    divergences: tuple[float, ...]
    failure: float

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            tuple(a + b for a, b in zip(self.divergences, other.divergences, strict=True)),
            self.failure + other.failure,
        )


class PrivacyFilter:
    """Says whether a charge, chosen after seeing all earlier answers, still fits the budget.

    Rényi filter (Feldman & Zrnic 2021, Thm 4.3; Haney et al. 2023): at one order α fixed beforehand, charges
    may be chosen adaptively as long as their divergences sum to at most ρ_α, where ρ_α converts to ε at δ.

    A few orders are fixed at creation instead of one, each with its share δ_α of δ, and a charge fits while
    *any* of them has room. *Proof.* Let τ_α be the time at which order α would stop and L_t the privacy loss of
    the first t charges. Per order, exp((α−1)(L_t − Σρ)) is a supermartingale, so E[(1 − e^{ε−L_{τ_α}})₊] ≤
    δ_α. The run ends at T = max_α τ_α, which is one of the τ_α, so pointwise (1 − e^{ε−L_T})₊ ≤ Σ_α (1 −
    e^{ε−L_{τ_α}})₊, whose expectation is at most δ. Going on while any order of a grid fits *without* sharing δ
    has no such proof and is not valid. The order α = ∞, at which pure ε add up, needs no share: there the loss
    never exceeds ε (Rogers et al. 2016, Thm 3.4).

    Three orders suit spending of the whole budget. While little of it is spent they say far too much: the
    first Gaussian charge of ε = 0.1 counts 0.6 of a budget of 3. Larger orders suit that: some of them have a
    tenth of δ together, which costs the three less than a hundredth of their room.

    Charges of which only (ε, δ') is known count as ε-DP outside an event of probability δ'; their δ' add up in
    a share of δ set aside.

    Args:
        budget: The ε and δ that all charges together must keep to. It also fixes the orders.
        taken: The part of δ that is used up elsewhere.
        limit: An ε to hold the charges to in place of the budget's.

    >>> spent = PrivacyFilter(Budget(epsilon=1)).spending(pure(0.75))
    >>> PrivacyFilter(Budget(epsilon=1)).fits(spent + spent)
    False
    """

    def __init__(self, budget: Budget, *, taken: float = 0.0, limit: float | None = None) -> None:
        self.budget = budget
        self.limit = budget.epsilon if limit is None else limit
        coarse = _orders(budget)
        larger = _larger_orders(budget, coarse)
        self.orders = (*coarse, *larger)
        free = max(0.0, budget.delta - taken)
        self._failure = free * _APPROXIMATE_SHARE
        shared = free * (1 - _APPROXIMATE_SHARE)
        for_larger = shared * _LARGER_SHARE if larger else 0.0
        self._deltas = np.array(
            [(shared - for_larger) / len(coarse) for _ in coarse] + [for_larger / len(larger) for _ in larger]
        )

    @property
    def nothing(self) -> Spending:
        return Spending((0.0,) * (len(self.orders) + 1), 0.0)

    def spending(self, event: DpEvent) -> Spending:
        """Return the figures of `event`, the pure ε last; an ApproximateEvent is split into its ε and its δ."""
        relation = self.budget.relation
        if not self.orders:
            return Spending((epsilon(event, 0.0, relation=relation),), 0.0)
        known = compose(*(repeat(_without_failure(part), count) for part, count in atoms(event)))
        failure = math.fsum(
            count * part.delta for part, count in atoms(event) if isinstance(part, ApproximateEvent)
        )
        divergences = tuple(float(value) for value in _divergences(known, self.orders, relation))
        return Spending((*divergences, epsilon(known, 0.0, relation=relation)), failure)

    def _of_pure(self, value: float) -> Spending:
        """Return `spending(pure(value))`, without the checks of an event."""
        return Spending((*pure_divergences(value, np.array(self.orders)).tolist(), value), 0.0)

    def _of_gaussian(self, precision: float) -> Spending:
        """Return the figures of a Gaussian release of noise σ = 1/√precision: α/2σ² (Mironov 2017, Prop. 7)."""
        return Spending((*(order * precision / 2 for order in self.orders), math.inf), 0.0)

    def fits(self, spending: Spending, *, slack: float = 1e-12) -> bool:
        """Return whether all of it keeps to ε and the share of δ; `slack` is relative, as sums of ε round."""
        if spending.failure > self._failure * (1 + slack):
            return False
        return self.epsilon(spending) <= self.limit * (1 + slack)

    def epsilon(self, spending: Spending) -> float:
        """ε at the budget's δ of all that was charged, under this rule."""
        *divergences, pure_epsilon = spending.divergences
        if not divergences or not any(spending.divergences) or not self._deltas.all():
            return pure_epsilon
        by_order = to_epsilon(np.array(self.orders), np.array(divergences), self._deltas)
        return max(0.0, min(float(np.min(by_order)), pure_epsilon))

    def largest_pure_charge(self, spending: Spending, *, at_most: float = math.inf) -> float:
        """Return the largest ε of a pure charge, up to `at_most`, that would still fit."""
        if not self.fits(spending):
            return 0.0

        def accepts(value: float) -> bool:
            return self.fits(spending + self._of_pure(value))

        if at_most <= self.limit and accepts(at_most):
            return at_most
        low, high = max(0.0, self.limit - spending.divergences[-1]), self.limit  # at least what adding ε allows
        if low >= at_most:
            return at_most
        if not accepts(low + 1e-9 * high):
            return low
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if accepts(middle) else (low, middle)
        return min(low, at_most)

    def least_gaussian_noise(self, spending: Spending) -> float:
        """Return the least noise multiplier of a Gaussian charge that would fit; infinite where none does."""

        def accepts(precision: float) -> bool:
            return self.fits(spending + self._of_gaussian(precision))

        if not self.orders or not accepts(0.0):
            return math.inf
        low, high = 0.0, 1.0
        while accepts(high):
            low, high = high, high * 4
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if accepts(middle) else (low, middle)
        return 1 / math.sqrt(low) if low else math.inf


def _divergences(event: DpEvent, orders: tuple[float, ...], relation: Relation) -> Divergences:
    """Rényi divergences; infinite where none is known, which can only be too dear."""
    try:
        return rdp(event, orders, relation=relation)
    except NotPrivate:
        return np.full(len(orders), np.inf)


def _orders(budget: Budget) -> tuple[float, ...]:
    """Orders around the one that suits Gaussian spending of the whole budget; none for δ = 0.

    With ρ = cα the conversion ε ≈ cα + ln(1/δ)/(α−1) is least near α − 1 = 2·ln(1/δ)/ε. Whole orders are used
    where that makes little difference: the sampled Gaussian has a closed form there, and only a series between.
    """
    if budget.delta == 0:
        return ()
    if budget.epsilon <= 0:
        raise NotPrivate(f"no filter for epsilon={budget.epsilon}")
    best = 2 * math.log(1 / budget.delta) / budget.epsilon
    ideal = (1 + max(best * factor, _LEAST) for factor in (0.5, 1.0, 2.0))
    return tuple(sorted({float(round(order)) if order >= 2.5 else order for order in ideal}))


def _larger_orders(budget: Budget, coarse: tuple[float, ...]) -> tuple[float, ...]:
    """Whole orders above the others, each twice the one before, which suit half as much spending."""
    if not coarse:
        return ()
    best = 2 * math.log(1 / budget.delta) / budget.epsilon
    larger = {float(round(1 + best * factor)) for factor in _LARGER}
    return tuple(sorted(order for order in larger if coarse[-1] < order <= _LARGEST_ORDER))


def _without_failure(event: DpEvent) -> DpEvent:
    return pure(event.epsilon) if isinstance(event, ApproximateEvent) else event
