"""Noise made by several parties, each a share of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput, Refused
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler

MARGIN = 2.0**-5
"""Of C: for rounding to the grid and in float32, the same for all parties on all machines."""

_LARGEST_SIGMA = 2.0**45  # noise and sums are then far below 2⁶²
_CERTAIN = 16  # draws of a share that cannot all be zero


@dataclass(frozen=True, kw_only=True)
class GaussianShares:
    """Sums of vectors of norm at most C on a grid, plus the discrete Gaussian shares of several parties.

    Each party adds Z with P(z) ∝ exp(−z² / 2s²) on every coordinate, in grid steps, where
    s = noise_multiplier · C(1 + margin) / (grid · √shares). An adversary who knows all but `shares` of the
    shares sees the sum under noise of `noise_multiplier`; further shares only hide more.

    *Guarantees*: the sum over all parties costs `event()`, if a neighbouring data set changes the sum of one
    party by a vector of norm at most C(1 + margin), the rounding to the grid included: hand the actual η to
    `check_covers`. A single contribution is **not** private on its own; only the sum is, and masks hide the
    rest. Draws are exact. Other types, other sizes and sums beyond 2⁵² steps are refused before
    noise is drawn. Public: all fields. Secret: the sums, the noise.

    Kairouz, Liu & Steinke 2021, "The distributed discrete Gaussian mechanism for federated learning with secure
    aggregation", theorem 11 and proposition 14; the proof is with `accounting.GaussianSharesEvent`.

    Args:
        clip_norm: C, the bound of one unit's vector in L2 norm.
        dimension: How many coordinates the vectors have.
        noise_multiplier: Of `shares` shares together: their standard deviation over C(1 + margin).
        shares: How many shares count: those that the adversary does not know.
        margin: The share of C by which rounding may lengthen a vector; 2⁻⁵ by default.

    >>> from sfumato.randomness import SecretStream
    >>> part = GaussianShares(clip_norm=1.0, dimension=4, noise_multiplier=2.0, shares=5)
    >>> part.release(np.zeros(4, dtype=np.int64), SecretStream()).dtype
    dtype('int64')
    """

    clip_norm: float
    dimension: int
    noise_multiplier: float
    shares: int
    margin: float = MARGIN

    def __post_init__(self) -> None:
        _validate.positive("clip_norm", self.clip_norm)
        _validate.integer("dimension", self.dimension, least=1)
        _validate.integer("shares", self.shares, least=1)
        _validate.positive("noise_multiplier", self.noise_multiplier)
        self.check_covers(self.grid * math.sqrt(self.dimension) / self.clip_norm)
        self.event()
        if not self.share_sigma <= _LARGEST_SIGMA:
            raise InvalidInput(
                f"expected at most 2**45 grid steps of noise in a share, got {self.share_sigma:g}; choose a "
                "smaller noise_multiplier"
            )

    @property
    def grid(self) -> float:
        return grids.vector_grid(self.clip_norm, self.dimension)

    @property
    def share_sigma(self) -> float:
        """Standard deviation of one share, in grid steps."""
        whole = self.noise_multiplier * self.clip_norm * (1 + self.margin) / self.grid
        return whole / math.sqrt(self.shares)

    def check_covers(self, eta: float) -> None:
        """Refuse errors that move the sum by more than the declared C(1 + margin)."""
        if not eta <= self.margin:
            raise InvalidInput(
                f"expected rounding errors of at most margin={self.margin:g} of the clipping norm, got "
                f"eta={eta:g}; declare a larger margin"
            )

    def under(self, shares: int) -> GaussianShares:
        """Shares of the same width, as seen by whom so many of them are unknown."""
        _validate.integer("shares", shares, least=1)
        return replace(
            self, shares=shares, noise_multiplier=self.noise_multiplier * math.sqrt(shares / self.shares)
        )

    def event(self) -> accounting.DpEvent:
        return accounting.GaussianSharesEvent(
            self.noise_multiplier, self.share_sigma, self.shares, self.dimension
        )

    def release(self, sums: Integers, sampler: Sampler) -> Integers:
        """Return the sums of one party, in grid steps, with its share of the noise: to be masked."""
        if not isinstance(sums, np.ndarray) or sums.dtype != np.int64:
            raise InvalidInput("expected sums in int64 grid steps, got another type; make them with to_grid")
        grids.check_dimension(sums, self.dimension)
        grids.check_values(sums, 1.0, steps=2**52)
        noise = sampler.discrete_gaussian(self.share_sigma, self.dimension)
        if noise.size >= _CERTAIN and self.share_sigma > 16 and not noise.any():
            raise Refused("the sampler drew no noise; nothing was sent, and the round did not happen")
        return sums + noise.reshape(sums.shape)
