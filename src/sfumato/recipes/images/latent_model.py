"""A mixture of Gaussians in the latents, as the noisy statistics describe it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato.recipes.images.statistics import Statistics
from sfumato.recipes.images.styles import Floats, Integers, Styles

_FEWEST = 20.0  # people in a group whose mean is believed, in standard deviations of its count


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentModel:
    """Cluster k of class c has `shares[c, k]` of the people, centre and spread as given."""

    shares: Floats  # (classes, fine), adding up to 1
    centres: Floats  # (classes, fine, latents)
    spreads: Floats  # (classes, latents, latents): a square root of the covariance

    @classmethod
    def of(cls, statistics: Statistics, styles: Styles) -> LatentModel:
        counts = np.maximum(statistics.counts, 0.0)
        shares = counts + 1e-9
        means = _means(statistics, styles, counts)  # (classes, fine, latents), in units of the reach
        spreads = [
            _square_root(moment / max(count.sum(), 1.0) - (mean.T * weight) @ mean)
            for moment, mean, count, weight in zip(
                statistics.moments, means, counts, shares / shares.sum(axis=1, keepdims=True), strict=True
            )
        ]
        return cls(
            shares=shares / shares.sum(),
            centres=styles.centres + styles.reach * means,
            spreads=styles.reach * np.stack(spreads),
        )

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Integers, Floats]:
        """Classes and latents."""
        fine = self.shares.shape[1]
        chosen = generator.choice(self.shares.size, size=count, p=self.shares.reshape(-1))
        labels, clusters = chosen // fine, chosen % fine
        steps = generator.standard_normal((count, self.centres.shape[2]))
        moved = np.einsum("nij,nj->ni", self.spreads[labels], steps)
        return labels, self.centres[labels, clusters] + moved


def _means(statistics: Statistics, styles: Styles, counts: Floats) -> Floats:
    """Mean residual of each cluster's group; none where too few people are in it to say."""
    found = np.zeros_like(styles.centres)
    for label, groups in enumerate(styles.groups):
        for group in np.unique(groups):
            members = groups == group
            people = counts[label, members].sum()
            if people > _FEWEST * statistics.count_sigma:
                found[label, members] = statistics.sums[label, group] / people
    return found


def _square_root(covariance: Floats) -> Floats:
    """Of the nearest covariance without negative variances."""
    values, vectors = np.linalg.eigh(covariance)
    root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
    return root
