"""What one round adds up where holders do not train: vectors, each with noise of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.holders.masks import Modulus
from sfumato.mechanisms import GaussianShares
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import Sampler

MARGIN = 2.0**-9
"""Of the sensitivity: each holder rounds its own sum to the grid, which moves it by 2⁻¹⁰ of that at most."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A vector that is summed over all holders under one noise.

    Args:
        sensitivity: By how much one unit moves the sum over all holders at most, in L2 norm.
        dimension: How many numbers there are.
        noise_multiplier: Of the shares that count together: their standard deviation over the sensitivity.
        shares: How many shares count: those that the best informed adversary does not know.
        largest: No number of the sum is expected above it; beyond it a sum may wrap, and is no less private.

    >>> part = Part(sensitivity=2**0.5, dimension=10, noise_multiplier=4.0, shares=5, largest=1000)
    >>> round(part.deviation(8), 2)  # of the noise in a sum that eight holders contributed to
    7.17
    """

    sensitivity: float
    dimension: int
    noise_multiplier: float
    shares: int
    largest: float

    def __post_init__(self) -> None:
        _validate.positive("largest", self.largest)
        self.mechanism()

    def mechanism(self) -> GaussianShares:
        return GaussianShares(
            clip_norm=self.sensitivity,
            dimension=self.dimension,
            noise_multiplier=self.noise_multiplier,
            shares=self.shares,
            margin=MARGIN,
        )

    def deviation(self, holders: int) -> float:
        """Of the noise on each number, once so many holders' shares are in the sum."""
        noise = self.mechanism()
        return noise.share_sigma * noise.grid * float(np.sqrt(holders))

    def under(self, shares: int) -> Part:
        """As seen by whom so many shares are unknown."""
        seen = self.mechanism().under(shares)
        return replace(self, shares=shares, noise_multiplier=seen.noise_multiplier)


@dataclass(frozen=True)
class SumRound:
    """One round: all its parts are added up under masks together, in this order.

    Args:
        parts: The vectors, at least one.

    >>> counts = Part(sensitivity=1.0, dimension=2, noise_multiplier=4.0, shares=5, largest=1000)
    >>> SumRound((counts, counts)).dimension
    4
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidInput("expected a round with at least one part, got none")

    @property
    def dimension(self) -> int:
        return sum(part.dimension for part in self.parts)

    def event(self) -> accounting.DpEvent:
        return accounting.compose(*(part.mechanism().event() for part in self.parts))

    def under(self, shares: int) -> SumRound:
        return SumRound(tuple(part.under(shares) for part in self.parts))

    def contribution(self, values: Sequence[npt.NDArray[Any]], sampler: Sampler) -> Integers:
        """One holder's numbers on the grid, with its share of the noise: to be masked."""
        shapes = [np.shape(value) for value in values]
        if shapes != [(part.dimension,) for part in self.parts]:
            raise InvalidInput(
                f"expected numbers as agreed, {[part.dimension for part in self.parts]}, got {shapes}"
            )
        noises = [part.mechanism() for part in self.parts]
        rounded = [grids.to_grid(value, noise.grid) for value, noise in zip(values, noises, strict=True)]
        return np.concatenate(
            [noise.release(value, sampler) for noise, value in zip(noises, rounded, strict=True)]
        )

    def read(self, total: Integers) -> list[Floats]:
        """The parts of an opened sum, in the units in which they were contributed."""
        ends = np.cumsum([part.dimension for part in self.parts])[:-1]
        pieces = np.split(total, ends)
        return [
            grids.from_grid(piece, part.mechanism().grid)
            for piece, part in zip(pieces, self.parts, strict=True)
        ]

    def modulus(self, holders: int) -> Modulus:
        noises = [(part, part.mechanism()) for part in self.parts]
        return Modulus.fitting(
            largest=max(part.largest / noise.grid for part, noise in noises),
            sigma=max(noise.share_sigma for _, noise in noises) * float(np.sqrt(holders)),
            dimension=self.dimension,
        )
