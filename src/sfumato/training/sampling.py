"""Which units enter a step: independent coins from the secret stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.randomness import Sampler

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """The units of one step, each with a place in [0, 1) that says which chunk it is worked on in."""

    units: Indices
    places: Floats

    def copy(self) -> Sample:
        return Sample(self.units.copy(), self.places.copy())

    def chunks(self, count: int) -> list[Indices]:
        """The units dealt into `count` chunks by their places.

        A unit's chunk depends on its own draw alone, so that adding or removing a unit changes the rounding of
        one chunk only.
        """
        if count == 1:
            return [self.units]
        chunk = (self.places * count).astype(np.int64)
        order = np.argsort(chunk, kind="stable")
        return np.split(self.units[order], np.searchsorted(chunk[order], np.arange(1, count)))


def poisson_sample(units: int, sample_rate: float, sampler: Sampler) -> Sample:
    """Each unit on its own with probability q (Abadi et al. 2016, §3.1); may be empty.

    One uniform draw u for each unit says both: it is in if u < q, and then its place is u/q, uniform again.

    >>> from sfumato.randomness import SecretStream
    >>> poisson_sample(1000, 1.0, SecretStream()).units.size
    1000
    """
    rate = _validate.probability("sample_rate", sample_rate)
    draws = sampler.uniform(_validate.integer("units", units))
    chosen = np.flatnonzero(draws < rate)
    return Sample(chosen, np.minimum(draws[chosen] / rate, np.nextafter(1.0, 0.0)))


def shuffled_samples(units: int, batches: int, sampler: Sampler) -> list[Sample]:
    """One pass through all units in a random order, in near-equal batches."""
    order = np.argsort(sampler.uniform(units), kind="stable")
    return [Sample(part, np.arange(part.size) / max(1, part.size)) for part in np.array_split(order, batches)]
