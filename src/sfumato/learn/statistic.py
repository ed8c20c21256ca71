"""A statistic of private features, released before a head is trained on them: mean, second moments, or both.

Each is one Gaussian release. Its use (a shift, another basis, products) is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from sfumato import _validate
from sfumato.accounting import DpEvent
from sfumato.errors import InvalidInput
from sfumato.mechanisms.grid import to_grid
from sfumato.mechanisms.vector import GridGaussian
from sfumato.models.rows_apart import rows_apart
from sfumato.randomness import Sampler

Floats = npt.NDArray[np.float64]

MEAN, MOMENT, LEADING = "mean", "moment", "leading"
KINDS = (MEAN, MOMENT, LEADING)
_STEP = 2.0**-17  # rows are rounded to it; sums of products of so many rows are then exact in doubles:
_ROWS = 1 << 16
_SLACK = 1e-3  # by which the squared norm of a rounded unit row may exceed 1
_MEAN_PART = 1 / 11  # of 1/σ² goes to the mean, where the second moments of some values are measured with it


@dataclass(frozen=True, kw_only=True)
class StatisticPlan:
    """The sum of the private rows ("mean"), of their products with themselves ("moment"), or both, with noise.

    A row u of norm 1 is rounded to whole steps of 2⁻¹⁷. It adds u, or the products uᵢuⱼ for i ≤ j, those of
    i < j times √2: the norm of that vector is ‖u‖² ≤ 1 + 10⁻³. Sums of rounded rows are whole numbers that
    doubles hold exactly, so that no order of additions moves them. "leading" measures both at once: u times
    √(1/11), and √(10/11) times the products of u's values at `places`, brought to norm 1. The norm of the two
    together is at most 1 + 10⁻³ again.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier` under add/remove of one row. A row that
    is no number, or too long, adds nothing. Public: all fields. Secret: the rows, the sums, the noise.

    >>> StatisticPlan(kind="moment", width=10, noise_multiplier=2.0).mechanism.dimension
    55
    """

    kind: str
    width: int
    noise_multiplier: float
    places: tuple[tuple[int, int], ...] = ()
    directions: int = 0

    def __post_init__(self) -> None:
        _validate.one_of("kind", self.kind, KINDS)
        _validate.integer("width", self.width, least=1)
        places = tuple((start, end) for start, end in self.places)  # a plan that was written has lists
        object.__setattr__(self, "places", places)
        ends = [place for block in self.places for place in block]
        if ends != sorted(ends) or not all(0 <= place <= self.width for place in ends):
            raise InvalidInput(f"expected places in order within {self.width} values, got places={self.places}")
        chosen = sum(end - start for start, end in self.places)
        if (self.kind == LEADING) != (self.directions > 0) or not 0 <= self.directions <= chosen:
            raise InvalidInput(
                f"expected directions for {LEADING!r} alone, and no more than there are values at places; got "
                f"kind={self.kind!r}, directions={self.directions}, {chosen} values"
            )
        _validate.positive("noise_multiplier", self.noise_multiplier)

    @property
    def _chosen(self) -> int:
        """How many values have their products measured."""
        return self.width if self.kind == MOMENT else sum(end - start for start, end in self.places)

    @property
    def mechanism(self) -> GridGaussian:
        products = self._chosen * (self._chosen + 1) // 2
        return GridGaussian(
            clip_norm=1.0,
            dimension=products if self.kind == MOMENT else self.width + products,
            noise_multiplier=self.noise_multiplier,
            float_error=_SLACK,
        )

    def event(self) -> DpEvent:
        return self.mechanism.event()

    def measure(self, rows: Tensor, *, public_size: int, sampler: Sampler) -> Tensor:
        """Return the noisy statistic of the rows.

        "mean": the noisy mean (width,). "moment": the matrix (width, width) into a basis where all directions
        are as wide. "leading": the mean, and below it the directions, (1 + directions, width).
        """
        mechanism = self.mechanism
        sums = to_grid(self._sums(rows), mechanism.grid)
        noisy = mechanism.release(sums, sampler, divisor=public_size).astype(np.float64)
        if self.kind == MEAN:
            return torch.from_numpy(noisy).float()
        deviation = mechanism.sigma / public_size / math.sqrt(2)  # of a product of two different values
        if self.kind == LEADING:
            return torch.from_numpy(self._mean_and_leading(noisy, deviation)).float()
        return torch.from_numpy(_evened(_symmetric(noisy, self.width), deviation)).float()

    def _sums(self, rows: Tensor) -> Floats:
        """Return the sum over rows; before it is weighed it is exact, so that no order of rows moves it."""
        mean, moments = np.zeros(self.width), np.zeros((self._chosen, self._chosen))
        for part in torch.split(rows, _ROWS):
            steps = _rounded(part)
            mean += steps.sum(0) * _STEP
            if self.kind != MEAN:
                some = steps if self.kind == MOMENT else self._at_places(part, counted=(steps != 0).any(axis=1))
                moments += (some.T @ some) * _STEP**2
        if self.kind == MEAN:
            return mean
        products = _flat(moments)
        if self.kind == MOMENT:
            return products
        return np.concatenate([math.sqrt(_MEAN_PART) * mean, math.sqrt(1 - _MEAN_PART) * products])

    def _at_places(self, rows: Tensor, *, counted: npt.NDArray[np.bool_]) -> Floats:
        """Whole steps of the values at `places`, brought to norm 1; zeros in rows that do not count."""

        def unit(part: Tensor) -> Tensor:
            return functional.normalize(torch.cat([part[:, a:b] for a, b in self.places], dim=1), dim=1)

        return np.where(counted[:, None], _rounded(rows_apart(unit, rows)), 0.0)

    def _mean_and_leading(self, noisy: Floats, deviation: float) -> Floats:
        """The mean, and the main directions times (λ/λ₁)^−¼, with λ not below the reach of noise alone."""
        mean, moments = noisy[: self.width], noisy[self.width :]
        part = math.sqrt(1 - _MEAN_PART)
        values, vectors = np.linalg.eigh(_symmetric(moments / part, self._chosen))
        values = np.maximum(values, _reach(self._chosen, deviation / part))[::-1][: self.directions]
        found = np.zeros((1 + self.directions, self.width))
        found[0] = mean / math.sqrt(_MEAN_PART)
        columns = np.concatenate([np.arange(start, end) for start, end in self.places])
        found[1:, columns] = (vectors[:, ::-1][:, : self.directions] * (values / values[0]) ** -0.25).T
        return found


def _flat(moments: Floats) -> Floats:
    """The products of i ≤ j in a row, those of i < j times √2; `_symmetric` undoes it."""
    upper = np.triu_indices(len(moments))
    weighed: Floats = moments[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return weighed


def _reach(width: int, deviation: float) -> float:
    """The largest variance that noise alone would show: 2√d of its deviations (Wigner)."""
    return 2.0 * math.sqrt(width) * deviation


def _rounded(rows: Tensor) -> Floats:
    """Return whole steps; zeros for rows that are no numbers or longer than 1."""
    steps = np.rint(rows.double().numpy() / _STEP)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = np.square(steps).sum(1) * _STEP**2 <= 1.0 + _SLACK  # false where something is no number
    return np.where(kept[:, None], steps, 0.0)


def _symmetric(values: Floats, width: int) -> Floats:
    matrix = np.zeros((width, width))
    upper = np.triu_indices(width)
    matrix[upper] = np.where(upper[0] == upper[1], values, values / math.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def _evened(moments: Floats, deviation: float) -> Floats:
    """V(λ/λ₁)^−½, with λ not below the reach of noise alone."""
    values, vectors = np.linalg.eigh(moments)
    values = np.maximum(values, _reach(len(moments), deviation))
    scaled: Floats = vectors * (values / values.max()) ** -0.5
    return scaled
