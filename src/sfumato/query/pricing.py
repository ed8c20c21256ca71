"""What a query costs, and the noise it gets: one ε, shared among its measures, Laplace or Gaussian.

Under one unit added or removed, with m = unit.rows and k groups touched, a unit moves

    rows, moments      one number by m · span, or several by as much together (see measures.Moments)
    sum on its own     one number by m · max(|first|, |last|)
    units              k numbers by 1
    cells, each level  one number by m

A measure of weight w gets the share w / Σw of ε, and a tree of cells an equal share of that for each level.
With Gaussian noise all of them are one release of (ε, δ): noise multipliers are so chosen that the standard
deviations stand in the same proportion, and Σ 1/multiplier² is that of the one Gaussian that costs (ε, δ). With
n equal measures the deviation grows with √n, where that of Laplace noise grows with n. Whichever gives the
smaller error is taken, from public facts alone. No constant is added anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.policy import Unit
from sfumato.query.measures import Integers, Measure, UnitCount
from sfumato.query.noise import WholeGaussian, WholeLaplace, WholeNoise
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

    def select(self, units: Integers, sampler: Sampler) -> npt.NDArray[np.bool_]:
        chosen: npt.NDArray[np.bool_] = self.noise.release(units, sampler) >= self.threshold
        return chosen


@dataclass(frozen=True, kw_only=True)
class Price:
    """Every noise of one query, fixed before the data is touched."""

    epsilon: float
    delta: float
    measures: tuple[Measure, ...]
    noises: tuple[WholeNoise, ...]
    selection: KeySelection | None

    def event(self) -> accounting.DpEvent:
        parts = [
            accounting.repeat(noise.event(), measure.levels) if measure.levels > 1 else noise.event()
            for measure, noise in zip(self.measures, self.noises, strict=True)
        ]
        return accounting.compose(*parts, *([self.selection.event()] if self.selection else []))


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What a query may cost, and how: δ for Gaussian noise, δ to show private keys, weights, a wanted noise."""

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


def price(measures: Sequence[Measure], unit: Unit, spending: Spending) -> Price:
    """Share ε among the measures, and the selection of keys where it has a δ, with the noise that errs less."""
    weights = [1.0] * len(measures) if spending.weights is None else list(spending.weights)
    asked = list(measures)
    if spending.selection_delta is not None:
        asked, weights = [*asked, UnitCount()], [*weights, sum(weights) / len(weights)]
    noises = _noises(asked, weights, unit, spending)
    gaussian = isinstance(noises[0], WholeGaussian)
    return Price(
        epsilon=spending.epsilon,
        delta=(spending.selection_delta or 0.0) + (spending.noise_delta if gaussian else 0.0),
        measures=tuple(measures),
        noises=tuple(noises[: len(measures)]),
        selection=None
        if spending.selection_delta is None
        else KeySelection(noise=noises[-1], delta=spending.selection_delta, groups=unit.touched_groups),
    )


def _noises(
    asked: Sequence[Measure], weights: Sequence[float], unit: Unit, spending: Spending
) -> list[WholeNoise]:
    options: dict[str, list[WholeNoise]] = {}
    if spending.noise != "gaussian":
        options["laplace"] = _laplaces(asked, weights, unit, spending.epsilon)
    if spending.noise != "laplace" and spending.noise_delta > 0:
        options["gaussian"] = _gaussians(asked, weights, unit, spending)
    # The same deviations' proportions in both, up to what a unit can move: compared by their geometric mean.
    return min(options.values(), key=_badness)


def _badness(noises: Sequence[WholeNoise]) -> float:
    return math.fsum(math.log(max(item.deviation, _NONE)) for item in noises)


def _laplaces(
    asked: Sequence[Measure], weights: Sequence[float], unit: Unit, epsilon: float
) -> list[WholeNoise]:
    whole = math.fsum(weights)
    return [
        WholeLaplace.calibrated(
            sensitivity=measure.sensitivity(unit), epsilon=epsilon * weight / whole / measure.levels
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
