"""Vectors and images within declared bounds, each noised by its owner, on one grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.laplace import no_less_noise
from sfumato.randomness import Sampler

Reports = npt.NDArray[np.float32]  # (people, dimension)
LENGTH_SLACK = 1e-6  # relative: float32 vectors of declared length may be that much longer; part of η
_BLOCK = 1 << 20  # values noised at a time


@dataclass(frozen=True, kw_only=True)
class GaussianVector:
    """A vector of L2 norm at most C plus Gaussian noise σ = noise_multiplier · 2C(1+η), on a grid.

    Replacing one vector of norm ≤ C by another moves it by at most 2C: that is the sensitivity, also on the
    unit sphere. Reported is (round(x/grid) + ⌊σZ/grid + ½⌋)·grid, post-processing of the ideal mechanism.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier` for a person's vector replaced by any
    other; `calibrated` uses the exact curve, valid for every ε. η covers the rounding to the grid and a
    relative excess of 1e-6 in length. Longer vectors, NaN and infinities are refused before any noise is
    drawn. The float64 normal sampler is taken as ideal. Public: all fields. Secret: the vectors, the noise.

    Balle & Wang 2018, theorem 8; Mironov 2012 for why on a grid.

    Args:
        dimension: d, the number of values.
        noise_multiplier: σ divided by the sensitivity.
        norm_bound: C, the largest length of a vector.

    >>> from sfumato.randomness import SecretStream
    >>> noise = GaussianVector.calibrated(dimension=4, epsilon=8.0, delta=1e-5)
    >>> round(noise.sigma, 2), noise.release(np.eye(4), SecretStream()).shape  # 2 · 0.6002 · (1+η)
    (1.2, (4, 4))
    """

    dimension: int
    noise_multiplier: float
    norm_bound: float = 1.0

    def __post_init__(self) -> None:
        _validate.integer("dimension", self.dimension, least=1)
        _validate.positive("norm_bound", self.norm_bound)
        _validate.positive("noise_multiplier", self.noise_multiplier)
        grids.check_noise("sigma", self.sigma, self.norm_bound, self.grid)

    @classmethod
    def calibrated(
        cls, *, dimension: int, epsilon: float, delta: float, norm_bound: float = 1.0
    ) -> GaussianVector:
        """The least noise that costs at most (ε, δ)."""
        multiplier = accounting.gaussian_noise_multiplier(epsilon, delta)
        return cls(dimension=dimension, noise_multiplier=multiplier, norm_bound=norm_bound)

    @property
    def grid(self) -> float:
        return grids.vector_grid(self.norm_bound, self.dimension)

    @property
    def eta(self) -> float:
        return LENGTH_SLACK + self.grid * math.sqrt(self.dimension) / (2.0 * self.norm_bound)

    @property
    def sigma(self) -> float:
        return self.noise_multiplier * 2.0 * self.norm_bound * (1.0 + self.eta)

    def event(self) -> accounting.DpEvent:
        return accounting.GaussianEvent(self.noise_multiplier)

    def release(self, vectors: npt.NDArray[Any], sampler: Sampler) -> Reports:
        """One report for each row; each person's vector may be released once."""
        rows = check_rows(vectors, self.dimension)
        longest = self.norm_bound * (1.0 + LENGTH_SLACK)
        if not all(_within_norm(rows[part], longest) for part in _parts(rows)):
            raise InvalidInput(
                f"expected vectors of length at most norm_bound={self.norm_bound!r}, got some that are longer"
                " or not finite; scale each by itself, before it is reported"
            )
        noised = np.empty(rows.shape, dtype=np.float32)
        for part in _parts(rows):
            steps = rows[part] * np.float64(1.0 / self.grid)  # exact: the grid is a power of two
            np.rint(steps, out=steps)
            steps += sampler.rounded_normal(self.sigma / self.grid, steps.size).reshape(steps.shape)
            np.multiply(steps, self.grid, out=noised[part], casting="same_kind")
        return noised


@dataclass(frozen=True, kw_only=True)
class LaplaceVector:
    """d values, each within [lower, upper], as whole steps of a grid plus discrete Laplace noise of scale dS/ε.

    S = to_grid(upper) − to_grid(lower) steps, the most that a value can move: rounding to the grid is monotone,
    so that values within the bounds stay within the rounded bounds.

    *Guarantees*: pure ε for a person's values replaced by any others: all d may change at once, so that the
    L1 sensitivity is d·S whole steps, rounding included. P(z) ∝ exp(−|z|ε/(dS)) for every whole z, drawn
    exactly by OpenDP: whatever the values, the same reports can come out, and none is more than e^ε times as
    likely. Values outside the bounds, NaN and infinities are refused before any noise is drawn. Public: all
    fields. Secret: the values, the noise.

    Ghosh, Roughgarden & Sundararajan 2012, section 2; Mironov 2012 for why not in doubles.

    Args:
        dimension: d, the number of values.
        epsilon: The ε of one report, for all values together.
        lower: The least value.
        upper: The largest value.

    >>> from sfumato.randomness import SecretStream
    >>> LaplaceVector(dimension=2, epsilon=4.0).release(np.zeros((3, 2)), SecretStream()).shape
    (3, 2)
    """

    dimension: int
    epsilon: float
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        _validate.integer("dimension", self.dimension, least=1)
        _validate.positive("epsilon", self.epsilon)
        if not _validate.real("lower", self.lower) < _validate.real("upper", self.upper):
            raise InvalidInput(f"expected lower < upper, got lower={self.lower!r}, upper={self.upper!r}")
        grids.check_noise("scale", self.scale, self.upper - self.lower, self.grid)

    @property
    def grid(self) -> float:
        return grids.power_of_two_below((self.upper - self.lower) * 2.0**-20)

    @property
    def span(self) -> int:
        """The most grid steps between two values within the bounds."""
        first, last = grids.to_grid([self.lower, self.upper], self.grid)
        return int(last - first)

    @property
    def scale_in_steps(self) -> float:
        return no_less_noise(self.dimension * self.span, self.epsilon)

    @property
    def scale(self) -> float:
        return self.scale_in_steps * self.grid

    def event(self) -> accounting.DpEvent:
        return accounting.pure(self.epsilon)

    def release(self, values: npt.NDArray[Any], sampler: Sampler) -> npt.NDArray[np.float64]:
        """One report for each row; each person's values may be released once."""
        rows = check_rows(values, self.dimension)
        if rows.size and not (self.lower <= rows.min() and rows.max() <= self.upper):
            raise InvalidInput(
                f"expected values from {self.lower!r} to {self.upper!r}, got some outside or not finite;"
                " clip each to the declared bounds, before it is reported"
            )
        noised = np.empty(rows.shape)
        for part in _parts(rows):
            steps = grids.to_grid(rows[part], self.grid)
            noise = sampler.discrete_laplace(self.scale_in_steps, steps.size)
            noised[part] = grids.from_grid(steps + noise.reshape(steps.shape), self.grid)
        return noised


def check_rows(vectors: npt.NDArray[Any], dimension: int) -> npt.NDArray[Any]:
    rows = np.asarray(vectors)
    if rows.ndim != 2 or rows.shape[1] != dimension or rows.dtype.kind not in "fiu":
        raise InvalidInput(
            f"expected numbers of shape (people, {dimension}), got {rows.dtype} of shape {rows.shape};"
            " the dimension is public and part of the randomiser"
        )
    return rows


def _within_norm(rows: npt.NDArray[Any], longest: float) -> bool:
    exact = rows.astype(np.float64, copy=False)
    return bool(np.all(np.einsum("ij,ij->i", exact, exact) <= longest**2))  # NaN compares as false


def _parts(rows: npt.NDArray[Any]) -> list[slice]:
    height = max(1, _BLOCK // max(rows.shape[1], 1))
    return [slice(start, start + height) for start in range(0, len(rows), height)]
