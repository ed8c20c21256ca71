"""What is measured of the private features before a head is trained on them: their mean, or second moments.

Both are one Gaussian release. What they are used for (a shift, another basis) is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _validate
from sfumato.accounting import DpEvent
from sfumato.mechanisms.grid import to_grid
from sfumato.mechanisms.vector import GridGaussian
from sfumato.randomness import Sampler

Floats = npt.NDArray[np.float64]

MEAN, MOMENT = "mean", "moment"
KINDS = (MEAN, MOMENT)
_STEP = 2.0**-17  # rows are rounded to it; sums of products of so many rows are then exact in doubles:
_ROWS = 1 << 16
_SLACK = 1e-3  # by which the squared norm of a rounded unit row may exceed 1


@dataclass(frozen=True, kw_only=True)
class StatisticPlan:
    """The sum of the private rows ("mean") or of their products with themselves ("moment"), with noise.

    A row u of norm 1 is rounded to whole steps of 2⁻¹⁷. It adds u, or the products uᵢuⱼ for i ≤ j, those of
    i < j times √2: the norm of that vector is ‖u‖² ≤ 1 + 10⁻³. Sums of rounded rows are whole numbers that
    doubles hold exactly, so that no order of additions moves them.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier` under add/remove of one row. A row that
    is no number, or too long, adds nothing. Public: all fields. Secret: the rows, the sums, the noise.

    Args:
        kind: "mean" or "moment".
        width: How many values a row has.
        noise_multiplier: The noise's deviation over the bound of one row's share.

    >>> StatisticPlan(kind="moment", width=10, noise_multiplier=2.0).mechanism.dimension
    55
    """

    kind: str
    width: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.one_of("kind", self.kind, KINDS)
        _validate.integer("width", self.width, least=1)
        _validate.positive("noise_multiplier", self.noise_multiplier)

    @property
    def mechanism(self) -> GridGaussian:
        products = self.width * (self.width + 1) // 2
        return GridGaussian(
            clip_norm=1.0,
            dimension=self.width if self.kind == MEAN else products,
            noise_multiplier=self.noise_multiplier,
            float_error=_SLACK,
        )

    def event(self) -> DpEvent:
        return self.mechanism.event()

    def measure(self, rows: Tensor, *, public_size: int, sampler: Sampler) -> Tensor:
        """The noisy mean (width,), or the matrix (width, width) into a basis where all directions are as wide.

        Args:
            rows: Private rows (rows, width) of norm 1.
            public_size: The declared number of rows, by which sums are divided.
            sampler: The secret stream.

        Returns:
            What `FeatureClassifier.adapt` takes.
        """
        mechanism = self.mechanism
        sums = to_grid(self._sums(rows), mechanism.grid)
        noisy = mechanism.release(sums, sampler, divisor=public_size).astype(np.float64)
        if self.kind == MEAN:
            return torch.from_numpy(noisy).float()
        deviation = mechanism.sigma / public_size / math.sqrt(2)  # of a product of two different values
        return torch.from_numpy(_evened(_symmetric(noisy, self.width), deviation)).float()

    def _sums(self, rows: Tensor) -> Floats:
        """The exact sum of what the rows add."""
        upper = np.triu_indices(self.width)
        weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
        total = np.zeros(self.width if self.kind == MEAN else (self.width, self.width))
        for part in torch.split(rows, _ROWS):
            steps = _rounded(part)
            total += steps.sum(0) * _STEP if self.kind == MEAN else (steps.T @ steps) * _STEP**2
        return total if self.kind == MEAN else total[upper] * weights


def _rounded(rows: Tensor) -> Floats:
    """Whole steps; zeros in place of what is no number or longer than 1."""
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
    """V(λ/λ₁)^−½, with λ not below what noise alone would reach, 2√d of its deviations (Wigner)."""
    values, vectors = np.linalg.eigh(moments)
    values = np.maximum(values, 2.0 * math.sqrt(len(moments)) * deviation)
    scaled: Floats = vectors * (values / values.max()) ** -0.5
    return scaled
