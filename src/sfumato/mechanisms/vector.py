"""Gaussian noise for long vectors, such as sums of clipped gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput, Refused
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import NoiseSource, side_by_side, spread_rounded_normal

_EXACT = 2**52  # grid steps that a double holds exactly, with room for the noise
_LARGE = 1 << 20  # values that are looked at on several threads
_CERTAIN = 8  # draws that cannot all be zero: each is with a chance below 4e-4


@dataclass(frozen=True, kw_only=True)
class GridGaussian:
    """Sums of vectors of norm at most C, held in int64 on a grid, plus rounded Gaussian noise.

    Released is S + [σZ/grid] in grid steps, rounded to the nearest, with Z standard normal and σ =
    noise_multiplier · C(1+η). As S is whole, this is [S + σZ/grid] but for ties, which have no chance:
    post-processing of the ideal Gaussian mechanism.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier`, if a neighbouring data set changes
    the values of one call of `add_to_grid` by a vector of norm at most C(1 + float_error).
    η = float_error + grid·√d/C covers this and the rounding of both to the grid (grid·√d ≤ 2⁻¹⁰ C). Outputs
    lie on one grid for all data. The float64 normal sampler is taken as ideal. NaN and infinities are
    refused by `add_to_grid`, other types, other sizes and sums beyond 2⁶² grid steps here, before any noise is
    drawn. Public: all fields. Secret: the sums, the noise.

    Dwork & Roth 2014, appendix A; Balle & Wang 2018, theorem 8; Mironov 2012 for why on a grid.

    Args:
        clip_norm: C, the bound of one unit's vector in L2 norm.
        dimension: The number of coordinates.
        noise_multiplier: σ divided by the sensitivity.
        float_error: By how much, relatively, computed vectors may exceed C.

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

    @cached_property
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

    def release(
        self,
        sums: Integers | npt.NDArray[np.float32],
        sampler: NoiseSource,
        *,
        divisor: float = 1.0,
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the sums with noise, over `divisor`, as float32: post-processing of whole grid steps.

        Sums in int64 are in grid steps; sums in float32 are in the units of C and are rounded to the grid here.
        With `out`, which takes the release, the sums are wiped: each is zero as soon as it was read.
        """
        self._check(sums)
        wiped = out is not None
        released = np.empty(sums.shape, dtype=np.float32) if out is None else out
        flat_sums, flat_released = sums.reshape(-1), released.reshape(-1)
        factor = self.grid / divisor

        def finish(start: int, noise: Floats) -> None:
            _require_noise(noise)
            place = slice(start, start + noise.size)
            steps = flat_sums[place] if wiped else flat_sums[place].copy()
            if steps.dtype == np.float32:  # times a power of two, then to whole numbers: both are exact
                np.rint(np.multiply(steps, 1.0 / self.grid, out=steps), out=steps)
            noise += steps  # whole numbers below 2⁵³, which doubles hold exactly
            if wiped:
                steps.fill(0)
            np.multiply(noise, factor, out=flat_released[place], casting="same_kind")

        spread_rounded_normal(sampler, self.sigma / self.grid, self.dimension, finish)
        return released

    def draw(self, sampler: NoiseSource) -> Integers:
        """Return the noise alone, in grid steps, for sums on another device."""
        noise = sampler.rounded_normal(self.sigma / self.grid, self.dimension)
        _require_noise(noise)
        return noise

    def add_noise_in_place(self, sums: Integers, sampler: NoiseSource) -> None:
        """sums += noise, in grid steps."""
        self._check(sums)
        flat = sums.reshape(-1)

        def add(start: int, noise: Floats) -> None:
            _require_noise(noise)
            flat[start : start + noise.size] += noise.astype(np.int64)

        spread_rounded_normal(sampler, self.sigma / self.grid, self.dimension, add)

    def _check(self, sums: npt.NDArray[Any]) -> None:
        if sums.dtype not in (np.int64, np.float32) or not sums.flags.c_contiguous:
            raise InvalidInput(
                f"expected contiguous sums in int64 grid steps or in float32, got sums of type {sums.dtype};"
                " make them with to_grid"
            )
        grids.check_dimension(sums, self.dimension)
        step = 1.0 if sums.dtype == np.int64 else self.grid
        check = partial(grids.check_values, grid=step, steps=_EXACT)
        if sums.size < _LARGE:
            check(sums)
        else:
            side_by_side(check, np.array_split(sums.reshape(-1), 4))


def _require_noise(noise: Floats | Integers) -> None:
    """σ is a thousand grid steps and more: so many draws that all round to zero are no draws at all."""
    if noise.size >= _CERTAIN and not noise[:_CERTAIN].any():
        raise Refused("the sampler drew no noise; nothing was released, and the step did not happen")
