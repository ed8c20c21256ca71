"""What a query costs, and the noise it gets: whole numbers, scaled to the tight sensitivity.

Under one unit added or removed, with m = unit.rows and k groups touched:

    rows, moments      m · span      for all of a measure's numbers together (see plan.Moments)
    sum on its own     m · max(|first|, |last|)
    units              k
    cells, each level  m

Each measure gets an equal share of ε, and a tree of cells an equal share of that for each level. No constant is
added anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import DiscreteLaplace
from sfumato.mechanisms.laplace import no_less_noise, rounded_laplace
from sfumato.policy import Unit
from sfumato.query.measures import Integers, Measure
from sfumato.randomness import Sampler

_FINE = 1000  # from this sensitivity on, rounding adds less than a millionth to the variance
_LARGEST_SCALE = 2.0**50


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
        _validate.integer("sensitivity", self.sensitivity, least=1)
        if not 0 < self.scale <= _LARGEST_SCALE:
            raise InvalidInput(
                f"expected noise of at most 2**50 grid steps, got {self.scale:g}; ask with a larger epsilon, "
                "or lower unit.rows in the policy"
            )

    @classmethod
    def calibrated(cls, *, sensitivity: int, epsilon: float) -> WholeLaplace:
        _validate.positive("epsilon", epsilon)
        return cls(sensitivity=sensitivity, scale=no_less_noise(sensitivity, epsilon))

    @property
    def discrete(self) -> bool:
        return self.sensitivity < _FINE

    def event(self) -> accounting.DpEvent:
        if self.discrete:
            return DiscreteLaplace(sensitivity=self.sensitivity, scale=self.scale).event()
        return accounting.LaplaceEvent(self.scale / self.sensitivity)

    def release(self, values: Integers, sampler: Sampler) -> Integers:
        if self.discrete:
            return DiscreteLaplace(sensitivity=self.sensitivity, scale=self.scale).release(values, sampler)
        return values + rounded_laplace(sampler, self.scale, values.size).reshape(values.shape)


@dataclass(frozen=True, kw_only=True)
class KeySelection:
    """Which private keys may be shown: those whose noisy number of units reaches a threshold.

    A key that only one unit has is shown with probability at most 1 − (1 − δ)^{1/k}, so that a unit with k such
    keys is given away with probability at most δ; all else is ε-DP by the noise on the counts.

    Korolova, Kenthapadi, Mishra & Ntoulas 2009, "Releasing search queries and clicks privately", section 4;
    Wilson et al. 2020, "Differentially private SQL with bounded user contribution", section 3.5.
    """

    noise: WholeLaplace
    delta: float
    groups: int

    @property
    def threshold(self) -> int:
        """The smallest T with P(1 + X ≥ T) ≤ p; for the discrete Laplace P(X ≥ j) = aʲ/(1 + a), j ≥ 1."""
        chance = -math.expm1(math.log1p(-self.delta) / self.groups)
        above = -self.noise.scale * math.log(chance * (1 + math.exp(-1 / self.noise.scale)))  # ln a = −1/scale
        return 1 + max(1, math.ceil(above))

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
    noises: tuple[WholeLaplace, ...]
    selection: KeySelection | None

    def event(self) -> accounting.DpEvent:
        parts = [
            accounting.repeat(noise.event(), measure.levels) if measure.levels > 1 else noise.event()
            for measure, noise in zip(self.measures, self.noises, strict=True)
        ]
        return accounting.compose(*parts, *([self.selection.event()] if self.selection else []))


def price(
    measures: Sequence[Measure], unit: Unit, *, epsilon: float, selection_delta: float | None = None
) -> Price:
    """Share ε equally among the measures, and the selection of keys where `selection_delta` is given."""
    epsilon = _validate.positive("epsilon", epsilon)
    share = epsilon / (len(measures) + (selection_delta is not None))
    selection = None
    if selection_delta is not None:
        noise = WholeLaplace.calibrated(sensitivity=unit.touched_groups, epsilon=share)
        selection = KeySelection(noise=noise, delta=selection_delta, groups=unit.touched_groups)
    return Price(
        epsilon=epsilon,
        delta=selection_delta or 0.0,
        measures=tuple(measures),
        noises=tuple(
            WholeLaplace.calibrated(sensitivity=measure.sensitivity(unit), epsilon=share / measure.levels)
            for measure in measures
        ),
        selection=selection,
    )
