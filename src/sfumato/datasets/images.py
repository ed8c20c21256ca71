"""Images by name, ready for a model."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.datasets import archive
from sfumato.datasets.dataset import Dataset, Inputs
from sfumato.datasets.registry import DATASETS, SPLITS, DatasetSpec, Split
from sfumato.errors import InvalidInput

_BLOCK = 1 << 16  # pixels scaled at a time, inside a core's cache
_OWN = "or an .npz file or a folder of images that is there; train on a table by its policy"


def load(name: str, split: Split = "train", *, side: int | None = None) -> Dataset:
    """A data set's train or test split: inputs float32 in [0, 1], (examples, channels, height, width).

    The train split is private unless drawn by code, the test split public.

    Args:
        name: A name of `DATASETS`.
        split: "train" or "test".
        side: Resize each image by itself to side×side; None leaves it.

    Returns:
        The data set, with its declared size and classes.

    Raises:
        DataUnavailable: If no source has the files.
        DataCorrupted: If a digest does not agree.

    >>> data = load("digits", "test")
    >>> data.shape, len(data), data.visibility
    ((1, 8, 8), 360, 'public')
    """
    spec = _spec(name)
    _validate.one_of("split", split, SPLITS)
    levels, labels = spec.read(split)
    inputs = scale(levels, brightest=spec.levels)
    if side is not None:
        inputs = resize(inputs, _validate.integer("side", side, least=1))
    return Dataset(
        inputs=inputs if inputs.ndim == 4 else inputs[:, np.newaxis],
        targets=labels.astype(np.int64),
        name=name,
        visibility="public" if split == "test" or spec.drawn else "private",
        classes=spec.classes,
        public_size=spec.public_size[split],
    )


def fetch(name: str) -> tuple[archive.LocalFile, ...]:
    """Bring the files of a data set to this machine and verify them.

    Args:
        name: A name of `DATASETS`.

    Returns:
        The verified files; none for a data set that a library holds or that is drawn.

    Raises:
        DataUnavailable: If no source has them.
        DataCorrupted: If a digest does not agree.

    >>> fetch("digits")
    ()
    """
    spec = _spec(name)
    return archive.fetch(spec.archive) if spec.archive else ()


def scale(levels: npt.NDArray[np.uint8], *, brightest: int) -> Inputs:
    """Grey levels as float32 in [0, 1].

    >>> scale(np.array([0, 64, 128, 255], dtype=np.uint8), brightest=256).tolist()
    [0.0, 0.25, 0.5, 0.99609375]
    """
    inputs = np.empty(levels.shape, dtype=np.float32)
    flat_levels, flat_inputs = levels.reshape(-1), inputs.reshape(-1)
    for start in range(0, levels.size, _BLOCK):
        block = flat_inputs[start : start + _BLOCK]
        block[:] = flat_levels[start : start + _BLOCK]
        block /= np.float32(brightest)
    return inputs


def resize(images: Inputs, side: int) -> Inputs:
    """Square or oblong images (…, height, width) made side×side by bilinear interpolation, each by itself.

    Args:
        images: (…, height, width).
        side: The new height and width, in pixels.

    Returns:
        (…, side, side).

    >>> resize(np.ones((5, 1, 8, 8), np.float32), 4).shape
    (5, 1, 4, 4)
    """
    height, width = images.shape[-2:]
    resized = _interpolation(height, side) @ images @ _interpolation(width, side).T
    return resized.astype(np.float32, copy=False)


def to_shape(images: Inputs, shape: tuple[int, int, int]) -> Inputs:
    """Images (examples, channels, height, width) as (channels, side, side), each made by itself.

    Channels are averaged where one is wanted. Raises `InvalidInput` where other channels are wanted than there
    are.

    >>> to_shape(np.ones((2, 3, 8, 9), np.float32), (1, 28, 28)).shape
    (2, 1, 28, 28)
    """
    channels, height, width = shape
    if images.ndim != 4 or images.shape[1] != channels != 1 or height != width:
        raise InvalidInput(
            f"expected images (channels, height, width) with {channels} channels, got shape {images.shape[1:]}"
        )
    found = images.mean(axis=1, keepdims=True) if images.shape[1] != channels else images
    if found.shape[2:] != (height, width):
        found = resize(found, height)
    return np.ascontiguousarray(found, dtype=np.float32)


def _interpolation(old: int, new: int) -> Inputs:
    """(new, old): each row blends the two old pixels whose centres lie around the new pixel's centre."""
    weights = np.zeros((new, old), dtype=np.float32)
    for row in range(new):
        centre = min(max((row + 0.5) * old / new - 0.5, 0.0), old - 1.0)
        left = math.floor(centre)
        right = min(left + 1, old - 1)
        weights[row, left] += 1.0 - (centre - left)
        weights[row, right] += centre - left
    return weights


def _spec(name: str) -> DatasetSpec:
    return DATASETS[_validate.one_of("name", name, DATASETS, remedy=_OWN)]
