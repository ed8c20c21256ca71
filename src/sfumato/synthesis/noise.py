"""Gaussian noise on whole counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import Refused
from sfumato.mechanisms import grid as grids
from sfumato.randomness import Sampler

Integers = npt.NDArray[np.int64]

_CERTAIN = 64  # draws that cannot all be zero where σ ≥ 1: each is with a chance below 0.4


@dataclass(frozen=True, kw_only=True)
class CountNoise:
    """Whole counts plus ⌊σZ + ½⌋ with Z standard normal, on each.

    *Guarantees*: the cost of a Gaussian mechanism of noise multiplier σ / `sensitivity`, where one person moves
    the counts by at most `sensitivity` in L2. As counts x are whole, x + ⌊σZ + ½⌋ = ⌊x + σZ + ½⌋ is
    post-processing of the ideal Gaussian mechanism, and outputs are whole whatever the data. The float64 normal
    sampler is taken as ideal. Anything but whole numbers is refused before any noise is drawn. Public: all
    fields. Secret: the counts, the noise.

    Balle & Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8; Mironov 2012 for
    why on whole numbers.

    >>> from sfumato.randomness import SecretStream
    >>> CountNoise(sensitivity=1, sigma=3.0).release(np.array([1000, 0]), SecretStream()).dtype
    dtype('int64')
    """

    sensitivity: int
    sigma: float

    def __post_init__(self) -> None:
        _validate.integer("sensitivity", self.sensitivity, least=1)
        grids.check_noise("sigma", self.sigma, self.sensitivity, grid=1.0)

    def event(self) -> accounting.DpEvent:
        return accounting.GaussianEvent(self.sigma / self.sensitivity)

    def release(self, counts: Integers, sampler: Sampler) -> Integers:
        whole = grids.check_whole_numbers("counts", counts)
        noise = sampler.rounded_normal(self.sigma, whole.size)
        if self.sigma >= 1 and noise.size >= _CERTAIN and not noise.any():
            raise Refused("the sampler drew no noise; nothing was released")
        return whole + noise.reshape(whole.shape)
