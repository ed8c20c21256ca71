"""Outlines of things as people know them: clothes, shoes, bags, and plain figures.

A *kind* is one sort of thing, given by closed loops of straight lines; a loop that runs the other way round is
a hole. Poses of a kind have the same points, so that any mixture of them is of that kind too. The page is
100 × 100, x to the right and y downward.

No image went into this file. The first ten kinds are in the order of Fashion-MNIST's published list of labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
