"""How far noise reaches: quantiles of weighted sums, and intervals of ratios of noisy sums."""

from __future__ import annotations

import math
from enum import Enum
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
_HALVINGS = 48
_APART = 1.01  # weights are kept this far apart, for the partial fractions; it widens an interval by < 1%


class Family(Enum):
    """The shape of a noise; its scale is b of a Laplace, σ of a Gaussian."""

    LAPLACE = "Laplace"
    GAUSSIAN = "Gaussian"


class Noise(Protocol):
    """The properties of a noise that intervals depend on."""

    @property
    def family(self) -> Family: ...
    @property
    def scale(self) -> float: ...
    @property
    def discrete(self) -> bool: ...


def reach(weights: npt.ArrayLike, noise: Noise, level: float = LEVEL) -> Floats:
    """How far Σᵢ wᵢ Xᵢ of independent draws lies from 0 with probability `level`; a row of weights for each."""
    return half_width(weights, level, family=noise.family) * noise.scale


def whole_reach(noise: Noise, level: float = LEVEL) -> float:
    """The same for one draw, a whole number: ⌊X + ½⌋ is within t if |X| < t + ½."""
    if noise.family is Family.LAPLACE and noise.discrete:
        return discrete_half_width(noise.scale, level)
    return max(0, math.ceil(float(reach([[1.0]], noise, level)[0]) - 0.5))


def discrete_half_width(scale: float, level: float = LEVEL) -> int:
    """The smallest t with P(|X| ≤ t) ≥ level for the discrete Laplace: P(|X| > t) = 2a^{t+1}/(1+a).

    >>> discrete_half_width(10.0)
    30
    """
    tail = math.log((1 - level) * (1 + math.exp(-1 / scale)) / 2)  # ln a = −1/scale
    return max(0, math.ceil(-scale * tail - 1 - 1e-12))


def half_width(weights: npt.ArrayLike, level: float = LEVEL, *, family: Family = Family.LAPLACE) -> Floats:
    """t with P(|Σᵢ wᵢ Xᵢ| ≤ t) ≥ level for standard Laplace or Gaussian Xᵢ; one row of weights for each t.

    Gaussians add up to one. For Laplaces with different weights the characteristic function Π 1/(1 + wᵢ²u²)
    splits into partial fractions, so that P(|Σ| > t) = Σᵢ e^{−t/wᵢ} Π_{j≠i} wᵢ²/(wᵢ² − wⱼ²). Nearly equal
    weights are raised apart first.

    >>> round(float(half_width([[1.0]])[0]), 4)  # ln 20
    2.9957
    """
    sizes = np.atleast_2d(np.abs(np.asarray(weights, dtype=float)))  # (intervals, weights)
    if family is Family.GAUSSIAN:
        return np.sqrt((sizes**2).sum(axis=1)) * float(stats.norm.ppf((1 + level) / 2))
    apart = _raised_apart(sizes)
    coefficients = _partial_fractions(apart)
    low, high = np.zeros(len(apart)), apart.sum(axis=1) * (math.log(1 / (1 - level)) + 1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            tails = np.where(apart > 0, np.exp(-middle[:, None] / apart), 0.0)
        outside = (coefficients * tails).sum(axis=1) > 1 - level
        low, high = np.where(outside, middle, low), np.where(outside, high, middle)
    return high


def _raised_apart(weights: Floats) -> Floats:
    ordered = np.sort(weights, axis=1)
    for i in range(1, ordered.shape[1]):
        ordered[:, i] = np.maximum(ordered[:, i], ordered[:, i - 1] * _APART)
    # A weight a millionth of the largest adds nothing to the sum, and would drown in the fractions.
    return np.where(ordered < 1e-6 * ordered[:, -1:], 0.0, ordered)


def _partial_fractions(weights: Floats) -> Floats:
    squares = weights**2
    differences = squares[:, :, None] - squares[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = squares[:, :, None] / differences
    factors = np.where(np.eye(weights.shape[1], dtype=bool), 1.0, factors)
    factors = np.where(squares[:, None, :] == 0, 1.0, factors)
    return np.where(squares > 0, np.prod(factors, axis=2), 0.0)


def ratio_interval(parts: Floats, shares: Floats, noise: Noise, level: float = LEVEL) -> tuple[Floats, Floats]:
    """The p in [0, 1] that agree with noisy parts, where p = Σᵢ cᵢ eᵢ / Σᵢ eᵢ of the exact parts eᵢ.

    At the true p the noisy Σᵢ (cᵢ − p) ẽᵢ is noise alone, with weights cᵢ − p: every p is kept at which it is
    within that noise's quantile (Fieller 1954). `parts` is (groups, parts), `shares` the cᵢ. The coverage is
    `level`; where the noise could hide the whole sum, every p agrees.
    """
    total = parts.sum(axis=1)
    clear = total > reach([shares * 0 + 1.0], noise, level)[0]
    low = _endpoint(parts, shares, noise, level, side=+1.0)
    high = _endpoint(parts, shares, noise, level, side=-1.0)
    return np.where(clear, low, 0.0), np.where(clear, high, 1.0)


@lru_cache(maxsize=16)
def _ratio_widths(shares: tuple[float, ...], level: float, family: Family) -> tuple[Floats, Floats]:
    """The quantile of the noise Σ (cᵢ − p) Xᵢ at many p; it is nearly straight between them."""
    points = np.linspace(0.0, 1.0, 1025)
    return points, half_width(np.array(shares)[None, :] - points[:, None], level, family=family)


def _endpoint(parts: Floats, shares: Floats, noise: Noise, level: float, *, side: float) -> Floats:
    """The root of Σ (cᵢ − p) ẽᵢ = ± quantile(p), by halving; the left side falls in p."""
    points, widths = _ratio_widths(tuple(shares.tolist()), level, noise.family)
    low, high = np.zeros(len(parts)), np.ones(len(parts))
    for _ in range(_HALVINGS):
        p = (low + high) / 2
        weights = shares[None, :] - p[:, None]  # (groups, parts)
        excess = (weights * parts).sum(axis=1) - side * np.interp(p, points, widths) * noise.scale
        low, high = np.where(excess > 0, p, low), np.where(excess > 0, high, p)
    return low if side > 0 else high  # outwards: 0 and 1 themselves where nothing within agrees
