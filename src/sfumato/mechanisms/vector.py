"""Gaussian noise for long vectors, such as sums of clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler

_BLOCK = 1 << 20  # values at a time: enough to occupy the threads of a stream, few enough for the cache


@dataclass(frozen=True, kw_only=True)
class GridGaussian:
    """Sums of vectors of norm at most C, held in int64 on a grid, plus rounded Gaussian noise.

    Released is S + ⌊σZ/grid + ½⌋ in grid steps, with Z standard normal and σ = noise_multiplier · C(1+η). As S
    is whole, this is ⌊S + σZ/grid + ½⌋: post-processing of the ideal Gaussian mechanism.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier`, if a neighbouring data set changes
    what one call of `add_to_grid` is handed, by a vector of norm at most C(1 + float_error).
    η = float_error + grid·√d/C covers this and the rounding of both to the grid (grid·√d ≤ 2⁻¹⁰ C). Outputs
    lie on one grid whatever the data. The float64 normal sampler is taken as ideal. NaN and infinities are
    refused by `add_to_grid`, other types, other sizes and sums beyond 2⁶² grid steps here, before any noise is
    drawn. Public: all fields. Secret: the sums, the noise.

    Dwork & Roth 2014, appendix A; Balle & Wang 2018, theorem 8; Mironov 2012 for why on a grid.

    >>> from sfumato.mechanisms.grid import to_grid
    >>> from sfumato.randomness import SecretStream
    >>> mechanism = GridGaussian(clip_norm=1.0, dimension=4, noise_multiplier=1.1)
    >>> mechanism.grid == 2.0**-11, mechanism.eta == 2.0**-10
    (True, True)
    >>> sums = to_grid([0.5, -0.5, 0.25, 0.0], mechanism.grid)
    >>> mechanism.release(sums, SecretStream()).shape
    (4,)
    """

    clip_norm: float
    dimension: int
    noise_multiplier: float
    float_error: float = 0.0

    def __post_init__(self) -> None:
        _validate.positive("clip_norm", self.clip_norm)
        _validate.integer("dimension", self.dimension, least=1)
        _validate.non_negative("float_error", self.float_error)
        _validate.positive("noise_multiplier", self.noise_multiplier)
        grids.check_noise("sigma", self.sigma, self.clip_norm, self.grid)

    @property
    def grid(self) -> float:
        return grids.vector_grid(self.clip_norm, self.dimension)

    @property
    def eta(self) -> float:
        """By how much of C the declared sensitivity exceeds it."""
        return self.float_error + self.grid * math.sqrt(self.dimension) / self.clip_norm

    @property
    def sensitivity(self) -> float:
        """The declared L2 sensitivity, C(1+η)."""
        return self.clip_norm * (1.0 + self.eta)

    @property
    def sigma(self) -> float:
        return self.noise_multiplier * self.sensitivity

    def event(self) -> accounting.DpEvent:
        return accounting.GaussianEvent(self.noise_multiplier)

    def release(self, sums: Integers, sampler: Sampler) -> npt.NDArray[np.float32]:
        """The sums with noise, as float32: each a grid step times a whole number, rounded to 24 bits."""
        self._check(sums)
        released = np.empty(sums.shape, dtype=np.float32)
        flat_sums, flat_released = sums.reshape(-1), released.reshape(-1)
        for part in self._blocks():
            values, noisy = flat_released[part], self._noise(part, sampler)
            noisy += flat_sums[part]
            values[:] = noisy
            values *= np.float32(self.grid)  # exact, a power of two
        return released

    def add_noise_in_place(self, sums: Integers, sampler: Sampler) -> None:
        """sums += noise, in grid steps."""
        self._check(sums)
        flat_sums = sums.reshape(-1)
        for part in self._blocks():
            flat_sums[part] += self._noise(part, sampler)

    def _blocks(self) -> Iterator[slice]:
        starts = range(0, self.dimension, _BLOCK)
        return (slice(start, min(start + _BLOCK, self.dimension)) for start in starts)

    def _noise(self, part: slice, sampler: Sampler) -> Integers:
        return sampler.rounded_normal(self.sigma / self.grid, part.stop - part.start)

    def _check(self, sums: Integers) -> None:
        if sums.dtype != np.int64 or not sums.flags.c_contiguous:
            raise InvalidInput(
                f"expected sums in contiguous int64 grid steps, got sums of type {sums.dtype};"
                " make them with to_grid"
            )
        grids.check_dimension(sums, self.dimension)
        grids.check_whole_numbers("sums", sums)
