"""Images drawn by code, which are no personal data, and the prior networks that learned from them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sfumato import plugins

TOGETHER = "strokes-together"
NETS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("strokes", "strokes-wide", "strokes-wild", "strokes-rare", "shapes")},
    TOGETHER: ("strokes", "strokes-wide", "strokes-rare"),
}
"""The networks of each prior: their features are joined, and they answer together."""


def prior_for(data: str) -> str:
    """Return the name of the prior that serves a data set best.

    Args:
        data: The name of the data set.

    Returns:
        A name of `NETS`.

    >>> prior_for("mnist")
    'strokes-together'
    """
    return "shapes" if data == "fashion-mnist" else TOGETHER


def draw(name: str, count: int, *, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw images with values from 0 to 1, and their classes.

    Args:
        name: strokes, strokes-wide, strokes-wild, strokes-rare or strokes-rarer (digits), shapes (things),
            leaves or landscapes (scenes in colour, all of class 0), or strokes-together, which draws the same
            share for each of its networks.
        count: How many.
        seed: Fixes them.

    Returns:
        Images (count, height, width), or (count, 3, height, width), and classes (count,).

    >>> draw("shapes", 34, seed=1)[0].shape
    (34, 28, 28)
    """
    parts = NETS.get(name, (name,))
    shares = [len(range(place, count, len(parts))) for place in range(len(parts))]
    source = plugins.part("drawings")
    drawn = [source.draw(part, share, seed=seed) for part, share in zip(parts, shares, strict=True)]
    images, labels = (np.concatenate(columns) for columns in zip(*drawn, strict=True))
    return images, labels
