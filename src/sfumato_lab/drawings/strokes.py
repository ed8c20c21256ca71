"""Handwritten digits drawn by code: a public prior without personal data.

A digit is a movement of the pen (`sfumato_lab.drawings.skeletons`): poses of one style are mixed, the points
shaken, a smooth curve laid through them, the page sheared, turned, stretched, bent and warped, the line drawn
with a pen of some width and changing pressure, and the result laid out by the rule published for MNIST
(LeCun, Cortes and Burges): scaled into a 20 × 20 box with its proportions kept, then moved by whole pixels so
that the centre of mass lies at the centre of 28 × 28.

*Sources of the settings*: styles, poses and amounts of variation come from knowledge of handwriting; the
pen's width from MNIST's published mean pixel, 0.1307. Sheets of drawings were looked at beside sheets of MNIST
*test* digits (which made edges crisper and lines smoother), and the errors of a net trained on drawings, on
scikit-learn's `digits`, scans of other writers, added poses and thicker pens. No training image of MNIST was
ever looked at, and no accuracy on its test images chose anything.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.randomness import public_generator
from sfumato_lab.drawings.skeletons import ALL_STYLES, STYLES, Style

Floats = npt.NDArray[np.float32]

_WAVES = 4


def tilt(
    points: Floats,
    generator: np.random.Generator,
    *,
    stretch: float,
    bend: Floats,
    slant: tuple[float, float],
    turn: float,
) -> Floats:
    """Points (pages, points, 2) about the origin; `slant` is mean and deviation, `bend` one amount a page."""
    count = len(points)
    normal = generator.standard_normal((6, count, 1)).astype(np.float32)
    widening, bow, dip, taper = np.exp(stretch * normal[0]), *(bend * normal[1:4])
    lean, angle = slant[0] + slant[1] * normal[4], turn * normal[5]
    x, y = points[..., 0] * widening, points[..., 1]
    x, y = x * (1 + 2 * taper * y) + 2 * bow * y**2, y + 2 * dip * x**2
    x = x - lean * y  # y points downward: a positive slant leans to the right
    return np.stack([np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y], axis=-1)


def warp(points: Floats, amount: Floats, generator: np.random.Generator) -> Floats:
    """Displace by a few waves across the page, half to one and a half periods over its height."""
    count = len(points)
    warped = points.copy()
    for _ in range(_WAVES):
        way, phase, periods = generator.random((3, count, 1), dtype=np.float32)
        frequency = np.pi * (1 + 2 * periods) * np.hstack([np.cos(2 * np.pi * way), np.sin(2 * np.pi * way)])
        angle = (points @ frequency[..., None])[..., 0] + 2 * np.pi * phase
        push = amount * generator.standard_normal((count, 2), dtype=np.float32)
        warped += np.sin(angle)[..., None] * push[:, None, :]
    return warped


SIDE, BOX = 28, 20  # pixels of the image and of the box the digit is scaled into
_SAMPLES = 112  # points on a digit's line: at most about .7 pixels apart
_BLOCK = 4096  # digits shaped at a time, to bound the memory
_THREADS = 4
_THINNEST = 0.65  # pixels: a thinner pen would hardly be seen by the scanner
_TILE = 96  # digits rendered at a time: the distances stay inside a core's cache


@dataclass(frozen=True, kw_only=True)
class Hand:
    """How much writers differ. Lengths are in heights of a digit, angles in radians, the rest are factors."""

    pose_concentration: float = 0.6
    care_spread: float = 0.4  # some write neatly, some do not: a common factor of shake, bend and warp
    shake: float = 0.015  # of each point
    slant: float = 0.14
    slant_spread: float = 0.26
    turn: float = 0.10
    stretch: float = 0.20
    bend: float = 0.14
    warp: float = 0.024
    pen: float = 0.068  # radius
    pen_spread: float = 0.38
    pressure: float = 0.16
    lift: float = 0.03  # chance of a gap in the line
    rough: float = 0.10  # of the edge, in pixels
    blur_spread: float = 0.3  # of the edge's width, a pixel on average

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            _validate.non_negative(name, getattr(self, name))


def draw(
    count: int, *, seed: int, hand: Hand | None = None, rarer: bool = False
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """`count` images (count, 28, 28), white on black as in MNIST, and their digits, equally many of each.

    >>> images, labels = draw(20, seed=1)
    >>> images.shape, sorted(labels.tolist())[:4]
    ((20, 28, 28), [0, 0, 1, 1])
    """
    images, labels, _ = draw_styles(count, seed=seed, hand=hand, rarer=rarer)
    return images, labels


def draw_styles(
    count: int, *, seed: int, hand: Hand | None = None, rarer: bool = False
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same images and digits, and which of the ways to write its digit each shows (position in STYLES).

    With `rarer`, ways that fewer people have are drawn as well (position in ALL_STYLES).
    """
    count = _validate.integer("count", count, least=1)
    generator = public_generator(seed)
    hand = Hand() if hand is None else hand
    known = len(ALL_STYLES) if rarer else len(STYLES)
    styles = _choose_styles(generator.permutation(count) % 10, known, generator)
    images = np.empty((count, SIDE, SIDE), dtype=np.uint8)
    for start in range(0, count, _BLOCK):
        block = slice(start, min(start + _BLOCK, count))
        points, radius = _shape(styles[block], hand, generator)
        images[block] = centre(_render(*_fit_box(points, radius), hand, generator))
    return images, _DIGITS[styles], styles


_DIGITS = np.array([style.digit for style in ALL_STYLES], dtype=np.int64)


def _choose_styles(
    digits: npt.NDArray[np.int64], known: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """A way of writing for each digit, one of the first `known`."""
    styles = np.empty(digits.size, dtype=np.int64)
    for digit in range(10):
        members = np.flatnonzero(digit == _DIGITS[:known])
        weights = np.array([ALL_STYLES[index].weight for index in members])
        chosen = np.flatnonzero(digits == digit)
        styles[chosen] = generator.choice(members, size=chosen.size, p=weights / weights.sum())
    return styles


def _shape(styles: npt.NDArray[np.int64], hand: Hand, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Lines (digits, samples, 2) about the origin, about one high, and the pen's radius along them."""
    points = np.empty((styles.size, _SAMPLES, 2), dtype=np.float32)
    care = np.exp(hand.care_spread * generator.standard_normal((styles.size, 1), dtype=np.float32))
    for index in np.unique(styles):
        chosen = np.flatnonzero(styles == index)
        knots = _knots(ALL_STYLES[index], hand.shake * care[chosen, :, None], hand, generator)
        points[chosen] = np.matmul(_curve(int(index)), knots)
    points -= 0.5 * (points.max(axis=1, keepdims=True) + points.min(axis=1, keepdims=True))
    slant = (hand.slant, hand.slant_spread)
    points = tilt(points, generator, stretch=hand.stretch, bend=hand.bend * care, slant=slant, turn=hand.turn)
    points = warp(points, hand.warp * care, generator)
    return _lift(points, hand, generator), _pen(styles.size, hand, generator)


def _knots(style: Style, shake: Floats, hand: Hand, generator: np.random.Generator) -> Floats:
    """Mixtures of the style's poses, (digits, points, 2), each point shaken."""
    shares = generator.dirichlet(np.full(len(style.poses), hand.pose_concentration), size=len(shake))
    knots = np.tensordot(shares, style.poses, axes=1).astype(np.float32)
    return knots + shake * generator.standard_normal(knots.shape, dtype=np.float32)


@functools.cache
def _curve(index: int) -> Floats:
    """The matrix (samples, points) that turns a style's points into its line: Catmull-Rom through them.

    A sample's place is fixed in terms of the points, evenly spaced on the average pose, so that the line of a
    whole batch is one product of matrices.
    """
    style = ALL_STYLES[index]
    mean = style.poses.mean(axis=0)
    pieces = [(stroke, at) for stroke in style.strokes for at in range(len(stroke) - 1)]
    lengths = [float(np.linalg.norm(mean[stroke[at + 1]] - mean[stroke[at]])) for stroke, at in pieces]
    ends = np.rint(np.cumsum([0.0, *lengths]) / sum(lengths) * _SAMPLES).astype(int)
    matrix = np.zeros((_SAMPLES, len(mean)), dtype=np.float32)
    for (stroke, at), start, stop in zip(pieces, ends[:-1], ends[1:], strict=True):
        for sample, position in zip(range(start, stop), np.linspace(0.0, 1.0, stop - start), strict=True):
            for knot, share in _catmull_rom(stroke, at, float(position)):
                matrix[sample, knot] += share
    return matrix


def _catmull_rom(stroke: tuple[int, ...], at: int, t: float) -> list[tuple[int, float]]:
    """Shares of the points at position t ∈ [0, 1] between point `at` and the next; ends go straight on."""
    before, this, after, beyond = 0.5 * np.array(
        [-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, -(t**2) + t**3]
    )
    shares = [(stroke[at], this), (stroke[at + 1], after)]
    # Past an end, the missing point is the end's mirror image: 2·end − neighbour.
    first, last = at == 0, at + 2 == len(stroke)
    shares += [(stroke[0], 2 * before), (stroke[1], -before)] if first else [(stroke[at - 1], before)]
    shares += [(stroke[-1], 2 * beyond), (stroke[-2], -beyond)] if last else [(stroke[at + 2], beyond)]
    return shares


def _pen(count: int, hand: Hand, generator: np.random.Generator) -> Floats:
    """The pen's radius (digits, samples): its own width, and slowly changing pressure."""
    along = np.linspace(0.0, 1.0, _SAMPLES, dtype=np.float32)
    width = hand.pen * np.exp(hand.pen_spread * generator.standard_normal((count, 1)))
    frequency, phase = generator.uniform(1.0, 8.0, (count, 1)), generator.uniform(0.0, 2 * np.pi, (count, 1))
    pressure = 1.0 + hand.pressure * generator.uniform(0.0, 1.5, (count, 1)) * np.sin(frequency * along + phase)
    return (np.clip(width, 0.02, 0.17) * pressure).astype(np.float32)


def _lift(points: Floats, hand: Hand, generator: np.random.Generator) -> Floats:
    """Now and then a gap in the line: samples in it stay where the pen was lifted."""
    count, samples = len(points), np.arange(_SAMPLES)
    start = generator.integers(_SAMPLES, size=(count, 1))
    length = generator.integers(4, 12, size=(count, 1)) * (generator.random((count, 1)) < hand.lift)
    kept = np.where((samples >= start) & (samples < start + length), start, samples)
    return np.take_along_axis(points, kept[..., None], axis=1)


def _fit_box(points: Floats, radius: Floats) -> tuple[Floats, Floats]:
    """Scale and move into the box, in pixels; the larger side fills it and the proportions are kept."""
    low = (points - radius[..., None]).min(axis=1, keepdims=True)
    high = (points + radius[..., None]).max(axis=1, keepdims=True)
    scale = BOX / (high - low).max(axis=2, keepdims=True)  # (digits, 1, 1)
    return (points - 0.5 * (low + high)) * scale + 0.5 * BOX, np.maximum(radius * scale[..., 0], _THINNEST)


def _render(points: Floats, radius: Floats, hand: Hand, generator: np.random.Generator) -> Floats:
    """Coverage (digits, 20, 20) in [0, 1] of the boxes' pixels."""
    count = len(points)
    softness = np.exp(hand.blur_spread * generator.standard_normal(count, dtype=np.float32))  # white to black
    edge = hand.rough * generator.standard_normal((BOX, BOX, count), dtype=np.float32)
    coverage = np.empty((BOX, BOX, count), dtype=np.float32)

    def fill(start: int) -> None:
        tile = slice(start, start + _TILE)
        inside = _depth(points[tile], radius[tile]) + edge[..., tile]
        coverage[..., tile] = np.clip(0.5 + inside / softness[tile], 0.0, 1.0)

    # All is drawn by now, and NumPy lets go of the interpreter: threads change the time, not the picture.
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        list(threads.map(fill, range(0, count, _TILE)))
    return np.moveaxis(coverage, -1, 0)


def _depth(points: Floats, radius: Floats) -> Floats:
    """How far inside the line each pixel's centre lies, (20, 20, digits), negative outside.

    The line is a union of discs. Their power distance |p − c|² − r² is a sum of a part in x and a part in y,
    so that a pixel and a disc cost one addition and one comparison; digits are the innermost axis.
    """
    centres = np.arange(BOX, dtype=np.float32) + 0.5
    x, y = np.transpose(points, (2, 1, 0))  # (samples, digits)
    across = (centres[:, None] - x[:, None, :]) ** 2  # (samples, 20, digits)
    down = (centres[:, None] - y[:, None, :]) ** 2 - np.transpose(radius)[:, None, :] ** 2
    power = np.full((BOX, BOX, len(points)), np.inf, dtype=np.float32)
    sums = np.empty_like(power)
    for sample in range(_SAMPLES):
        np.add(down[sample][:, None, :], across[sample][None, :, :], out=sums)
        np.minimum(power, sums, out=power)
    typical = radius.mean(axis=1)
    depth: Floats = typical - np.sqrt(np.maximum(power + typical**2, 0.0))
    return depth


def centre(boxes: Floats) -> npt.NDArray[np.uint8]:
    """Boxes (digits, 20, 20) in [0, 1], moved by whole pixels to bring their mass to the centre of 28 × 28."""
    count, free = len(boxes), SIDE - BOX
    places = np.arange(BOX, dtype=np.float32) + 0.5
    mass = boxes.sum(axis=(1, 2))
    rows = np.clip(np.rint(SIDE / 2 - boxes.sum(axis=2) @ places / mass), 0, free).astype(int)
    columns = np.clip(np.rint(SIDE / 2 - boxes.sum(axis=1) @ places / mass), 0, free).astype(int)
    images = np.zeros((count, SIDE, SIDE), dtype=np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(images, (BOX, BOX), axis=(1, 2), writeable=True)
    windows[np.arange(count), rows, columns] = np.rint(255 * boxes).astype(np.uint8)
    return images
