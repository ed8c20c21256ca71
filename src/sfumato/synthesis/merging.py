"""Cells that hold next to nobody are merged, by what the noisy counts of single columns say.

A cell whose noisy count is within the noise tells nothing, and would only bring noise into every marginal that
it is part of. Merging reads noisy counts alone: it is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.synthesis.cells import CellColumn

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TELLING = 3.0
"""Standard deviations of noise from which on a count says something."""

CERTAIN = 4.0
"""The same for missing values, as a column without any must not get some."""


@dataclass(frozen=True)
class Buckets:
    """Which bucket each cell of a column belongs to, and how its cells share a bucket."""

    place: Integers  # (cells,)
    shares: Floats  # (buckets, cells); each row adds up to 1
    column: str

    @property
    def size(self) -> int:
        return len(self.shares)

    def counts(self, cells: Floats) -> Floats:
        """Counts of buckets from those of cells."""
        return np.asarray(np.bincount(self.place, weights=cells, minlength=self.size), dtype=np.float64)

    def mean_spread(self, sigma: float) -> float:
        """The mean noise of a bucket where that of each cell is σ: what a fit weighs by."""
        return float(sigma * self._roots.mean())

    def spread(self, mean: float) -> Floats:
        """The noise of each bucket where the mean one is this: a bucket of many cells has more."""
        return np.asarray(mean * self._roots / self._roots.mean())

    @property
    def _roots(self) -> Floats:
        return np.sqrt(self.counts(np.ones(len(self.place))))


def merged(column: CellColumn, noisy: Floats, sigma: float) -> Buckets:
    """The buckets of one column from its noisy counts."""
    counts = np.maximum(noisy, 0.0)
    has_missing = noisy[column.missing] >= CERTAIN * sigma
    if not has_missing:
        counts[column.missing] = 0.0
    rare = counts < TELLING * sigma
    rare[column.missing] = not has_missing
    if rare[: column.missing].all():
        rare[int(np.argmax(noisy[: column.missing]))] = False
    place = _adjacent(counts, TELLING * sigma) if column.values is None else _together(rare)
    if not has_missing:  # rows that miss a value, which are few, go where most are
        place[column.missing] = place[int(np.argmax(counts[: column.missing]))]
    elif column.values is None:
        place[column.missing] = place[: column.missing].max() + 1
    return Buckets(place, _shares(place, counts, column.missing if not has_missing else None), column.name)


def coarser(column: CellColumn, fine: Buckets, counts: Floats, most: int) -> Buckets:
    """A column in at most so many buckets, two or more, by the noisy counts of its own ones.

    Neighbours of an ordered column are joined until each bucket holds about as much, and the rarest ones of
    another column. Missing values of an ordered column stay apart: in two buckets it says whether there is a
    value, and nothing else.
    """
    ordered = column.type in ("integer", "real", "date")
    gone = int(fine.place[column.missing])
    apart = ordered and fine.size > 1 and bool((fine.shares[gone, : column.missing] == 0).all())
    mass = np.maximum(counts, 0.0) + 1e-9
    values = np.delete(np.arange(fine.size), gone if apart else [])
    group = np.full(fine.size, most - 1)
    group[values] = (_even if ordered else _commonest)(mass[values], most - apart)
    group = np.unique(group, return_inverse=True)[1]
    weights = np.zeros((int(group.max()) + 1, fine.size))
    weights[group, np.arange(fine.size)] = mass
    shares = (weights / weights.sum(axis=1, keepdims=True)) @ fine.shares
    return Buckets(group[fine.place], shares, fine.column)


def _even(mass: Floats, most: int) -> Integers:
    """Neighbours together, about as much in each group."""
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    return np.minimum(np.floor(middle * most), most - 1).astype(np.int64)


def _commonest(mass: Floats, most: int) -> Integers:
    """The largest ones by themselves, and the rest together."""
    rank = np.empty(len(mass), dtype=np.int64)
    rank[np.argsort(-mass, kind="stable")] = np.arange(len(mass))
    return np.minimum(rank, most - 1)


def _together(rare: npt.NDArray[np.bool_]) -> Integers:
    """Every telling cell by itself, and the rest in one bucket."""
    place = np.cumsum(~rare) - 1
    place[rare] = int((~rare).sum())
    return place.astype(np.int64)


def _adjacent(counts: Floats, least: float) -> Integers:
    """Neighbouring bins are joined until each bucket holds at least so many; the last cell is the caller's."""
    place, bucket, held = np.zeros(len(counts), dtype=np.int64), 0, 0.0
    for cell in range(len(counts) - 1):
        place[cell] = bucket
        held += counts[cell]
        if held >= least and cell < len(counts) - 2:
            bucket, held = bucket + 1, 0.0
    if held < least and bucket > 0:
        place[place == bucket] = bucket - 1
    return place


def _shares(place: Integers, counts: Floats, never: int | None) -> Floats:
    shares = np.zeros((int(place.max()) + 1, len(place)))
    shares[place, np.arange(len(place))] = counts + 1e-9  # a bucket of nothing is shared equally
    if never is not None:
        shares[:, never] = 0.0
    return shares / shares.sum(axis=1, keepdims=True)


def merge_table(counts: npt.NDArray[np.int64], buckets: Sequence[Buckets]) -> npt.NDArray[np.int64]:
    """Counts of combinations of buckets: sums of those of cells, so that one person moves them no further."""
    for axis, bucket in enumerate(buckets):
        moved = np.moveaxis(counts, axis, 0)
        joined = np.zeros((bucket.size, *moved.shape[1:]), dtype=np.int64)
        np.add.at(joined, bucket.place, moved)
        counts = np.moveaxis(joined, 0, axis)
    return np.ascontiguousarray(counts)
