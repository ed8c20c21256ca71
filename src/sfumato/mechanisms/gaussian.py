"""Gaussian noise: on reals, and on whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import Sampler

# A discrete Gaussian of s ≥ 2⁸ grid steps is a little less private than the continuous one: its δ is larger
# by the fraction (t/s)²/12 for a privacy loss t standard deviations out, as much as if the sensitivity were
# larger by 1/(12·s²) < 2⁻¹⁹. It is declared larger by this factor.
DISCRETENESS = 1.0 + 2.0**-19


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Real values plus Gaussian noise of standard deviation σ: density exp(−z² / 2σ²) / (σ√2π) on each.

    Released is round(x) + Z on a power-of-two grid, Z from the discrete Gaussian of the same σ.

    *Guarantees*: the cost of a Gaussian mechanism of noise multiplier σ / `sensitivity_on_grid`, which exceeds
    `sensitivity` by at most 2⁻¹⁸ of it: rounding, and the step from the discrete to the continuous Gaussian.
    `sensitivity` is the L2 norm by which a neighbouring data set moves the values. `calibrated` solves
    δ = Φ(1/2s − εs) − e^ε Φ(−1/2s − εs) for s = σ/Δ, which holds for every ε; the classical
    √(2 ln(1.25/δ))/ε does not for ε > 1. Outputs lie on one grid for all data. The noise is OpenDP's
    exact discrete Gaussian. NaN, infinite and too large values are refused before any noise is drawn. Public:
    sensitivity, sigma, dimension. Secret: the values, the noise.

    Balle & Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8; Canonne, Kamath
    & Steinke 2020, "The discrete Gaussian for differential privacy", theorems 4 and 7.

    Args:
        sensitivity: By how much one unit moves the values, in L2 norm.
        sigma: The standard deviation of the noise, in the unit of the values.
        dimension: How many values are released together.

    >>> from sfumato.randomness import SecretStream
    >>> mean = Gaussian.calibrated(sensitivity=1, epsilon=1, delta=1e-5)
    >>> round(mean.sigma, 4)
    3.7306
    >>> abs(mean.release(1000.0, SecretStream()) - 1000) < 50
    True
    """

    sensitivity: float
    sigma: float
    dimension: int = 1

    def __post_init__(self) -> None:
        _validate.positive("sensitivity", self.sensitivity)
        _validate.integer("dimension", self.dimension, least=1)
        grids.check_noise("sigma", self.sigma, self.sensitivity, self.grid)

    @classmethod
    def calibrated(cls, *, sensitivity: float, epsilon: float, delta: float, dimension: int = 1) -> Gaussian:
        """Return the least noise that costs at most (ε, δ)."""
        multiplier = accounting.gaussian_noise_multiplier(epsilon, delta)
        unit = cls(sensitivity=sensitivity, sigma=sensitivity, dimension=dimension)
        return cls(
            sensitivity=sensitivity,
            sigma=multiplier * unit.sensitivity_on_grid,
            dimension=dimension,
        )

    @property
    def grid(self) -> float:
        return grids.scalar_grid(self.sensitivity, math.sqrt(self.dimension))

    @property
    def sensitivity_on_grid(self) -> float:
        rounded = grids.sensitivity_on_grid(self.sensitivity, self.grid, math.sqrt(self.dimension))
        return rounded * DISCRETENESS

    def event(self) -> accounting.DpEvent:
        return accounting.GaussianEvent(self.sigma / self.sensitivity_on_grid)

    @overload
    def release(self, values: float, sampler: Sampler) -> float: ...
    @overload
    def release(self, values: npt.NDArray[Any], sampler: Sampler) -> Floats: ...
    def release(self, values: float | npt.NDArray[Any], sampler: Sampler) -> float | Floats:
        """Return the values with noise, each on the grid."""
        draw = partial(sampler.discrete_gaussian, self.sigma / self.grid)
        return grids.add_noise(values, self.grid, self.dimension, draw)


def rounded_gaussian(sampler: Sampler, sigma: float, size: int) -> Integers:
    """⌊G + ½⌋ of Gaussian G: exact, from the discrete Gaussian on a grid with 2⁸ steps or more in σ.

    Added to whole numbers it is post-processing of G added to them, at the cost of a Gaussian mechanism whose
    sensitivity is larger by the factor `DISCRETENESS`.
    """
    bits = max(0, 9 - math.frexp(sigma)[1])
    fine = sampler.discrete_gaussian(math.ldexp(sigma, bits), size)
    return fine if bits == 0 else (fine + (1 << (bits - 1))) >> bits


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian:
    """Whole numbers plus discrete Gaussian noise: P(z) ∝ exp(−z² / 2σ²).

    *Guarantees*: the exact cost of `changed` numbers that each move by at most `sensitivity` (in zCDP,
    ρ = changed · sensitivity² / 2σ², as for the continuous Gaussian; its (ε, δ) differs for small σ and is
    computed as it is). Sampled exactly by OpenDP. Anything but whole numbers below 2⁶² is refused before any
    noise is drawn. Public: sensitivity, changed, sigma. Secret: the numbers, the noise.

    Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential privacy", theorems 4 and 7.

    Args:
        sensitivity: By how much one number can move, a whole number.
        sigma: σ of the formula.
        changed: How many of the numbers one unit can move.

    >>> from sfumato.randomness import SecretStream
    >>> mechanism = DiscreteGaussian(sensitivity=1, sigma=3.0)
    >>> type(mechanism.release(1000, SecretStream()))
    <class 'int'>
    """

    sensitivity: int
    sigma: float
    changed: int = 1

    def __post_init__(self) -> None:
        _validate.integer("sensitivity", self.sensitivity, least=1)
        _validate.integer("changed", self.changed, least=1)
        grids.check_noise("sigma", self.sigma, self.sensitivity, grid=1.0)

    @classmethod
    def calibrated(
        cls, *, sensitivity: int, epsilon: float, delta: float, changed: int = 1
    ) -> DiscreteGaussian:
        """Noise that costs at most (ε, δ), and no less than 99% of it."""
        start = cls(sensitivity=sensitivity, sigma=sensitivity, changed=changed)
        sigma = accounting.calibrate(
            lambda sigma: replace(start, sigma=sigma).event(),
            accounting.Budget(epsilon=epsilon, delta=delta),
            guess=accounting.gaussian_noise_multiplier(epsilon, delta) * sensitivity * math.sqrt(changed),
        )
        return replace(start, sigma=sigma)

    def event(self) -> accounting.DpEvent:
        return accounting.repeat(accounting.DiscreteGaussianEvent(self.sigma, self.sensitivity), self.changed)

    @overload
    def release(self, values: int, sampler: Sampler) -> int: ...
    @overload
    def release(self, values: npt.NDArray[Any], sampler: Sampler) -> Integers: ...
    def release(self, values: int | npt.NDArray[Any], sampler: Sampler) -> int | Integers:
        """Return the numbers with noise."""
        whole = grids.check_whole_numbers("values", values)
        noisy = whole + sampler.discrete_gaussian(self.sigma, whole.size).reshape(whole.shape)
        return int(noisy) if noisy.ndim == 0 else noisy
