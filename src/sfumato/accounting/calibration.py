"""How much noise a budget asks for."""

from __future__ import annotations

import math
from collections.abc import Callable

from sfumato import _validate
from sfumato.accounting.events import Budget, DpEvent
from sfumato.accounting.pld import epsilon
from sfumato.accounting.rdp import rdp_epsilon
from sfumato.errors import NotPrivate

TIGHTNESS = 1e-3
"""The calibrated ε is at most this much, relatively, below the budget, and never above it."""

_DOUBLINGS = 64  # of a value in search of the budget, at most; 2⁶⁴ times more noise is no release
_LEAP = 16.0


def calibrate(make_event: Callable[[float], DpEvent], budget: Budget, *, guess: float = 1.0) -> float:
    """Return the value at which `make_event(value)` just fits `budget`.

    Works for a value that makes the event cheaper as it grows (noise) and for one that makes it dearer (a
    rate). The event's ε never exceeds the budget's, and is within 0.1% of it.

    Args:
        make_event: Gives the event for a value, such as a noise multiplier.

    Raises:
        InvalidInput: If no value fits.

    >>> from sfumato.accounting import GaussianEvent, epsilon
    >>> sigma = calibrate(GaussianEvent, Budget(epsilon=1, delta=1e-5))
    >>> 0.999 <= epsilon(GaussianEvent(sigma), 1e-5) <= 1
    True
    """

    precision = TIGHTNESS if budget.epsilon >= 1e-4 else TIGHTNESS / 10

    def cost(value: float) -> float:
        return epsilon(make_event(value), budget.delta, relation=budget.relation, precision=precision)

    def bound(value: float) -> float:
        return rdp_epsilon(make_event(value), budget.delta, relation=budget.relation)

    limit, guess = budget.epsilon, _validate.positive("guess", guess)
    rough = bound if budget.delta and math.isfinite(bound(guess)) else cost
    grows_dearer = rough(guess) < rough(2 * guess)
    if rough is bound:
        # The Rényi bound is cheap and lies a little outside: exact prices are asked for near-by only. It has
        # a floor, as its orders end somewhere: a budget below that is looked for from where the floor begins.
        guess = _near(bound, limit, guess, 1 / 2.0 if grows_dearer else 2.0)
    inside, outside = _bracket(cost, limit, guess, grows_dearer=grows_dearer)
    return _narrow(cost, limit, inside, outside, tightness=TIGHTNESS)


def _near(bound: Callable[[float], float], limit: float, start: float, step: float) -> float:
    """Where the bound comes near the limit, or stops to fall; a `step` times larger value is cheaper."""
    value, price = start, bound(start)
    fits = price <= limit
    for _ in range(_DOUBLINGS):
        following = value / step if fits else value * step
        there = bound(following)
        if (there <= limit) != fits:
            near = (value, following) if fits else (following, value)
            return _narrow(bound, limit, *near, tightness=0.05)
        if not fits and there > 0.9 * price:
            break
        value, price = following, there
    return value


def _bracket(
    cost: Callable[[float], float], limit: float, start: float, *, grows_dearer: bool
) -> tuple[float, float]:
    """Two values, the first within the limit and the second beyond it.

    ε is about proportional to the rate, and to 1/noise or 1/noise²: the next value is the one at which a
    proportional ε would have crossed the limit, and a little more.
    """
    value, price = start, cost(start)
    fits = price <= limit
    for _ in range(_DOUBLINGS):
        ratio = max(price, limit) / min(price, limit) if 0 < price < math.inf else math.inf
        factor = min(_LEAP, 1.05 * ratio)
        following = value / factor if fits is not grows_dearer else value * factor
        there = cost(following)
        if (there <= limit) != fits:
            return (value, following) if fits else (following, value)
        value, price = following, there
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
