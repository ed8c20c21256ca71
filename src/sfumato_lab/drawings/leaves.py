"""Scenes of nothing, in colour: leaves that fall on one another until they cover the page.

*Dead leaves* have much of the statistics of photographs: edges where one thing hides another, at every size
(Lee, Mumford & Huang, *Occlusion models for natural images*, 2001). Colours vary mostly in brightness, as light
does; each leaf has a gradient and a grating of its own. No photograph went into them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.randomness import public_generator

Floats = npt.NDArray[np.float32]

SIDE = 32
_LEAVES = 36
_BLOCK = 500  # scenes painted at a time
_SMALLEST, _LARGEST = 1.5, 20.0  # pixels, of radii whose squares' inverses are even: every size covers as much
_TOUCH = np.array([[0.26, 0.26, 0.26], [0.10, 0.0, -0.10], [-0.03, 0.06, -0.03]], dtype=np.float32)
"""Brightness, blue against yellow, green against magenta: how far each goes, in levels of red, green, blue."""


def draw(count: int, *, seed: int) -> npt.NDArray[np.uint8]:
    """`count` scenes (count, 3, 32, 32).

    >>> draw(3, seed=1).shape
    (3, 3, 32, 32)
    """
    return painted(count, _paint, seed=seed)


def painted(
    count: int, paint: Callable[[int, np.random.Generator], npt.NDArray[np.uint8]], *, seed: int
) -> npt.NDArray[np.uint8]:
    """`count` scenes, some at a time."""
    count = _validate.integer("count", count, least=1)
    generator = public_generator(seed)
    parts = [paint(min(_BLOCK, count - start), generator) for start in range(0, count, _BLOCK)]
    return np.concatenate(parts)


def _paint(count: int, generator: np.random.Generator) -> npt.NDArray[np.uint8]:
    scenes = colour(count, generator)[:, :, None, None] * np.ones((1, 1, SIDE, SIDE), dtype=np.float32)
    palette = colour(count, generator)  # leaves of a scene are under one light
    for _ in range(_LEAVES):
        inside, along = leaf(count, generator)
        tint = 0.5 * palette + 0.5 * colour(count, generator)
        shade = gradient_and_grating(along, generator)
        scenes += inside[:, None] * (tint[:, :, None, None] + shade[:, None] - scenes)
    soft = blurred(scenes, generator.random((count, 1, 1, 1), dtype=np.float32))
    noisy = soft + 0.015 * generator.standard_normal(soft.shape, dtype=np.float32)
    return np.rint(255 * np.clip(noisy, 0.0, 1.0)).astype(np.uint8)


def colour(count: int, generator: np.random.Generator) -> Floats:
    """(scenes, 3), about the middle."""
    found: Floats = 0.48 + generator.standard_normal((count, 3), dtype=np.float32) @ _TOUCH
    return found


def leaf(count: int, generator: np.random.Generator) -> tuple[Floats, tuple[Floats, Floats]]:
    """How much of each pixel the leaf covers, (scenes, 32, 32), and the leaf's own two axes there."""
    uniform = generator.random((6, count, 1, 1), dtype=np.float32)
    low, high = _LARGEST**-2, _SMALLEST**-2
    radius = (low + uniform[0] * (high - low)) ** -0.5
    length = radius * (1.0 + 2.0 * uniform[1] ** 2)
    angle = np.pi * uniform[2]
    places = np.arange(SIDE, dtype=np.float32) + 0.5
    x, y = places[None, None, :] - SIDE * uniform[3], places[None, :, None] - SIDE * uniform[4]
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    u, v = np.abs(along) / length, np.abs(across) / radius
    box = uniform[5] < 0.35
    distance = np.where(box, np.maximum(u, v), np.sqrt(u**2 + v**2))  # 1 at the edge
    inside = np.clip(0.5 + (1.0 - distance) * radius, 0.0, 1.0)
    return inside, (along, across)


def gradient_and_grating(axes: tuple[Floats, Floats], generator: np.random.Generator) -> Floats:
    """A gradient along the leaf, and for some a grating."""
    along, across = axes
    count = len(along)
    slope = 0.012 * generator.standard_normal((2, count, 1, 1), dtype=np.float32)
    strength = 0.12 * np.maximum(generator.random((count, 1, 1), dtype=np.float32) - 0.6, 0.0) / 0.4
    frequency = np.exp(generator.uniform(-1.2, 0.8, (count, 1, 1))).astype(np.float32)
    phase = generator.uniform(0, 2 * np.pi, (count, 1, 1)).astype(np.float32)
    found: Floats = slope[0] * along + slope[1] * across + strength * np.sin(frequency * across + phase)
    return found


def blurred(scenes: Floats, amount: Floats) -> Floats:
    """Between none and a quarter, half, quarter of three neighbours, both ways."""
    weight = 0.25 * amount
    for axis in (2, 3):
        padded = np.pad(scenes, [(1, 1) if place == axis else (0, 0) for place in range(4)], mode="edge")
        before = np.take(padded, range(SIDE), axis=axis)
        after = np.take(padded, range(2, SIDE + 2), axis=axis)
        scenes = (1 - 2 * weight) * scenes + weight * (before + after)
    return scenes
