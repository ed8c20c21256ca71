"""Noise on whole numbers: Laplace, or Gaussian where many numbers move. Each knows what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import DiscreteLaplace
from sfumato.mechanisms.gaussian import DISCRETENESS, rounded_gaussian
from sfumato.mechanisms.laplace import no_less_noise, rounded_laplace
from sfumato.query.intervals import Family
from sfumato.query.measures import Integers
from sfumato.randomness import Sampler

_FINE = 1000  # from this sensitivity on, rounding adds less than a millionth to the variance
_LARGEST_SCALE = 2.0**50


class WholeNoise(Protocol):
    """A noise that is added to whole numbers."""

    @property
    def family(self) -> Family: ...
    @property
    def scale(self) -> float: ...
    @property
    def discrete(self) -> bool: ...
    @property
    def deviation(self) -> float:
        """The standard deviation of one draw."""
        ...

    def event(self) -> accounting.DpEvent:
        """What it costs to release all numbers that one unit moves, once."""
        ...

    def release(self, values: Integers, sampler: Sampler) -> Integers: ...
    def rarely(self, chance: float) -> int:
        """The smallest t ≥ 1 that a draw reaches with no more than this chance."""
        ...

    def imitated(self, chance: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Draws of the same kind that protect nobody: for intervals of what is computed from answers."""
        ...


def _check(sensitivity: int, scale: float) -> None:
    _validate.integer("sensitivity", sensitivity, least=1)
    if not 0 < scale <= _LARGEST_SCALE:
        raise InvalidInput(
            f"expected noise of at most 2**50 grid steps, got {scale:g}; ask with a larger epsilon, "
            "or lower unit.rows in the policy"
        )


@dataclass(frozen=True, kw_only=True)
class WholeLaplace:
    """Whole numbers plus ⌊L + ½⌋ for Laplace L of `scale`.

    *Guarantees*: ε = sensitivity / scale. As the numbers are whole, x + ⌊L + ½⌋ = ⌊x + L + ½⌋ is
    post-processing of the ideal Laplace mechanism, whatever the scale; the draw is exact. A small sensitivity
    takes the discrete Laplace instead, whose variance is less by about ¼ and whose exact price sums over the
    sensitivity.

    Dwork & Roth 2014, section 3.3; Ghosh, Roughgarden & Sundararajan 2012, section 2.

    >>> WholeLaplace.calibrated(sensitivity=120, epsilon=0.5).scale
    240.0
    """

    sensitivity: int
    scale: float

    def __post_init__(self) -> None:
        _check(self.sensitivity, self.scale)

    @classmethod
    def calibrated(cls, *, sensitivity: int, epsilon: float) -> WholeLaplace:
        _validate.positive("epsilon", epsilon)
        return cls(sensitivity=sensitivity, scale=no_less_noise(sensitivity, epsilon))

    @property
    def family(self) -> Family:
        return Family.LAPLACE

    @property
    def discrete(self) -> bool:
        return self.sensitivity < _FINE

    @property
    def deviation(self) -> float:
        ratio = math.exp(-1 / self.scale)
        return (
            math.sqrt(2 * ratio) / -math.expm1(-1 / self.scale) if self.discrete else math.sqrt(2) * self.scale
        )

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
        above = -self.scale * math.log(chance * (1 + math.exp(-1 / self.scale)))
        return max(1, math.ceil(above))

    def imitated(self, chance: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        return chance.laplace(0.0, self.scale, shape)


@dataclass(frozen=True, kw_only=True)
class WholeGaussian:
    """Whole numbers plus ⌊G + ½⌋ for Gaussian G of standard deviation `scale`.

    *Guarantees*: the cost of a Gaussian mechanism of noise multiplier scale / (sensitivity · √moved), less the
    tiny factor for its exact sampler, where a unit moves at worst `moved` numbers by `sensitivity` each. As the
    numbers are whole, x + ⌊G + ½⌋ = ⌊x + G + ½⌋ is post-processing.

    Balle & Wang 2018, theorem 8; Canonne, Kamath & Steinke 2020, theorem 7 (see mechanisms.Gaussian).

    >>> noise = WholeGaussian.of_multiplier(4.0, sensitivity=3, moved=4)
    >>> round(noise.scale, 3)
    24.0
    """

    sensitivity: int
    moved: int
    scale: float

    def __post_init__(self) -> None:
        _validate.integer("moved", self.moved, least=1)
        _check(self.sensitivity, self.scale)

    @classmethod
    def of_multiplier(cls, multiplier: float, *, sensitivity: int, moved: int) -> WholeGaussian:
        distance = sensitivity * math.sqrt(moved) * DISCRETENESS
        return cls(sensitivity=sensitivity, moved=moved, scale=multiplier * distance * (1 + 2.0**-50))

    @property
    def family(self) -> Family:
        return Family.GAUSSIAN

    @property
    def discrete(self) -> bool:
        return False

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

    def imitated(self, chance: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        return chance.normal(0.0, self.scale, shape)
