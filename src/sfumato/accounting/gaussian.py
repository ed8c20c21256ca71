"""ε and δ of one Gaussian release in closed form (Balle & Wang 2018, theorem 8).

The formulas, the search and the bits are those of `dp_accounting.gaussian_mechanism`. That takes Φ from
`scipy.stats`, which spends a hundred times as long on looking at its arguments. Where σ is so large that
rounding hides the difference of the two Φ, ε comes from an upper bound of δ instead, and is never too small.
"""

from __future__ import annotations

import math

import numpy as np

_TOLERANCE = 1e-12  # of ε
_LARGE = 1e6  # σ, from which ε is taken from the bound
_FARTHEST = 40.0  # standard deviations: nothing that float64 can hold lies beyond
_ROUNDING = 1e-9  # relative, of the bound: far above that of its terms


def log_delta(sigma: float, epsilon: float) -> float:
    """log δ at ε of a Gaussian release with noise σ for sensitivity 1: Φ(1/2σ − εσ) − exp(ε) Φ(−1/2σ − εσ).

    >>> round(math.exp(log_delta(1.0, 1.0)), 6)
    0.126937
    """
    from scipy.special import log_ndtr

    middle = epsilon * sigma + 1 / (2 * sigma)
    inside = log_ndtr(1 / sigma - middle)
    outside = epsilon + log_ndtr(-middle)
    with np.errstate(divide="ignore"):  # where both are the same number, δ is 0
        return float(inside + np.log1p(-np.exp(outside - inside))) if outside <= inside else -math.inf


def epsilon_of(sigma: float, delta: float) -> float:
    """The smallest ε at which it is (ε, δ)-DP, for δ > 0.

    >>> round(epsilon_of(1.0, 1e-5), 4)
    4.3772
    """
    if delta == 1 or sigma == math.inf:
        return 0.0
    if sigma == 0:
        return math.inf
    if sigma > _LARGE:
        return _epsilon_above(sigma, delta)
    from scipy.optimize import brentq

    wanted = float(np.log(delta))
    if log_delta(sigma, 0) < wanted:
        return 0.0
    low, high = 0.0, 1.0
    while log_delta(sigma, high) > wanted:
        low, high = high, high * 10
    return float(brentq(lambda epsilon: log_delta(sigma, epsilon) - wanted, low, high, xtol=_TOLERANCE))


def _epsilon_above(sigma: float, delta: float) -> float:
    """A little more than ε, at a large σ: by bisection of x = εσ, from above."""
    wanted, low, high = math.log(delta), 0.0, _FARTHEST
    if _log_delta_above(sigma, low) <= wanted:
        return 0.0
    while (middle := (low + high) / 2) not in (low, high):
        if _log_delta_above(sigma, middle) <= wanted:
            high = middle
        else:
            low = middle
    return math.nextafter(high / sigma, math.inf)


def _log_delta_above(sigma: float, x: float) -> float:
    """A little more than log δ at ε = x/σ.

    With h = 1/σ, δ is the mass of the normal density φ between x − h/2 and x + h/2, less
    (exp(ε) − 1) Φ(−x − h/2). As φ(x + s) ≤ φ(x) exp(−xs), exp(ε) − 1 ≥ ε + ε²/2 and
    Φ(−x − h/2) ≥ Φ(−x) − φ(x) h/2,
    δ ≤ h φ(x) (sinh(xh/2) / (xh/2) − x (1 + xh/2) (R − h/2)), R = Φ(−x) / φ(x).

    >>> math.isclose(_log_delta_above(1e5, 4.0), log_delta(1e5, 4e-5), rel_tol=1e-6)
    True
    """
    from scipy.special import erfcx

    half = x / (2 * sigma)
    ratio = math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))
    mass = math.sinh(half) / half if half else 1.0
    left = mass - x * (1 + half) * (ratio - 1 / (2 * sigma))
    density = -x * x / 2 - math.log(2 * math.pi) / 2
    return math.log(left) + math.log1p(_ROUNDING) + density - math.log(sigma)
