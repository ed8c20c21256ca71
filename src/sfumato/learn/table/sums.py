"""Exact arithmetic of table models, in whole numbers: residuals, noise on sums, bins and features.

One unit of a score is 2⁻¹⁶. Exponentials are looked up in public tables, since a vectorised `exp` may round a
row's value by the row's place in memory, that is, by who else is there. The rest (sums, products, quotients,
square roots) IEEE 754 rounds in one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sfumato.learn.table.encoding import Cells, Encoder
from sfumato.mechanisms import GridGaussian
from sfumato.randomness import Sampler

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BITS = 16
ONE = 1 << BITS
_STEP = 8  # bits of a score that the tables pass over
_REACH = 16 << (BITS - _STEP)  # scores beyond ±16 count as ±16


def residuals(scores: Integers, target: Floats, *, classes: int | None) -> Integers:
    """(rows, outputs) of target − prediction, each row by itself and each at most 1 in size.

    `scores` are (rows, outputs) in 2⁻¹⁶; `target` is the number of a class, or a number within ±1.
    """
    if classes is None:
        wanted = np.rint(target * ONE).astype(np.int64)[:, None]
        return np.clip(wanted - scores, -ONE, ONE)
    if classes == 2:
        return (target[:, None] * ONE).astype(np.int64) - _sigmoid()[_steps(scores) + _REACH]
    wanted = (target[:, None] == np.arange(classes)) * ONE
    return wanted - (ONE * shares(scores)).astype(np.int64)


def shares(scores: Integers) -> Floats:
    """Softmax, added up class by class."""
    weights = _exponential()[_steps(scores - scores.max(axis=1, keepdims=True)) + _REACH]
    total = weights[:, 0].copy()
    for place in range(1, weights.shape[1]):
        total += weights[:, place]
    return weights / total[:, None]


def clipped(found: Integers, limit: Floats | float) -> Integers:
    """Each row scaled down to an L2 norm of at most `limit` (in units of 1), never up.

    The product is rounded toward zero, and the limit taken as smaller by 2⁻⁴⁰ of it, which is more than the
    roundings of norm, quotient and product together.
    """
    squares = np.zeros(len(found))
    for place in range(found.shape[1]):
        squares += found[:, place].astype(np.float64) ** 2  # exact: below 2⁵³
    norms = np.sqrt(squares)
    factor = np.minimum(1.0, (1 - 2.0**-40) * ONE * limit / np.maximum(norms, 1.0))
    return np.trunc(found * factor[:, None]).astype(np.int64)


def _steps(scores: Integers) -> Integers:
    return np.clip(scores >> _STEP, -_REACH, _REACH)


@lru_cache(maxsize=1)
def _sigmoid() -> Integers:
    scores = np.arange(-_REACH, _REACH + 1) / (1 << (BITS - _STEP))
    return np.rint(ONE / (1 + np.exp(-scores))).astype(np.int64)


@lru_cache(maxsize=1)
def _exponential() -> Floats:
    return np.exp(np.minimum(np.arange(-_REACH, _REACH + 1), 0) / (1 << (BITS - _STEP)))


# Noise on exact sums: every release of a table model goes through here

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


# Bins and features, from noisy counts

MOST_BINS = 32
CENTRE_BITS, TREND_BITS = 12, 6
SUM_BITS = BITS + CENTRE_BITS
"""Sums of features times residuals are whole numbers of 2 to the power of minus this."""

_RARE = 0.01  # λ: shares below it are scaled alike
_LARGEST_EXPONENT = 3
_EVEN = 0.1  # share of the mass that is spread evenly when bins are cut


@dataclass(frozen=True)
class Design:
    """Bins of every column, one after the other, with their features: post-processing of noisy counts.

    A row's features are, for each column, its bin (one-hot, centred at the noisy shares μ and scaled by about
    (μ + λ)^-½, so that rare bins are learned as fast as common ones), for an ordered column also the rank of
    its bin, and a constant. In exact arithmetic:

        x(row) = (2^e_c·([row in c] − μ_c) for every bin c; t_c(column) for every ordered column; 1)

    μ is a multiple of 2⁻¹², t of 2⁻⁶ and e a whole number, so that sums of features times whole numbers are
    whole numbers of 2⁻²⁸ and no rounding depends on the rows.

    `bin_of[j]` gives the bin of each cell of column j, counted within the column; `starts[j]` is where the
    column's bins begin.
    """

    bin_of: tuple[Cells, ...]
    starts: Integers
    centre: Integers  # (bins,) in 2⁻¹²
    exponent: Integers  # (bins,)
    trend: Integers  # (bins,) in 2⁻⁶; 0 in a column that has no order

    @classmethod
    def of(cls, encoders: Sequence[Encoder], counts: Sequence[Floats], *, size: float) -> Design:
        """From noisy counts of every column's cells; `size` is the declared number of rows."""
        bins = tuple(join_cells(one, found) for one, found in zip(encoders, counts, strict=True))
        masses = [_mass(found, bin_of, size) for found, bin_of in zip(counts, bins, strict=True)]
        shares = np.concatenate(masses)
        wanted = np.rint(-0.5 * np.log2(shares + _RARE))
        ranks = [_ranks(mass) if one.ordered else mass * 0 for one, mass in zip(encoders, masses, strict=True)]
        return cls(
            bin_of=bins,
            starts=np.cumsum([0, *(mass.size for mass in masses)])[:-1],
            centre=np.rint(shares * (1 << CENTRE_BITS)).astype(np.int64),
            exponent=np.clip(wanted, 0, _LARGEST_EXPONENT).astype(np.int64),
            trend=np.rint(np.concatenate(ranks) * (1 << TREND_BITS)).astype(np.int64),
        )

    @property
    def bins(self) -> int:
        return self.centre.size

    @property
    def dimension(self) -> int:
        """How many features a row has."""
        return self.bins + len(self.starts) + 1

    def place(self, cells: Cells) -> Cells:
        """(rows, columns) places among all bins."""
        placed = np.empty_like(cells)
        for column, (start, bin_of) in enumerate(zip(self.starts, self.bin_of, strict=True)):
            placed[:, column] = bin_of[cells[:, column]] + start
        return placed

    def norms(self, placed: Cells) -> Floats:
        """The L2 norm of each row's features: each column adds its bin's part, and the constant 1."""
        share, scale = self.centre / (1 << CENTRE_BITS), 2.0**self.exponent
        others = np.add.reduceat((scale * share) ** 2, self.starts)
        sizes = np.diff([*self.starts, self.bins])
        each = np.repeat(others, sizes) + scale**2 * ((1 - share) ** 2 - share**2)
        each += (self.trend / (1 << TREND_BITS)) ** 2
        squares = np.ones(len(placed))
        for column in range(placed.shape[1]):
            squares += each[placed[:, column]]
        return np.sqrt(squares)

    def sums(self, placed: Cells, weights: Integers) -> Integers:
        """Σ over rows of weights ⊗ features, (outputs, features), exactly, in 2⁻²⁸; weights are in 2⁻¹⁶."""
        return np.stack([self._sum(placed, weights[:, place]) for place in range(weights.shape[1])])

    def weights(self, learned: Floats) -> tuple[Floats, Floats]:
        """Return the weight of each bin in a score, (bins, outputs), and the constant, from weights of
        features.
        """
        scale = 2.0 ** self.exponent[:, None]
        main, slopes, constant = np.split(learned.T, [self.bins, self.dimension - 1])
        sizes = np.diff([*self.starts, self.bins])
        trend = self.trend[:, None] / (1 << TREND_BITS) * np.repeat(slopes, sizes, axis=0)
        shift = (self.centre[:, None] / (1 << CENTRE_BITS) * scale * main).sum(axis=0)
        return scale * main + trend, constant[0] - shift

    def _sum(self, placed: Cells, weights: Integers) -> Integers:
        exact = weights.astype(np.float64)  # whole numbers, added up below 2⁵³: exact in any order
        found = np.zeros(self.bins)
        for column in range(placed.shape[1]):
            found += np.bincount(placed[:, column], weights=exact, minlength=self.bins)
        held, total = found.astype(np.int64), int(weights.sum())
        main = ((held << CENTRE_BITS) - self.centre * total) << self.exponent
        slopes = np.add.reduceat(self.trend * held, self.starts) << (CENTRE_BITS - TREND_BITS)
        return np.concatenate([main, slopes, [total << CENTRE_BITS]])


def join_cells(encoder: Encoder, counts: Floats) -> Cells:
    """The bin of each cell: neighbours are joined until each bin has about the same noisy mass.

    A column of up to 32 cells, or without an order, keeps them as they are. The cell of missing values stays a
    bin of its own.
    """
    if encoder.parts <= MOST_BINS or not encoder.ordered:
        return np.arange(encoder.cells)
    order = encoder.order()
    mass = np.maximum.accumulate(np.maximum(np.cumsum(counts[order]), 0.0))
    even = np.arange(1, encoder.parts + 1) / encoder.parts
    share = (1 - _EVEN) * mass / max(mass[-1], 1.0) + _EVEN * even
    before = np.concatenate([[0.0], share[:-1]])
    cut = np.minimum(np.floor((before + share) / 2 * MOST_BINS), MOST_BINS - 1)
    joined = np.unique(cut, return_inverse=True)[1]
    bins = np.empty(encoder.cells, dtype=np.int64)
    bins[order], bins[-1] = joined, joined[-1] + 1
    return bins


def _mass(counts: Floats, bin_of: Cells, size: float) -> Floats:
    """The share of rows in each bin of a column, at least 0 and at most 1."""
    found = np.bincount(bin_of, weights=counts, minlength=int(bin_of.max()) + 1)
    return np.clip(found / size, 0.0, 1.0)


def _ranks(mass: Floats) -> Floats:
    """The middle of each bin's ranks, from −1 to 1, centred; 0 for the last bin, of missing values."""
    known = mass[:-1] + 1e-6
    middle = (np.cumsum(known) - known / 2) / known.sum()
    return np.append(np.clip(2 * middle - 1, -1, 1), 0.0)
