"""What is measured of the private images: one vector of sums, one Gaussian release."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sfumato import _validate
from sfumato.accounting import DpEvent
from sfumato.datasets import Dataset
from sfumato.mechanisms.grid import to_grid
from sfumato.mechanisms.vector import GridGaussian
from sfumato.models.rows_apart import rows_apart
from sfumato.randomness import Sampler
from sfumato.recipes.images.styles import Floats, Integers, Styles, nearest

COUNT_WEIGHT, MEAN_WEIGHT, MOMENT_WEIGHT = 0.15, 0.35, 0.5  # of the squared norm of one person's vector
_FLOAT_ERROR = 2.0**-30  # of a vector's norm, computed in doubles
_ROWS = 2000  # people whose vectors are made at a time


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The parts of the vector: counts by cluster, sums of residuals by group, their products by class."""

    classes: int
    fine: int
    coarse: int
    latents: int

    def __post_init__(self) -> None:
        for name in ("classes", "fine", "coarse", "latents"):
            _validate.integer(name, getattr(self, name), least=1)

    @property
    def products(self) -> int:
        """Different products of two of the latents."""
        return self.latents * (self.latents + 1) // 2

    @property
    def sizes(self) -> tuple[int, int, int]:
        return (
            self.classes * self.fine,
            self.classes * self.coarse * self.latents,
            self.classes * self.products,
        )

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    def mechanism(self, noise_multiplier: float) -> GridGaussian:
        return GridGaussian(
            clip_norm=1.0,
            dimension=self.dimension,
            noise_multiplier=noise_multiplier,
            float_error=_FLOAT_ERROR,
        )


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan:
    """One Gaussian release of all sums.

    A person with label c, nearest cluster k of c, its group g, and residual r (latents less the cluster's
    centre, over `reach`, clipped to length 1) adds √.15 at (c, k), √.35·r at (c, g) and √.5·rrᵀ at c. As the
    length of rrᵀ is that of r squared, the vector's length is at most √(.15 + .35 + .5) = 1.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier` under add/remove of one row. A row with
    a label outside the classes, or with pixels that are no numbers, adds nothing. Public: all fields. Secret:
    the rows, the sums, the noise.
    """

    layout: Layout
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.positive("noise_multiplier", self.noise_multiplier)

    def event(self) -> DpEvent:
        return self.layout.mechanism(self.noise_multiplier).event()

    def measure(self, rows: Dataset, styles: Styles, sampler: Sampler) -> Statistics:
        """The noisy sums; `rows` are (rows, 1, 28, 28)."""
        mechanism = self.layout.mechanism(self.noise_multiplier)
        sums = exact_sums(rows, styles, self.layout)
        noisy = mechanism.release(sums, sampler).astype(np.float64)
        return Statistics.of(noisy, self.layout, sigma=mechanism.sigma)


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """The noisy sums, each in its own unit: people, and `reach` of the residuals."""

    counts: Floats  # (classes, fine)
    sums: Floats  # (classes, coarse, latents)
    moments: Floats  # (classes, latents, latents), symmetric
    count_sigma: float

    @classmethod
    def of(cls, vector: Floats, layout: Layout, *, sigma: float) -> Statistics:
        counts, sums, products = np.split(vector, np.cumsum(layout.sizes)[:-1])
        moments = np.zeros((layout.classes, layout.latents, layout.latents))
        upper = np.triu_indices(layout.latents)
        scaled = products.reshape(layout.classes, -1) / (_product_weights(layout.latents))
        moments[:, upper[0], upper[1]] = scaled
        moments[:, upper[1], upper[0]] = scaled
        return cls(
            counts=counts.reshape(layout.classes, layout.fine) / math.sqrt(COUNT_WEIGHT),
            sums=sums.reshape(layout.classes, layout.coarse, layout.latents) / math.sqrt(MEAN_WEIGHT),
            moments=moments,
            count_sigma=sigma / math.sqrt(COUNT_WEIGHT),
        )


def exact_sums(rows: Dataset, styles: Styles, layout: Layout) -> Integers:
    """The sums in grid steps: each person's vector is rounded by itself, and whole numbers are added."""
    grid = layout.mechanism(1.0).grid
    total = np.zeros(layout.dimension, dtype=np.int64)
    for places, values in _contributions(rows, styles, layout):
        np.add.at(total, places.reshape(-1), to_grid(values, grid).reshape(-1))
    return total


def _contributions(rows: Dataset, styles: Styles, layout: Layout) -> Iterator[tuple[Integers, Floats]]:
    """Places and values (people, entries) of each person's vector, all others being zero."""
    latents = rows_apart(styles.bank.net.encode, rows.tensors()[0]).numpy().astype(np.float64)
    known = np.isfinite(latents).all(axis=1) & (rows.targets >= 0) & (rows.targets < layout.classes)
    for label in range(layout.classes):
        found = latents[known & (rows.targets == label)]
        for start in range(0, len(found), _ROWS):
            yield _vectors(found[start : start + _ROWS], label, styles, layout)


def _vectors(latents: Floats, label: int, styles: Styles, layout: Layout) -> tuple[Integers, Floats]:
    cluster = nearest(latents, styles.centres[label])
    residuals = clipped((latents - styles.centres[label][cluster]) / styles.reach)
    group = styles.groups[label][cluster]
    one, two = np.triu_indices(layout.latents)
    products = residuals[:, one] * residuals[:, two] * _product_weights(layout.latents)
    values = [
        np.full((len(latents), 1), math.sqrt(COUNT_WEIGHT)),
        math.sqrt(MEAN_WEIGHT) * residuals,
        products,
    ]
    sums_from, products_from = np.cumsum(layout.sizes)[:2]
    groups_from = sums_from + (label * layout.coarse + group) * layout.latents
    places = [
        (label * layout.fine + cluster)[:, np.newaxis],
        groups_from[:, np.newaxis] + np.arange(layout.latents),
        np.broadcast_to(products_from + label * layout.products + np.arange(layout.products), products.shape),
    ]
    return np.concatenate(places, axis=1), np.concatenate(values, axis=1)


def _product_weights(latents: int) -> Floats:
    """√.5, and √2 times as much off the diagonal, where one entry stands for two."""
    one, two = np.triu_indices(latents)
    return math.sqrt(MOMENT_WEIGHT) * np.where(one == two, 1.0, math.sqrt(2.0))


def clipped(residuals: Floats) -> Floats:
    """Rows of length at most 1."""
    lengths = np.sqrt(np.square(residuals).sum(axis=1, keepdims=True))
    return residuals / np.maximum(1.0, lengths)
