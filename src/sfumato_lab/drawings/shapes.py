"""Shaded and patterned shapes drawn by code: a public prior for photographs of things, without personal data.

A kind of thing (`outlines`) is mixed from its poses, shaken, bent and warped, scaled so that
its longer side fills the image, and filled with a grey that changes slowly, with stripes, checks, grain, a line
down the front or a printed patch. The class is the kind.

*Sources of the settings*: outlines and patterns come from knowledge of clothes and of how Fashion-MNIST says it
was made (the longer side fills 28 pixels, grey on black); no image of it was looked at.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.randomness import public_generator
from sfumato_lab.drawings import strokes as page

Points = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One sort of thing. `front` is the chance of a line down the middle, `print` of a patch on it."""

    name: str
    loops: tuple[int, ...]  # points of each loop, in order
    poses: Points  # (poses, points, 2), the page's side is 1
    front: float = 0.0
    print: float = 0.1


def _parse(pose: str) -> list[list[tuple[float, float]]]:
    loops = [[tuple(map(float, point.split(","))) for point in loop.split()] for loop in pose.split("|")]
    return [[(x / 100, y / 100) for x, y in loop] for loop in loops]


def _kind(name: str, *poses: str, front: float = 0.0, print: float = 0.1) -> Kind:
    parsed = [_parse(pose) for pose in poses]
    points = np.array([[point for loop in pose for point in loop] for pose in parsed])
    return Kind(name=name, loops=tuple(map(len, parsed[0])), poses=points, front=front, print=print)


def _garment(name: str, *halves: str, front: float = 0.0, print: float = 0.1) -> Kind:
    """Both halves alike: the right one is given, from the neck to the hem, x from the middle."""
    whole = []
    for half in halves:
        right = [tuple(map(float, point.split(","))) for point in half.split()]
        left = [(-x, y) for x, y in reversed(right[1:-1])]
        whole.append(" ".join(f"{50 + x},{y}" for x, y in [*right, *left]))
    return _kind(name, *whole, front=front, print=print)


def _figure(name: str, *corners: int, inner: float = 1.0, hole: float = 0.0) -> Kind:
    """Regular figures of 24 points; `inner` draws the sides' middles in, `hole` cuts the same form out."""
    turn = 2 * np.pi * np.arange(24) / 24
    poses = []
    for count in corners:
        apart = 2 * np.abs((turn * count / (2 * np.pi) + 0.5) % 1.0 - 0.5)  # 0 at a corner, 1 between two
        polygon = np.cos(np.pi / count) / np.cos((1 - apart) * np.pi / count)
        radius = polygon if inner == 1.0 else 1.0 - (1.0 - inner) * apart
        ring = 0.5 + 0.48 * radius[:, None] * np.stack([np.sin(turn), -np.cos(turn)], axis=1)
        poses.append(np.concatenate([ring, 0.5 + hole * (ring[::-1] - 0.5)]) if hole else ring)
    return Kind(name=name, loops=(24, 24) if hole else (24,), poses=np.array(poses))


# fmt: off
_CLOTHES = (
    _garment(
        "t-shirt",
        "0,9 9,4 24,7 44,24 36,38 25,29 25,97 0,98",
        "0,12 12,3 26,6 46,30 36,40 26,30 27,96 0,97",
        "0,6 8,4 22,7 38,20 32,32 23,26 22,98 0,98",
        "0,14 11,3 25,5 42,40 33,45 25,32 26,98 0,97",
        print=0.4,
    ),
    _garment(
        "trouser",
        "0,2 17,2 21,30 22,64 20,98 8,98 5,64 0,32",
        "0,2 14,2 18,30 16,64 14,98 5,98 3,64 0,28",
        "0,2 18,2 24,30 28,64 32,98 12,98 8,64 0,36",
        "0,3 20,3 25,24 27,60 26,97 6,97 4,62 0,40",
        print=0.0,
    ),
    _garment(
        "pullover",
        "0,8 10,4 24,8 36,28 46,84 36,89 26,44 26,96 0,97",
        "0,6 9,3 22,7 34,26 40,92 31,94 25,42 24,97 0,98",
        "0,10 12,4 26,7 40,34 48,70 39,78 27,42 28,95 0,96",
        "0,3 9,1 24,9 36,32 43,88 34,91 26,46 27,93 0,94",
        print=0.3,
    ),
    _garment(
        "dress",
        "0,14 7,6 12,3 15,20 12,40 18,66 24,97 0,98",
        "0,10 8,4 20,8 19,26 14,40 18,68 22,98 0,98",
        "0,8 6,3 14,5 12,22 11,42 24,70 34,96 0,98",
        "0,16 6,4 10,2 13,22 13,42 14,70 15,98 0,98",
        "0,8 8,3 24,22 17,28 14,42 17,70 20,98 0,98",
    ),
    _garment(
        "coat",
        "0,6 10,3 23,7 34,26 41,78 32,81 25,42 27,97 0,98",
        "0,10 12,2 25,6 38,32 46,74 37,80 26,44 29,97 0,98",
        "0,5 9,2 22,7 31,24 36,84 28,86 23,40 24,98 0,98",
        front=0.8, print=0.05,
    ),
    _kind(
        "sandal",
        "4,68 22,56 42,48 60,34 82,24 94,40 96,72 94,84 60,82 30,87 4,85"
        "|52,74 46,58 30,66 26,74|84,68 78,36 62,46 62,72",
        "3,74 18,66 34,52 52,46 76,28 90,34 97,66 95,80 70,74 40,84 5,86"
        "|46,78 40,60 26,70 20,80|86,66 76,40 58,56 56,72",
        "4,60 14,50 36,52 58,28 70,10 84,14 94,50 96,90 78,80 50,78 8,76"
        "|48,70 40,58 26,60 22,70|80,64 74,26 62,40 60,68",
        print=0.0,
    ),
    _garment(
        "shirt",
        "0,12 10,3 24,8 36,28 45,82 36,86 26,42 26,97 0,98",
        "0,16 12,3 25,7 42,34 38,48 30,46 25,36 26,97 0,98",
        "0,10 8,2 22,8 34,30 40,90 32,92 24,44 25,98 0,98",
        "0,18 10,2 22,6 36,30 36,50 27,52 23,36 22,98 0,98",
        front=0.6, print=0.15,
    ),
    _kind(
        "sneaker",
        "3,66 10,54 30,50 48,38 62,32 80,38 95,34 97,62 96,74 50,76 5,76",
        "2,70 8,60 26,54 44,40 58,36 78,44 94,36 98,66 97,78 50,79 4,79",
        "4,64 14,50 34,48 50,34 66,26 82,30 94,26 97,60 97,75 50,76 6,76",
        print=0.2,
    ),
    _kind(
        "bag",
        "8,97 4,46 20,44 26,16 50,5 74,16 80,44 96,46 92,97|30,44 68,44 64,22 50,13 36,22",
        "10,92 10,30 28,30 34,12 50,8 66,12 72,30 90,30 90,92|36,30 62,30 60,18 50,14 40,18",
        "3,84 4,40 14,36 22,24 50,18 78,24 86,36 96,40 97,84|20,36 80,36 72,28 50,23 28,28",
        "12,98 6,60 16,56 18,18 50,2 82,18 84,56 94,60 88,98|22,56 78,56 76,22 50,8 24,22",
        print=0.3,
    ),
    _kind(
        "ankle boot",
        "4,82 12,68 36,56 48,40 46,6 86,4 89,48 94,84 93,96 62,93 50,96 4,95",
        "3,86 10,74 34,62 44,44 40,14 82,8 88,50 96,80 95,94 70,90 56,95 3,96",
        "5,76 16,62 40,52 52,32 52,2 88,2 90,40 92,82 92,97 66,88 56,93 5,93",
        print=0.1,
    ),
)
# fmt: on
_FIGURES = (
    _figure("triangle", 3),
    _figure("square", 4),
    _figure("disc", 24, 12, 8),
    _figure("star", 5, 6, inner=0.45),
    _figure("cross", 4, inner=0.3),
    _figure("ring", 24, 6, hole=0.55),
    _figure("frame", 4, 3, hole=0.6),
)
KINDS: tuple[Kind, ...] = _CLOTHES + _FIGURES


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
