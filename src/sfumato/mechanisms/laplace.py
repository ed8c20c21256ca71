"""Laplace noise: on reals, and on whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import Sampler


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """Real values plus Laplace noise: density exp(−|z| / scale) / (2·scale) on each.

    Released is round(x) + round(Z) on a power-of-two grid, hence round(round(x) + Z): post-processing of the
    continuous mechanism on rounded inputs.

    *Guarantees*: ε = `sensitivity_on_grid` / scale, which exceeds sensitivity / scale by at most 2⁻²⁰ of it,
    and not at all for one value whose sensitivity is a multiple of the grid, such as a count. `sensitivity` is
    the L1 norm by which a neighbouring data set moves the values; moving one value by all of it is the worst
    case (noise with log-concave density; Dong, Roth & Su 2022, "Gaussian differential privacy", on group
    privacy: values moved one after another are a group). Outputs lie on one grid for all data. The noise
    is exact, from OpenDP's discrete Laplace. NaN, infinite and too large values are refused before any noise is
    drawn. Public: sensitivity, scale, dimension. Secret: the values, the noise.

    Dwork & Roth 2014, "The algorithmic foundations of differential privacy", section 3.3; Mironov 2012.

    Args:
        sensitivity: By how much one unit moves the values, in L1 norm.
        scale: The scale of the noise, in the unit of the values; ε = sensitivity / scale.
        dimension: How many values are released together.

    >>> from sfumato.randomness import SecretStream
    >>> count = Laplace.calibrated(sensitivity=1, epsilon=0.1)
    >>> count.scale
    10.0
    >>> abs(count.release(1000.0, SecretStream()) - 1000) < 500
    True
    """

    sensitivity: float
    scale: float
    dimension: int = 1

    def __post_init__(self) -> None:
        _validate.positive("sensitivity", self.sensitivity)
        _validate.integer("dimension", self.dimension, least=1)
        grids.check_noise("scale", self.scale, self.sensitivity, self.grid)

    @classmethod
    def calibrated(cls, *, sensitivity: float, epsilon: float, dimension: int = 1) -> Laplace:
        """Return the least noise that costs at most ε."""
        _validate.positive("epsilon", epsilon)
        unit = cls(sensitivity=sensitivity, scale=sensitivity, dimension=dimension)
        return cls(
            sensitivity=sensitivity,
            scale=no_less_noise(unit.sensitivity_on_grid, epsilon),
            dimension=dimension,
        )

    @property
    def grid(self) -> float:
        return grids.scalar_grid(self.sensitivity, self.dimension)

    @property
    def sensitivity_on_grid(self) -> float:
        return grids.sensitivity_on_grid(self.sensitivity, self.grid, self.dimension)

    def event(self) -> accounting.DpEvent:
        return accounting.LaplaceEvent(self.scale / self.sensitivity_on_grid)

    @overload
    def release(self, values: float, sampler: Sampler) -> float: ...
    @overload
    def release(self, values: npt.NDArray[Any], sampler: Sampler) -> Floats: ...
    def release(self, values: float | npt.NDArray[Any], sampler: Sampler) -> float | Floats:
        """Return the values with noise, each on the grid."""
        draw = partial(rounded_laplace, sampler, self.scale / self.grid)
        return grids.add_noise(values, self.grid, self.dimension, draw)


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplace:
    """Whole numbers plus discrete Laplace noise: P(z) = tanh(1 / (2·scale)) · exp(−|z| / scale).

    *Guarantees*: ε = sensitivity / scale, where `sensitivity` is the L1 norm by which a neighbouring data set
    moves the numbers; moving one of them by all of it is the worst case (as for `Laplace`). Sampled exactly by
    OpenDP. Anything but whole numbers below 2⁶² is refused before any noise is drawn. Public: sensitivity,
    scale. Secret: the numbers, the noise.

    Ghosh, Roughgarden & Sundararajan 2012, "Universally utility-maximizing privacy mechanisms", section 2;
    Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential privacy", algorithm 2.

    Args:
        sensitivity: By how much one unit moves the numbers, in L1 norm.
        scale: The scale of the noise; ε = sensitivity / scale.

    >>> from sfumato.randomness import SecretStream
    >>> mechanism = DiscreteLaplace.calibrated(sensitivity=1, epsilon=0.5)
    >>> mechanism.scale
    2.0
    >>> type(mechanism.release(1000, SecretStream()))
    <class 'int'>
    """

    sensitivity: int
    scale: float

    def __post_init__(self) -> None:
        _validate.integer("sensitivity", self.sensitivity, least=1)
        grids.check_noise("scale", self.scale, self.sensitivity, grid=1.0)

    @classmethod
    def calibrated(cls, *, sensitivity: int, epsilon: float) -> DiscreteLaplace:
        """Return the least noise that costs at most ε."""
        _validate.positive("epsilon", epsilon)
        return cls(sensitivity=sensitivity, scale=no_less_noise(sensitivity, epsilon))

    def event(self) -> accounting.DpEvent:
        return accounting.DiscreteLaplaceEvent(1.0 / self.scale, self.sensitivity)

    @overload
    def release(self, values: int, sampler: Sampler) -> int: ...
    @overload
    def release(self, values: npt.NDArray[Any], sampler: Sampler) -> Integers: ...
    def release(self, values: int | npt.NDArray[Any], sampler: Sampler) -> int | Integers:
        """Return the numbers with noise."""
        whole = grids.check_whole_numbers("values", values)
        noisy = whole + sampler.discrete_laplace(self.scale, whole.size).reshape(whole.shape)
        return int(noisy) if noisy.ndim == 0 else noisy


def floored_laplace(sampler: Sampler, scale: float, size: int) -> Integers:
    """⌊L⌋ of continuous Laplace L, exactly: discrete Laplace X of the same scale less a fair bit B.

    With a = exp(−1/scale) and k ≥ 0, P(X−B = k) = ½(P(X=k) + P(X=k+1)) = ½(1−a)aᵏ = P(k ≤ L < k+1).
    """
    return sampler.discrete_laplace(scale, size) - sampler.bernoulli(0.5, size)


def rounded_laplace(sampler: Sampler, scale: float, size: int) -> Integers:
    """⌊L + ½⌋ of continuous Laplace L, exactly: ⌊(⌊2L⌋ + 1) / 2⌋."""
    return (floored_laplace(sampler, 2.0 * scale, size) + 1) >> 1


def no_less_noise(sensitivity: float, epsilon: float) -> float:
    """sensitivity / ε, rounded so that sensitivity / scale ≤ ε in doubles as well."""
    scale = sensitivity / epsilon
    return scale if sensitivity / scale <= epsilon else float(np.nextafter(scale, math.inf))
