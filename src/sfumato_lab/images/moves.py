"""Where drawings of many tones are moved to: the mean and covariance that noisy sums give each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato_lab.images.statistics import Statistics
from sfumato_lab.images.styles import Floats, Integers, Styles

_FLOOR = 0.02  # of the mean variance: what a drawing's direction has at least
_HIDDEN = 0.3  # of the longest direction of a covariance's noise: variance that it hides
_FRAMES = (10, 20, 40, 70, 110)  # first directions of the frames in which covariances are denoised
_FARTHEST = 3.0  # times: how far a direction is stretched at most
ANEW = 0.5
"""The share of things that are put anywhere in their class, for more variety than the drawings have."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moves:
    """One affine map for each class, between places in the view.

    The map is the optimal transport between two Gaussians (Peyré & Cuturi 2019, §2.6): it moves the drawings of
    a class as little as possible so that their mean and covariance become those of the private images. Where
    the noise hides the covariance, the drawings' own is kept. Of drawn things a share is put anywhere in the
    class before: at a Gaussian place of the drawings' own mean and covariance, so that the map fits it as well.
    """

    maps: Floats  # (classes, directions, directions), symmetric
    shifts: Floats  # (classes, directions)
    centres: Floats  # (classes, directions): what the maps leave where it is
    roots: Floats  # (classes, directions, directions): of the drawings' covariances
    anew: Floats  # (classes,): the share that is put anywhere

    @classmethod
    def of(cls, statistics: Statistics, styles: Styles) -> Moves:
        assert styles.spreads is not None
        people, known = statistics.people, statistics.known
        means = np.where(known[:, np.newaxis], statistics.sums / people[:, np.newaxis], 0.0)
        spreads = denoised(statistics, styles.spreads, people, means)
        size = styles.spreads.shape[1]
        noise = _HIDDEN * statistics.moment_sigma * np.sqrt(2 * size) / people
        maps = [
            transport(drawn, found, floor=floor) if sure else np.eye(size)
            for drawn, found, floor, sure in zip(styles.spreads, spreads, noise, known, strict=True)
        ]
        share = ANEW if styles.settings.prior == "shapes" else 0.0
        return cls(
            maps=np.stack(maps),
            shifts=styles.reach * means,
            centres=styles.centres,
            roots=np.stack([styles.reach * _power(drawn, 0.5) for drawn in styles.spreads]),
            anew=np.where(known, share, 0.0),
        )

    def steps(self, places: Floats, labels: Integers, generator: np.random.Generator) -> Floats:
        """By how much each place is moved."""
        apart = places - self.centres[labels]
        found = self.shifts[labels] - apart
        anew = generator.random(len(labels)) < self.anew[labels]
        for label in np.unique(labels):
            fresh, same = anew & (labels == label), labels == label
            apart[fresh] = generator.standard_normal(apart[fresh].shape) @ self.roots[label]
            found[same] += apart[same] @ self.maps[label]
        return found


def denoised(statistics: Statistics, drawn: Floats, people: Floats, means: Floats) -> Floats:
    """The classes' covariances, each drawn towards what all classes have in common, and that to the drawings'.

    By the positive-part James–Stein estimator, on the matrices' entries, whose noise is known.
    """
    assert statistics.moments is not None
    found = statistics.moments / people[:, np.newaxis, np.newaxis] - np.einsum("ci,cj->cij", means, means)
    weights = people / people.sum()
    wider = np.clip(np.einsum("c,cii->", weights, found) / np.einsum("c,cii->", weights, drawn), 0.1, 10.0)
    beyond = found - wider * drawn
    variance = statistics.moment_sigma**2
    common = in_frames(np.tensordot(weights, beyond, axes=1), len(people) * variance / people.sum() ** 2)
    own = [in_frames(each - common, variance / count**2) for each, count in zip(beyond, people, strict=True)]
    return wider * drawn + common + np.stack(own)


def in_frames(matrix: Floats, variance: float) -> Floats:
    """A noisy covariance by frames: the entries of the first directions, then those of the next beside them.

    The first directions vary most, so that noise hides least of them. `variance`: of a diagonal entry's noise;
    off the diagonal it is half of that.
    """
    place = np.arange(len(matrix))
    frame = np.searchsorted(_FRAMES, np.maximum.outer(place, place), side="right")
    noise = variance * (0.5 + 0.5 * np.eye(len(matrix)))
    found = matrix.copy()
    for number in range(frame.max() + 1):
        inside = frame == number
        found[inside] = believed(matrix[inside], float(noise[inside].sum()))
    return found


def believed(matrix: Floats, noise: float) -> Floats:
    """Drawn towards zero by what noise of this squared length hides (positive-part James–Stein)."""
    length = float(np.square(matrix).sum())
    return matrix * max(0.0, 1.0 - noise / length) if length else matrix


def transport(drawn: Floats, wanted: Floats, *, floor: float = 0.0) -> Floats:
    """Q^−½ (Q^½ S Q^½)^½ Q^−½: the map of least effort from covariance Q to S.

    Both have `floor` more variance in each direction, so that directions with less than that keep their length.

    >>> bool(np.allclose(transport(np.eye(2), np.diag([4.0, 0.25])), np.diag([2.0, 0.5]), atol=0.05))
    True
    """
    more = (floor + _FLOOR * np.trace(drawn) / len(drawn)) * np.eye(len(drawn))
    root, inverse = _power(drawn + more, 0.5), _power(drawn + more, -0.5)
    found = inverse @ _power(root @ (wanted + more) @ root, 0.5) @ inverse
    values, vectors = np.linalg.eigh((found + found.T) / 2)
    bounded: Floats = (vectors * np.clip(values, 0.0, _FARTHEST)) @ vectors.T
    return bounded


def _power(matrix: Floats, power: float) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    positive = np.maximum(values, 1e-12 * max(values[-1], 1e-300))
    found: Floats = (
        vectors * (np.where(values > 0, positive, 0.0) if power > 0 else positive) ** power
    ) @ vectors.T
    return found
