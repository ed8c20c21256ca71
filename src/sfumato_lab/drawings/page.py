"""What happens to a page that a line was drawn on: it is stretched, bent, slanted, turned and warped."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
