"""ε and δ of one Gaussian release in closed form (Balle & Wang 2018, theorem 8).

The formulas, the search and the bits are those of `dp_accounting.gaussian_mechanism`. That takes Φ from
`scipy.stats`, which spends a hundred times as long on looking at its arguments.
"""

from __future__ import annotations

import math

import numpy as np

_TOLERANCE = 1e-12  # of ε


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
    from scipy.optimize import brentq

    wanted = float(np.log(delta))
    if log_delta(sigma, 0) < wanted:
        return 0.0
    low, high = 0.0, 1.0
    while log_delta(sigma, high) > wanted:
        low, high = high, high * 10
    return float(brentq(lambda epsilon: log_delta(sigma, epsilon) - wanted, low, high, xtol=_TOLERANCE))
