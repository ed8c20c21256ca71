"""Small grey pictures, one pixel a value; whoever shows them makes them larger."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.storage import write_whole

_GREYS = 31  # steps of grey: enough for the eye, and noise packs into fewer bytes


def tiles(maps: npt.NDArray[Any], *, across: int) -> npt.NDArray[np.float64]:
    """(maps, height, width) side by side, `across` in a row, a pixel of nothing (NaN) between them."""
    count, height, width = maps.shape
    down = -(-count // across)
    sheet = np.full((down * (height + 1) - 1, across * (width + 1) - 1), np.nan)
    for number, one in enumerate(maps):
        top, left = (number // across) * (height + 1), (number % across) * (width + 1)
        sheet[top : top + height, left : left + width] = one
    return sheet


def save_grey(values: npt.NDArray[Any], path: Path) -> None:
    """Values in [0, 1] as grey; where there is none (NaN) the picture is transparent."""
    from PIL import Image

    there = np.isfinite(values)
    steps = np.round(np.clip(np.where(there, values, 0.0), 0, 1) * _GREYS)
    grey = (steps * 255 / _GREYS).astype(np.uint8)
    picture = Image.fromarray(grey)
    if not there.all():
        alpha = Image.fromarray(np.where(there, 255, 0).astype(np.uint8))
        picture = Image.merge("LA", (picture, alpha))
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    write_whole(path, buffer.getvalue(), readable=True)
