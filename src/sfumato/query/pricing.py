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

import numpy as np

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.policy import Unit
from sfumato.query.measures import Counted, Integers, Measure, UnitCount
from sfumato.query.noise import WholeGaussian, WholeLaplace, WholeNoise
from sfumato.query.plan import Query
from sfumato.randomness import Sampler

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


def _badness(found: Price) -> float:
    """Of the same queries, by the geometric mean: deviations have the same proportions in both noises."""
    noises = [*found.noises, *([found.selection.noise] if found.selection else [])]
    return math.fsum(math.log(max(item.deviation, _NONE)) for item in noises)


def _price(measures: Sequence[Measure], unit: Unit, spending: Spending) -> Price:
    weights = [1.0] * len(measures) if spending.weights is None else list(spending.weights)
    asked, selection, delta = list(measures), None, spending.selection_delta
    if delta is not None:
        asked, weights = [*asked, UnitCount()], [*weights, sum(weights) / len(weights)]
    gaussian = spending.noise == "gaussian"
    noises = (_gaussians if gaussian else _laplaces)(asked, weights, unit, spending)
    if delta is not None:
        selection = KeySelection(noise=noises.pop(), delta=delta, groups=unit.touched_groups)
    return Price(
        epsilon=spending.epsilon,
        delta=(delta or 0.0) + (spending.noise_delta if gaussian else 0.0),
        measures=tuple(measures),
        noises=tuple(noises),
        selection=selection,
    )


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
    """A planned query that the engine has planned too, ready to be charged.

    A table that has this very engine reads from it, even if the source has changed meanwhile.
    """

    planned: Planned
    compiled: Compiled
    engine: object
