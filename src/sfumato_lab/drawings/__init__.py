"""Images drawn by code: digits, things and scenes that are no person's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato_lab.drawings import landscapes, leaves, shapes, strokes
from sfumato_lab.drawings.writers import WRITERS

__all__ = ["DRAWN", "draw"]

DRAWN: Mapping[str, Callable[..., Any]] = {
    **{name: writers.draw for name, writers in WRITERS.items()},
    "strokes-rarer": partial(strokes.draw, rarer=True),
    "shapes": shapes.draw,
    "leaves": leaves.draw,
    "landscapes": landscapes.draw,
}


def draw(name: str, count: int, *, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw images with values from 0 to 1, and their classes; see `sfumato.datasets.draw`."""
    drawn = DRAWN[_validate.one_of("drawings", name, DRAWN)](count, seed=seed)
    images, labels = drawn if isinstance(drawn, tuple) else (drawn, np.zeros(count, dtype=np.int64))
    return (images if images.dtype == np.float32 else images.astype(np.float32) / 255), labels
