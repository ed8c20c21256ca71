"""Noise on exact sums: every release of a table model goes through here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sfumato.mechanisms import GridGaussian
from sfumato.randomness import Sampler

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ETA = 2.0**-10
"""By how much of its bound, at most, a sum moves more because it is rounded to the grid."""


def release(
    sums: Integers, *, bits: int, bound: float, rows: int, noise_multiplier: float, sampler: Sampler
) -> Floats:
    """The sums, whole numbers of 2^-bits, plus Gaussian noise of σ · bound · rows(1 + η) on each.

    Released is ⌊S/grid + ½⌋ + noise in whole steps of a public grid, in the units of `bound`.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier` for one unit added or removed, if a row
    adds a vector of L2 norm at most `bound` to the sums, which no other row changes, and a unit has at most
    `rows` rows: by the triangle inequality it moves them by at most rows · bound. The sums are whole numbers
    and come to the grid by shifting bits, so that nothing is rounded that depends on other rows; η covers the
    rounding to the grid. Public: all but the sums. Secret: the sums, the noise.

    Dwork & Roth 2014, appendix A; Balle & Wang 2018, theorem 8; Mironov 2012 for why on a grid.
    """
    mechanism = GridGaussian(clip_norm=bound * rows, dimension=sums.size, noise_multiplier=noise_multiplier)
    shift = bits + round(np.log2(mechanism.grid))  # the grid is a power of two
    steps = (sums + (1 << (shift - 1))) >> shift if shift > 0 else sums << -shift
    return (
        mechanism.release(np.ascontiguousarray(steps.ravel()), sampler).reshape(sums.shape).astype(np.float64)
    )
