"""A sheet of images: one row of them for each class."""

from __future__ import annotations

import io

import numpy as np

from sfumato_lab.images.styles import Images, Integers

_COLUMNS, _ZOOM = 20, 2


def sheet_bytes(images: Images, labels: Integers, *, classes: int) -> bytes:
    """A PNG with the first images of each class, a class a row."""
    from PIL import Image

    side = images.shape[1]
    sheet = np.zeros((classes * side, _COLUMNS * side), dtype=np.uint8)
    for label in range(classes):
        for column, image in enumerate(images[labels == label][:_COLUMNS]):
            sheet[label * side : (label + 1) * side, column * side : (column + 1) * side] = image
    content = io.BytesIO()
    Image.fromarray(sheet.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)).save(content, format="PNG")
    return content.getvalue()
