"""Shaded and patterned shapes drawn by code: a public prior for photographs of things, nobody's data.

A kind of thing (`outlines`) is mixed from its poses, shaken, bent and warped, scaled so that
its longer side fills the image, and filled with a grey that changes slowly, with stripes, checks, grain, a line
down the front or a printed patch. The class is the kind.

*What was tuned on what*: outlines and patterns come from knowledge of clothes and of how Fashion-MNIST says it
was made (the longer side fills 28 pixels, grey on black); no image of it was looked at.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.randomness import public_generator
from sfumato_lab.drawings import page
from sfumato_lab.drawings.outlines import KINDS, Kind

Floats = npt.NDArray[np.float32]

SIDE = 28
CLASSES = len(KINDS)
_VERTICES = 64  # of an outline once it is warped
_FINE = 3  # rows of the scan in a pixel
_BLOCK = 1024  # shapes at a time, to bound the memory


def draw(count: int, *, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """`count` images (count, 28, 28), grey on black, and their kinds, equally many of each.

    >>> images, labels = draw(34, seed=1)
    >>> images.shape, sorted(labels.tolist())[:4]
    ((34, 28, 28), [0, 0, 1, 1])
    """
    count = _validate.integer("count", count, least=1)
    generator = public_generator(seed)
    labels = generator.permutation(count).astype(np.int64) % CLASSES
    images = np.empty((count, SIDE, SIDE), dtype=np.uint8)
    for start in range(0, count, _BLOCK):
        block = slice(start, min(start + _BLOCK, count))
        starts, ends = _edges(labels[block], generator)
        images[block] = np.rint(255 * _fill(starts, ends) * _shade(labels[block], generator)).astype(np.uint8)
    return images, labels


def _edges(labels: npt.NDArray[np.int64], generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Both ends, (shapes, vertices, 2), of every edge of the outlines, in pixels."""
    points = np.empty((labels.size, _VERTICES, 2), dtype=np.float32)
    following = np.empty((labels.size, _VERTICES), dtype=np.int64)
    for label in np.unique(labels):
        chosen = np.flatnonzero(labels == label)
        matrix, order = _polygon(KINDS[label])
        points[chosen] = matrix @ _corners(KINDS[label], chosen.size, generator)
        following[chosen] = order
    care = np.exp(0.4 * generator.standard_normal((labels.size, 1), dtype=np.float32))
    points -= 0.5
    points = page.tilt(points, generator, stretch=0.15, bend=0.06 * care, slant=(0.0, 0.04), turn=0.04)
    points = _fit(page.warp(points, 0.008 * care, generator))
    return points, np.take_along_axis(points, following[..., None], axis=1)


def _corners(kind: Kind, count: int, generator: np.random.Generator) -> Floats:
    shares = generator.dirichlet(np.full(len(kind.poses), 0.7), size=count)
    corners = np.tensordot(shares, kind.poses, axes=1)
    return (corners + 0.012 * generator.standard_normal(corners.shape)).astype(np.float32)


def _polygon(kind: Kind) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The matrix (vertices, corners) that lays vertices evenly along the loops, and each vertex's follower."""
    mean = kind.poses.mean(axis=0)
    firsts = np.cumsum([0, *kind.loops])
    corner = np.arange(len(mean))
    after = corner + 1
    after[firsts[1:] - 1] = firsts[:-1]
    lengths = np.linalg.norm(mean[after] - mean, axis=1)
    counts = 1 + np.floor((_VERTICES - len(mean)) * lengths / lengths.sum()).astype(int)
    counts[np.argmax(lengths)] += _VERTICES - counts.sum()
    matrix = np.zeros((_VERTICES, len(mean)), dtype=np.float32)
    order = np.arange(1, _VERTICES + 1)
    ends = np.cumsum(counts)
    for at, (stop, number) in enumerate(zip(ends, counts, strict=True)):
        share = np.arange(number) / number
        matrix[stop - number : stop, at] += 1 - share
        matrix[stop - number : stop, after[at]] += share
    for first, last in itertools.pairwise(firsts):
        order[ends[last - 1] - 1] = ends[first] - counts[first]  # a loop ends where it began
    return matrix, order


def _fit(points: Floats) -> Floats:
    low, high = points.min(axis=1, keepdims=True), points.max(axis=1, keepdims=True)
    scale = SIDE / (high - low).max(axis=2, keepdims=True)
    return (points - 0.5 * (low + high)) * scale + 0.5 * SIDE


def _fill(starts: Floats, ends: Floats) -> Floats:
    """Coverage (shapes, 28, 28) of the pixels, by scan lines.

    Where an edge crosses a scan line at x, everything to its right changes sides: 1 − frac(x) of the pixel it
    falls into and all of the next ones. So each crossing adds to two pixels, and a running sum fills the line.
    """
    count, rows = len(starts), SIDE * _FINE
    lines = (np.arange(rows, dtype=np.float32) + 0.5) / _FINE
    passed = starts[..., 1, None] <= lines  # (shapes, vertices, rows)
    shape, edge, row = np.nonzero(passed != (ends[..., 1, None] <= lines))
    (x0, y0), (x1, y1) = starts[shape, edge].T, ends[shape, edge].T
    x = np.clip(x0 + (lines[row] - y0) * (x1 - x0) / (y1 - y0), 0.0, SIDE)
    way = np.where(passed[shape, edge, row], 1.0, -1.0)
    pixel = np.floor(x).astype(np.int64)
    place = (shape * rows + row) * (SIDE + 2) + pixel
    total = count * rows * (SIDE + 2)
    change = np.bincount(place, way * (pixel + 1 - x), total) + np.bincount(place + 1, way * (x - pixel), total)
    winding = np.abs(change.reshape(count, rows, SIDE + 2).cumsum(axis=2)[..., :SIDE])
    coverage = np.minimum(winding, 1.0).reshape(count, SIDE, _FINE, SIDE).mean(axis=2)
    return coverage.astype(np.float32)


def _shade(labels: npt.NDArray[np.int64], generator: np.random.Generator) -> Floats:
    """Grey levels (shapes, 28, 28) in [0, 1]: a tone, its slow change, a pattern, a front line, a patch."""
    count = labels.size
    axis = (np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE - 0.5
    x, y = axis[None, None, :], axis[None, :, None]

    def each(low: float, high: float) -> Floats:
        return generator.uniform(low, high, (count, 1, 1)).astype(np.float32)

    def some(chance: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        return generator.random((count, 1, 1)) < np.reshape(chance, (-1, 1, 1))

    tone = each(0.25, 1.0) + each(-0.5, 0.5) * x + each(-0.4, 0.4) * y
    folds = each(0.0, 0.15) * np.sin(each(2, 14) * x + each(-10, 10) * y + each(0, 6.3))
    sides = each(0.0, 0.8) * (x**2 + each(0, 1) * y**2)  # light falls off towards the edges
    stripes = np.sin(each(15, 60) * np.where(some(0.6), y, x) + each(0, 6.3)) * some(0.25)
    checks = np.sin(each(15, 45) * y) * np.sin(each(15, 45) * x) * some(0.12)
    grain = generator.standard_normal((count, SIDE, SIDE), dtype=np.float32) * each(0.0, 0.08)
    shade = tone + folds - sides + each(0.05, 0.4) * (stripes + checks) + grain
    front = np.abs(x - each(-0.03, 0.03)) < each(0.015, 0.05)
    shade += np.where(front & some([KINDS[label].front for label in labels]), each(-0.5, 0.4), 0.0)
    patch = (np.abs(x - each(-0.1, 0.1)) < each(0.05, 0.2)) & (np.abs(y - each(-0.2, 0.1)) < each(0.04, 0.2))
    shade += np.where(patch & some([KINDS[label].print for label in labels]), each(-0.6, 0.6), 0.0)
    return np.clip(shade, 0.04, 1.0).astype(np.float32)
