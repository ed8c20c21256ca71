"""The rule that keeps a budget however adaptively it is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sfumato.accounting.budget import Budget
from sfumato.accounting.events import ApproximateEvent, DpEvent, atoms, compose, pure, repeat
from sfumato.accounting.pld import epsilon
from sfumato.accounting.rdp import Divergences, rdp, to_epsilon
from sfumato.errors import NotPrivate

_APPROXIMATE_SHARE = 0.1  # of δ, for charges of which only (ε, δ) is known


@dataclass(frozen=True)
class Spending:
    """What the charges so far add up to, in the units the filter counts in."""

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

    A few orders are fixed at creation instead of one, each with an equal share of δ, and a charge fits while
    *any* of them has room. *Proof.* Let τ_α be the time at which order α would stop and L_t the privacy loss
    of the first t charges. Per order, exp((α−1)(L_t − Σρ)) is a supermartingale, so
    E[(1 − e^{ε−L_{τ_α}})₊] ≤ δ/|Λ|. The run ends at T = max_α τ_α, which is one of the τ_α, so pointwise
    (1 − e^{ε−L_T})₊ ≤ Σ_α (1 − e^{ε−L_{τ_α}})₊, whose expectation is at most δ. Going on while any order of a
    grid fits *without* sharing δ has no such proof and is not valid.

    Charges of which only (ε, δ') is known count as ε-DP outside an event of probability δ'; their δ' add up in
    a share of δ set aside. With δ = 0 the ε of the charges are added.

    >>> spent = PrivacyFilter(Budget(epsilon=1)).spending(pure(0.75))
    >>> PrivacyFilter(Budget(epsilon=1)).fits(spent + spent)
    False
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.orders = _orders(budget)
        self._delta = budget.delta * (1 - _APPROXIMATE_SHARE) / max(1, len(self.orders))

    @property
    def nothing(self) -> Spending:
        return Spending((0.0,) * max(1, len(self.orders)), 0.0)

    def spending(self, event: DpEvent) -> Spending:
        """What `event` counts; an ApproximateEvent is split into its ε and its δ."""
        if not self.orders:
            return Spending((epsilon(event, 0.0, relation=self.budget.relation),), 0.0)
        known = [repeat(_without_failure(part), count) for part, count in atoms(event)]
        failure = math.fsum(
            count * part.delta for part, count in atoms(event) if isinstance(part, ApproximateEvent)
        )
        divergences = rdp(compose(*known), self.orders, relation=self.budget.relation)
        return Spending(tuple(float(value) for value in divergences), failure)

    def fits(self, spending: Spending) -> bool:
        if spending.failure > self.budget.delta * _APPROXIMATE_SHARE:
            return False
        return self.epsilon(spending) <= self.budget.epsilon * (1 + 1e-12)  # sums of ε round

    def epsilon(self, spending: Spending) -> float:
        """ε at the budget's δ of all that was charged, under this rule."""
        if not any(spending.divergences):
            return 0.0
        if not self.orders:
            return spending.divergences[0]
        by_order = to_epsilon(np.array(self.orders), self._finite(spending), self._delta)
        return max(0.0, float(np.min(by_order)))

    def largest_pure_charge(self, spending: Spending) -> float:
        """The largest ε of a pure charge that would still fit."""
        if not self.fits(spending):
            return 0.0
        low, high = 0.0, self.budget.epsilon
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.fits(spending + self.spending(pure(middle))) else (low, middle)
        return low

    def _finite(self, spending: Spending) -> Divergences:
        return np.array(spending.divergences, dtype=float)


def _orders(budget: Budget) -> tuple[float, ...]:
    """Orders around the one that suits Gaussian spending of the whole budget; none for δ = 0.

    With ρ = cα the conversion ε ≈ cα + ln(1/δ)/(α−1) is least near α − 1 = 2·ln(1/δ)/ε.
    """
    if budget.delta == 0:
        return ()
    if budget.epsilon <= 0:
        raise NotPrivate(f"no filter for epsilon={budget.epsilon}")
    best = 2 * math.log(1 / budget.delta) / budget.epsilon
    return tuple(1 + best * factor for factor in (0.5, 1.0, 2.0))


def _without_failure(event: DpEvent) -> DpEvent:
    return pure(event.epsilon) if isinstance(event, ApproximateEvent) else event
