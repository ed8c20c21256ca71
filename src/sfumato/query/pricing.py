"""The price of a query, and the noise it gets: one ε, shared among its measures, Laplace or Gaussian.

Under one unit added or removed, with m = unit.rows and k groups touched, a unit moves

    rows, moments      one number by m · span, or several by as much together (see measures.Moments)
    sum on its own     one number by m · max(|first|, |last|)
    units              k numbers by 1
    cells, each level  one number by m

A measure of weight w gets the share w / Σw of ε, and a tree of cells an equal share of that for each level.
With Gaussian noise all of them are one release of (ε, δ): noise multipliers are so chosen that the standard
deviations stand in the same proportion, and Σ 1/multiplier² is that of the one Gaussian that costs (ε, δ). With
n equal measures the deviation grows with √n, where that of Laplace noise grows with n. No constant is added
anywhere.

Unless the query says which, Gaussian noise is taken where it errs less and leaves the ledger no worse off. Pure
ε add up, and a single Gaussian ends that: after one of ε = 0.1, the next answer of 0.1 would show 0.6 spent. So
a ledger of pure ε stays one until Gaussian noise is asked for. The choice depends on the query, the policy and
the ledger's entries, never on a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import DiscreteLaplace
from sfumato.mechanisms.gaussian import DISCRETENESS, rounded_gaussian
from sfumato.mechanisms.laplace import no_less_noise, rounded_laplace
from sfumato.policy import Unit
from sfumato.query.intervals import Family
from sfumato.query.measures import Counted, Integers, Measure, UnitCount
from sfumato.query.plan import Query
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
        """The cost of releasing all numbers that one unit moves, once."""
        ...

    def release(self, values: Integers, sampler: Sampler) -> Integers: ...
    def rarely(self, chance: float) -> int:
        """The smallest t ≥ 1 that a draw reaches with no more than this chance."""
        ...

    def imitated(self, chance: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Draws of the same kind that protect no one: for intervals of columns computed from answers."""
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
    post-processing of the ideal Laplace mechanism, for every scale; the draw is exact. A small sensitivity
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


NOISES = ("laplace", "gaussian")
_NONE = 1e-300  # at a huge ε the deviation of a whole number's noise is 0 in doubles


@dataclass(frozen=True, kw_only=True)
class KeySelection:
    """Which private keys may be shown: those whose noisy number of units reaches a threshold.

    A key that only one unit has is shown with probability at most 1 − (1 − δ)^{1/k}, so that a unit with k such
    keys is given away with probability at most δ; all else is ε-DP by the noise on the counts.

    Korolova, Kenthapadi, Mishra & Ntoulas 2009, "Releasing search queries and clicks privately", section 4;
    Wilson et al. 2020, "Differentially private SQL with bounded user contribution", section 3.5.
    """

    noise: WholeNoise
    delta: float
    groups: int

    @property
    def threshold(self) -> int:
        """The smallest T with P(1 + X ≥ T) ≤ p."""
        return 1 + self.noise.rarely(-math.expm1(math.log1p(-self.delta) / self.groups))

    def event(self) -> accounting.DpEvent:
        return accounting.compose(self.noise.event(), accounting.ApproximateEvent(0.0, self.delta))

    def select(self, units: Integers, sampler: Sampler) -> Integers:
        """The noisy number of units of each key that may be shown, and 0 for all others."""
        noisy = self.noise.release(units, sampler)
        return np.where(noisy >= self.threshold, noisy, 0)


@dataclass(frozen=True, kw_only=True)
class Price:
    """Every noise of one query, fixed before the data is touched."""

    epsilon: float
    delta: float
    measures: tuple[Measure, ...]
    noises: tuple[WholeNoise, ...]
    selection: KeySelection | None

    @property
    def numbers(self) -> int:
        """How many noisy numbers each group has."""
        return sum(measure.numbers for measure in self.measures) + (self.selection is not None)

    def event(self) -> accounting.DpEvent:
        parts = [
            accounting.repeat(noise.event(), measure.levels) if measure.levels > 1 else noise.event()
            for measure, noise in zip(self.measures, self.noises, strict=True)
        ]
        return accounting.compose(*parts, *([self.selection.event()] if self.selection else []))


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The cost allowed to a query: ε, δ for Gaussian noise, δ to show private keys, weights, a wanted noise."""

    epsilon: float
    noise_delta: float = 0.0
    selection_delta: float | None = None
    weights: tuple[float, ...] | None = None
    noise: str | None = None

    def __post_init__(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        if self.noise is not None:
            _validate.one_of("noise", self.noise, NOISES)
        if self.noise == "gaussian" and not self.noise_delta > 0:
            raise InvalidInput(
                "expected a delta > 0 in the policy's [budget] for noise=gaussian, got 0; take noise=laplace"
            )


Cost = Callable[[accounting.DpEvent], float]
"""ε that a ledger counts once an event is charged."""


def price(measures: Sequence[Measure], unit: Unit, spending: Spending, *, cost: Cost | None = None) -> Price:
    """Share ε among the measures, and the selection of keys where it has a δ.

    Without a wanted noise, Gaussian is taken where it errs less and, if `cost` is given, costs no more.
    """
    if spending.noise is not None or not spending.noise_delta > 0:
        return _price(measures, unit, replace(spending, noise=spending.noise or "laplace"))
    laplace, gaussian = (_price(measures, unit, replace(spending, noise=name)) for name in NOISES)
    if _badness(gaussian) >= _badness(laplace):
        return laplace
    return gaussian if cost is None or cost(gaussian.event()) <= cost(laplace.event()) else laplace


def _price(measures: Sequence[Measure], unit: Unit, spending: Spending) -> Price:
    weights = [1.0] * len(measures) if spending.weights is None else list(spending.weights)
    asked = list(measures)
    if spending.selection_delta is not None:
        asked, weights = [*asked, UnitCount()], [*weights, sum(weights) / len(weights)]
    gaussian = spending.noise == "gaussian"
    noises = (_gaussians if gaussian else _laplaces)(asked, weights, unit, spending)
    return Price(
        epsilon=spending.epsilon,
        delta=(spending.selection_delta or 0.0) + (spending.noise_delta if gaussian else 0.0),
        measures=tuple(measures),
        noises=tuple(noises[: len(measures)]),
        selection=None
        if spending.selection_delta is None
        else KeySelection(noise=noises[-1], delta=spending.selection_delta, groups=unit.touched_groups),
    )


def _badness(found: Price) -> float:
    """Of the same queries, by the geometric mean: deviations have the same proportions in both noises."""
    noises = [*found.noises, *([found.selection.noise] if found.selection else [])]
    return math.fsum(math.log(max(item.deviation, _NONE)) for item in noises)


def _laplaces(
    asked: Sequence[Measure], weights: Sequence[float], unit: Unit, spending: Spending
) -> list[WholeNoise]:
    whole = math.fsum(weights)
    return [
        WholeLaplace.calibrated(
            sensitivity=measure.sensitivity(unit), epsilon=spending.epsilon * weight / whole / measure.levels
        )
        for measure, weight in zip(asked, weights, strict=True)
    ]


def _gaussians(
    asked: Sequence[Measure], weights: Sequence[float], unit: Unit, spending: Spending
) -> list[WholeNoise]:
    one = accounting.gaussian_noise_multiplier(spending.epsilon, spending.noise_delta)
    whole = math.sqrt(math.fsum(weight**2 for weight in weights))
    return [
        WholeGaussian.of_multiplier(
            one * whole / weight * math.sqrt(measure.levels),
            sensitivity=measure.sensitivity(unit) // measure.moved(unit),
            moved=measure.moved(unit),
        )
        for measure, weight in zip(asked, weights, strict=True)
    ]


@dataclass(frozen=True)
class Compiled:
    """The SQL that an engine has planned: sums for each group, and counts of cells for each tree.

    It names the tables as every connection to the policy's source does.
    """

    sums: str
    cells: list[tuple[Counted, str]]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A query with its noise, from the query, the policy and the ledger alone: no row was read for it.

    Attributes:
        query: The query.
        price: Its noise, and through it the event that is charged.
        purpose: Its words in the ledger.
        values: How many noisy numbers it takes, those that are simulated for intervals too.
    """

    query: Query
    price: Price
    purpose: str
    values: int


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A planned query that the engine has planned too, ready to be charged."""

    planned: Planned
    compiled: Compiled
    engine: object
    """The engine that planned it; a table that has this one reads from it, whatever became of the source."""
