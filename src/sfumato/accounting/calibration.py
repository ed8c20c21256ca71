"""How much noise a budget asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from dp_accounting import gaussian_mechanism

from sfumato import _validate
from sfumato.accounting.budget import Budget
from sfumato.accounting.events import DpEvent
from sfumato.accounting.pld import epsilon
from sfumato.accounting.rdp import rdp_epsilon
from sfumato.errors import NotPrivate

TIGHTNESS = 1e-3
"""The calibrated ε is at most this much, relatively, below the budget, and never above it."""


def calibrate(make_event: Callable[[float], DpEvent], budget: Budget, *, guess: float = 1.0) -> float:
    """The value at which `make_event(value)` just fits `budget`.

    Works for a value that makes the event cheaper as it grows (noise) and for one that makes it dearer (a
    rate). The event's ε never exceeds the budget's, and is within 0.1% of it.

    >>> from sfumato.accounting import GaussianEvent, epsilon
    >>> sigma = calibrate(GaussianEvent, Budget(epsilon=1, delta=1e-5))
    >>> 0.999 <= epsilon(GaussianEvent(sigma), 1e-5) <= 1
    True
    """

    def cost(value: float) -> float:
        return epsilon(make_event(value), budget.delta, relation=budget.relation, precision=TIGHTNESS)

    def bound(value: float) -> float:
        return rdp_epsilon(make_event(value), budget.delta, relation=budget.relation)

    guess = _validate.positive("guess", guess)
    rough = bound if budget.delta and math.isfinite(bound(guess)) else cost
    grows_dearer = rough(guess) < rough(2 * guess)
    start, factor = guess, 2.0
    if rough is bound:
        # The Rényi bound is cheap and lies a little outside: exact prices are asked for near-by only.
        near = _bracket(bound, budget.epsilon, guess, 1 / 2.0 if grows_dearer else 2.0)
        start, factor = _narrow(bound, budget.epsilon, *near, tightness=0.05), 1.15
    inside, outside = _bracket(cost, budget.epsilon, start, 1 / factor if grows_dearer else factor)
    return _narrow(cost, budget.epsilon, inside, outside, tightness=TIGHTNESS)


def _bracket(cost: Callable[[float], float], limit: float, start: float, step: float) -> tuple[float, float]:
    """Two values, the first within the limit and the second beyond it; a `step` times larger one is cheaper."""
    value, fits = start, cost(start) <= limit
    for _ in range(400):
        following = value / step if fits else value * step
        if (cost(following) <= limit) != fits:
            return (value, following) if fits else (following, value)
        value = following
    raise NotPrivate(f"no value gives ε = {limit:g}; the release cannot be calibrated to this budget")


def _narrow(
    cost: Callable[[float], float], limit: float, inside: float, outside: float, *, tightness: float
) -> float:
    """Regula falsi on log ε against log value (nearly straight), with halving when it stalls."""
    low, high = cost(inside), cost(outside)
    for turn in range(60):
        if limit * (1 - tightness) <= low <= limit:
            return inside
        middle = math.sqrt(inside * outside)
        if turn % 3 != 2 and low > 0 and math.isfinite(high):
            # Aim a little inside the limit, so that the point found is one that may be returned.
            share = math.log(limit * (1 - tightness / 2) / low) / math.log(high / low)
            middle = inside * (outside / inside) ** min(0.99, max(0.01, share))
        value = cost(middle)
        if value <= limit:
            inside, low = middle, value
        else:
            outside, high = middle, value
    return inside


@lru_cache(maxsize=256)
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest σ/Δ at which one Gaussian release is (ε, δ)-DP (Balle & Wang 2018, Thm 8).

    >>> round(gaussian_noise_multiplier(1, 1e-5), 6)
    3.730632
    """
    epsilon = _validate.positive("epsilon", epsilon)
    delta = _validate.probability("delta", delta, remedy="a Gaussian release needs delta > 0")
    sigma = float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))
    # The root finder stops on either side of the root; the side that is private is wanted.
    while gaussian_mechanism.get_epsilon_gaussian(sigma, delta) > epsilon:
        sigma *= 1 + 1e-9
    return sigma
