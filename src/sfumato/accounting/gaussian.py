"""ε and δ of one Gaussian release in closed form (Balle & Wang 2018, theorem 8), without SciPy.

δ(ε) = Φ(1/2σ − εσ) − exp(ε) Φ(−1/2σ − εσ) for sensitivity 1, which float64 gives to 1e-9. Where σ is so large
that rounding hides the difference of the two Φ, ε comes from an upper bound of δ, and is never too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from sfumato import _validate

_LARGE = 1e5  # σ, from which ε is taken from the bound
_FARTHEST = 40.0  # standard deviations: nothing that float64 can hold lies beyond
_ROUNDING = 1e-9  # relative, of the bound: far above that of its terms
_LARGEST_EPSILON = 1e6  # protects nothing; beyond it floating point cannot tell noise levels apart
_TAIL = 5.0  # standard deviations, from which 1 − Φ is taken from the continued fraction


def mills_ratio(x: float) -> float:
    """Return (1 − Φ(x)) / φ(x) for x ≥ 0, by the complementary error function or Laplace's continued fraction.

    >>> round(mills_ratio(0.0), 6), round(mills_ratio(30.0), 6)
    (1.253314, 0.033296)
    """
    if x < _TAIL:
        return math.sqrt(math.pi / 2) * math.exp(x * x / 2) * math.erfc(x / math.sqrt(2))
    fraction = x
    for term in range(60, 0, -1):
        fraction = x + term / fraction
    return 1 / fraction


def _log_cdf(x: float) -> float:
    """Return log Φ(x), also where Φ(x) is too small for float64."""
    if x > -_TAIL:
        half_tail = math.erfc(abs(x) / math.sqrt(2)) / 2
        return math.log1p(-half_tail) if x > 0 else math.log(half_tail)
    return math.log(mills_ratio(-x)) - x * x / 2 - math.log(2 * math.pi) / 2


def log_delta(sigma: float, epsilon: float) -> float:
    """Return log δ at ε of a Gaussian release with noise σ for sensitivity 1.

    >>> round(math.exp(log_delta(1.0, 1.0)), 6)
    0.126937
    """
    middle = epsilon * sigma + 1 / (2 * sigma)
    inside = _log_cdf(1 / sigma - middle)
    outside = epsilon + _log_cdf(-middle)
    return inside + math.log(-math.expm1(outside - inside)) if outside < inside else -math.inf


def epsilon_of(sigma: float, delta: float) -> float:
    """Return the smallest ε at which it is (ε, δ)-DP, for δ > 0.

    >>> round(epsilon_of(1.0, 1e-5), 4)
    4.3772
    """
    if delta == 1 or sigma == math.inf:
        return 0.0
    if sigma == 0:
        return math.inf
    wanted = math.log(delta)
    if sigma > _LARGE:
        at = _first_within(lambda x: _log_delta_above(sigma, x) <= wanted, _FARTHEST)
        return math.nextafter(at / sigma, math.inf) if at else 0.0
    high = 1.0
    while log_delta(sigma, high) > wanted:
        high *= 10
    return _first_within(lambda epsilon: log_delta(sigma, epsilon) <= wanted, high)


@lru_cache(maxsize=256)
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest σ/Δ at which one Gaussian release is (ε, δ)-DP (Balle & Wang 2018, theorem 8).

    >>> round(gaussian_noise_multiplier(1, 1e-5), 6)
    3.730632
    """
    epsilon = min(_validate.positive("epsilon", epsilon), _LARGEST_EPSILON)
    delta = _validate.probability("delta", delta, remedy="a Gaussian release needs delta > 0")
    high = 1.0
    while epsilon_of(high, delta) > epsilon:
        high *= 4
    sigma = _first_within(lambda sigma: sigma > 0 and log_delta(sigma, epsilon) <= math.log(delta), high)
    while epsilon_of(sigma, delta) > epsilon:  # rounding may put it on either side
        sigma *= 1 + 1e-9
    return sigma


def _first_within(holds: Callable[[float], bool], high: float) -> float:
    """Return the least number at which `holds` is true, approached from above; it is true at `high`."""
    low = 0.0
    if holds(low):
        return low
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _log_delta_above(sigma: float, x: float) -> float:
    """Return a little more than log δ at ε = x/σ.

    With h = 1/σ, δ is the mass of the normal density φ between x − h/2 and x + h/2, less
    (exp(ε) − 1) Φ(−x − h/2). As φ(x + s) ≤ φ(x) exp(−xs), exp(ε) − 1 ≥ ε + ε²/2 and
    Φ(−x − h/2) ≥ Φ(−x) − φ(x) h/2,
    δ ≤ h φ(x) (sinh(xh/2) / (xh/2) − x (1 + xh/2) (R − h/2)), R = Φ(−x) / φ(x).

    >>> math.isclose(_log_delta_above(1e5, 4.0), log_delta(1e5, 4e-5), rel_tol=1e-6)
    True
    """
    half = x / (2 * sigma)
    mass = math.sinh(half) / half if half else 1.0
    left = mass - x * (1 + half) * (mills_ratio(x) - 1 / (2 * sigma))
    density = -x * x / 2 - math.log(2 * math.pi) / 2
    return math.log(left) + math.log1p(_ROUNDING) + density - math.log(sigma)
