"""The noise of whole numbers, and how far it reaches: quantiles of weighted sums, intervals of ratios."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import DiscreteLaplace
from sfumato.mechanisms.gaussian import DISCRETENESS, rounded_gaussian
from sfumato.mechanisms.laplace import no_less_noise, rounded_laplace
from sfumato.query.measures import Integers
from sfumato.randomness import Sampler

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
_HALVINGS = 48
_APART = 1.01  # weights are kept this far apart, for the partial fractions; it widens an interval by < 1%
_FINE = 1000  # from this sensitivity on, rounding adds less than a millionth to the variance
_LARGEST_SCALE = 2.0**50


class Family(Enum):
    """The shape of a noise; its scale is b of a Laplace, σ of a Gaussian."""

    LAPLACE = "Laplace"
    GAUSSIAN = "Gaussian"

    @property
    def variance(self) -> float:
        """That of scale 1."""
        return 2.0 if self is Family.LAPLACE else 1.0


@dataclass(frozen=True, kw_only=True)
class WholeNoise(ABC):
    """A noise that is added to whole numbers of which one unit moves a number by `sensitivity`."""

    sensitivity: int
    scale: float
    family: ClassVar[Family]

    def __post_init__(self) -> None:
        _validate.integer("sensitivity", self.sensitivity, least=1)
        if not 0 < self.scale <= _LARGEST_SCALE:
            raise InvalidInput(
                f"expected noise of at most 2**50 grid steps, got {self.scale:g}; ask with a larger epsilon, "
                "or lower unit.rows in the policy"
            )

    @property
    def discrete(self) -> bool:
        return False

    @property
    @abstractmethod
    def deviation(self) -> float:
        """The standard deviation of one draw."""

    @abstractmethod
    def event(self) -> accounting.DpEvent:
        """The cost of releasing all numbers that one unit moves, once."""

    @abstractmethod
    def release(self, values: Integers, sampler: Sampler) -> Integers: ...

    @abstractmethod
    def rarely(self, chance: float) -> int:
        """The smallest t ≥ 1 that a draw reaches with no more than this chance."""

    @abstractmethod
    def imitated(self, chance: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Draws of the same kind that protect no one: for intervals of columns computed from answers."""


@dataclass(frozen=True, kw_only=True)
class WholeLaplace(WholeNoise):
    """Whole numbers plus ⌊L + ½⌋ for Laplace L of `scale`.

    *Guarantees*: ε = sensitivity / scale. As the numbers are whole, x + ⌊L + ½⌋ = ⌊x + L + ½⌋ is
    post-processing of the ideal Laplace mechanism, for every scale; the draw is exact. A small sensitivity
    takes the discrete Laplace instead, whose variance is less by about ¼ and whose exact price sums over the
    sensitivity.

    Dwork & Roth 2014, section 3.3; Ghosh, Roughgarden & Sundararajan 2012, section 2.

    >>> WholeLaplace.calibrated(sensitivity=120, epsilon=0.5).scale
    240.0
    """

    family = Family.LAPLACE

    @classmethod
    def calibrated(cls, *, sensitivity: int, epsilon: float) -> WholeLaplace:
        _validate.positive("epsilon", epsilon)
        return cls(sensitivity=sensitivity, scale=no_less_noise(sensitivity, epsilon))

    @property
    def discrete(self) -> bool:
        return self.sensitivity < _FINE

    @property
    def deviation(self) -> float:
        if not self.discrete:
            return math.sqrt(2) * self.scale
        return math.sqrt(2 * math.exp(-1 / self.scale)) / -math.expm1(-1 / self.scale)

    def event(self) -> accounting.DpEvent:
        if self.discrete:
            return DiscreteLaplace(sensitivity=self.sensitivity, scale=self.scale).event()
        return accounting.LaplaceEvent(self.scale / self.sensitivity)

    def release(self, values: Integers, sampler: Sampler) -> Integers:
        if self.discrete:
            return DiscreteLaplace(sensitivity=self.sensitivity, scale=self.scale).release(values, sampler)
        return values + rounded_laplace(sampler, self.scale, values.size).reshape(values.shape)

    def rarely(self, chance: float) -> int:
        """For the discrete Laplace P(X ≥ j) = aʲ/(1 + a), j ≥ 1, with ln a = −1/scale.

        For ⌊L + ½⌋ it is P(L ≥ j − ½) = ½ exp(−(j − ½)/scale).
        """
        if not self.discrete:
            return max(1, math.ceil(0.5 - self.scale * math.log(2 * chance)))
        return max(1, math.ceil(-self.scale * math.log(chance * (1 + math.exp(-1 / self.scale)))))

    def imitated(self, chance: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return chance.laplace(0.0, self.scale, shape)


@dataclass(frozen=True, kw_only=True)
class WholeGaussian(WholeNoise):
    """Whole numbers plus ⌊G + ½⌋ for Gaussian G of standard deviation `scale`.

    *Guarantees*: the cost of a Gaussian mechanism of noise multiplier scale / (sensitivity · √moved), less the
    tiny factor for its exact sampler, where a unit moves at worst `moved` numbers by `sensitivity` each. As the
    numbers are whole, x + ⌊G + ½⌋ = ⌊x + G + ½⌋ is post-processing.

    Balle & Wang 2018, theorem 8; Canonne, Kamath & Steinke 2020, theorem 7 (see mechanisms.Gaussian).

    >>> noise = WholeGaussian.of_multiplier(4.0, sensitivity=3, moved=4)
    >>> round(noise.scale, 3)
    24.0
    """

    moved: int
    family = Family.GAUSSIAN

    def __post_init__(self) -> None:
        _validate.integer("moved", self.moved, least=1)
        super().__post_init__()

    @classmethod
    def of_multiplier(cls, multiplier: float, *, sensitivity: int, moved: int) -> WholeGaussian:
        distance = sensitivity * math.sqrt(moved) * DISCRETENESS
        return cls(sensitivity=sensitivity, moved=moved, scale=multiplier * distance * (1 + 2.0**-50))

    @property
    def deviation(self) -> float:
        return math.sqrt(self.scale**2 + 1 / 12)  # rounding

    def event(self) -> accounting.DpEvent:
        distance = self.sensitivity * math.sqrt(self.moved) * DISCRETENESS
        return accounting.GaussianEvent(self.scale / distance)

    def release(self, values: Integers, sampler: Sampler) -> Integers:
        return values + rounded_gaussian(sampler, self.scale, values.size).reshape(values.shape)

    def rarely(self, chance: float) -> int:
        """P(⌊G + ½⌋ ≥ t) = P(G ≥ t − ½)."""
        return max(1, math.ceil(self.scale * float(stats.norm.isf(chance)) + 0.5))

    def imitated(self, chance: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return chance.normal(0.0, self.scale, shape)


# ---- how far it reaches


def reach(weights: npt.ArrayLike, noise: WholeNoise, level: float = LEVEL) -> Floats:
    """How far Σᵢ wᵢ Xᵢ of independent draws lies from 0 with probability `level`; a row of weights for each."""
    return half_width(weights, level, family=noise.family) * noise.scale


def whole_reach(noise: WholeNoise, level: float = LEVEL) -> float:
    """The same for one draw, a whole number: ⌊X + ½⌋ is within t if |X| < t + ½."""
    if noise.discrete:
        return discrete_half_width(noise.scale, level)
    return rounded_width(float(reach([[1.0]], noise, level)[0]))


def rounded_width(width: float) -> float:
    """How far a rounded estimate of a whole number lies from it, if before rounding it was within `width`."""
    return float(max(0, math.ceil(width - 0.5)))


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


def ratio_interval(
    parts: Floats, shares: Floats, noise: WholeNoise, level: float = LEVEL
) -> tuple[Floats, Floats]:
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


def _endpoint(parts: Floats, shares: Floats, noise: WholeNoise, level: float, *, side: float) -> Floats:
    """The root of Σ (cᵢ − p) ẽᵢ = ± quantile(p), by halving; the left side falls in p."""
    points, widths = _ratio_widths(tuple(shares.tolist()), level, noise.family)
    low, high = np.zeros(len(parts)), np.ones(len(parts))
    for _ in range(_HALVINGS):
        p = (low + high) / 2
        weights = shares[None, :] - p[:, None]  # (groups, parts)
        excess = (weights * parts).sum(axis=1) - side * np.interp(p, points, widths) * noise.scale
        low, high = np.where(excess > 0, p, low), np.where(excess > 0, high, p)
    return low if side > 0 else high  # outwards: 0 and 1 themselves where nothing within agrees
