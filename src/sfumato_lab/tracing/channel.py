"""Where values go in and released values come out: the noise of every method."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sfumato.mechanisms import GridGaussian
from sfumato.randomness import Sampler
from sfumato_lab.tracing.contacts import Integers
from sfumato_lab.tracing.disease import Disease, Floats
from sfumato_lab.tracing.release import Release

FINE_GRID = 2.0**-40  # of what is summed but not released, so that sums do not depend on their order
_FLOAT_ERROR = 2.0**-30  # of a score computed in float64 from a few hundred additions and products


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Whole grid steps in, released values out; without a mechanism, as they are."""

    grid: float
    sigma: float
    mechanism: GridGaussian | None

    def send(self, whole: Integers, sampler: Sampler) -> Floats:
        if self.mechanism is None:
            return np.asarray(whole * self.grid, dtype=np.float64)
        return self.mechanism.release(whole, sampler).astype(np.float64)


def channel(release: Release, disease: Disease, size: int, *, rounds: int = 1, roundings: int = 0) -> Channel:
    """Noise of σ·√rounds on `size` values, of which one message moves one.

    A message that is rounded on each of n days of its life moves by up to grid·√n more, with a grid of at most
    2⁻¹⁰ Δ/√size.
    """
    if release.noise_multiplier == 0:
        return Channel(grid=FINE_GRID, sigma=0.0, mechanism=None)
    mechanism = GridGaussian(
        clip_norm=release.sensitivity(disease),
        dimension=size,
        noise_multiplier=release.noise_multiplier * math.sqrt(rounds),
        float_error=_FLOAT_ERROR + 2.0**-10 * math.sqrt(roundings / size),
    )
    return Channel(grid=mechanism.grid, sigma=mechanism.sigma, mechanism=mechanism)
