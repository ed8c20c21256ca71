"""The user's own images: a folder with one subfolder a class, or an .npz file with images and labels.

Each image is judged by itself and none can cause an error: one that cannot be read, or whose label is not
among the declared classes, is left out. Size and classes are declared, never counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.array_files import damaged_unless_read, read_archive
from sfumato.datasets.dataset import Dataset, Inputs, Visibility
from sfumato.datasets.images import resize
from sfumato.errors import DataUnavailable, InvalidInput

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".webp")
IMAGES, _LABELS = ("images", "inputs", "x", "X"), ("labels", "targets", "y")
_LARGEST = 8 * 2**30  # bytes of an .npz file's arrays
_WIDEST = 2**26  # values of one image, where a file has none


def read_images(
    path: str | Path,
    *,
    classes: Sequence[str],
    public_size: int | None,
    side: int = 28,
    visibility: Visibility = "private",
) -> Dataset:
    """Read your own images as a data set: grey, (examples, 1, side, side), values from 0 to 1.

    A folder holds a subfolder for each class, named as in `classes`. An .npz file holds `images` (examples,
    height, width) or (examples, height, width, colours) or (examples, colours, height, width), bytes or
    numbers in [0, 1], and `labels`, each spelled as in `classes`.

    Args:
        path: The folder or the .npz file.
        classes: The declared class names; a label is its position here.
        public_size: The declared number of units; None if it may not be known.
        side: The width and height that images are resized to.
        visibility: "private" or "public".

    Returns:
        The data set.

    Raises:
        DataUnavailable: If there is nothing at `path`.
        InvalidInput: If a class is not declared or images have another form.

    ```python
    rows = read_images("scans", classes=["healthy", "ill"], public_size=5000)
    ```
    """
    place = Path(path).expanduser()
    names = [str(name) for name in classes]
    if len(set(names)) != len(names) or len(names) < 2:
        raise InvalidInput(f"expected at least two classes with names of their own, got classes={names!r}")
    if place.is_dir():
        inputs, targets = _read_folder(place, names, side)
    elif place.is_file() and place.suffix == ".npz":
        inputs, targets = _read_npz(place, names, side)
    else:
        raise DataUnavailable(
            f"expected {place} to be a folder with one subfolder a class, or an .npz file of images and labels"
        )
    return Dataset(
        inputs=inputs,
        targets=targets,
        name=place.stem,
        visibility=visibility,
        classes=len(names),
        class_names=tuple(names),
        public_size=None if public_size is None else _validate.integer("public_size", public_size, least=1),
    )


def _read_folder(place: Path, names: Sequence[str], side: int) -> tuple[Inputs, npt.NDArray[np.int64]]:
    images, targets = [], []
    for target, name in enumerate(names):
        for file in sorted((place / name).glob("*")):
            if file.suffix.lower() not in ENDINGS:
                continue
            if (image := _picture(file, side)) is not None:
                images.append(image)
                targets.append(target)
    if not any((place / name).is_dir() for name in names):
        raise InvalidInput(
            f"expected {place} to have a subfolder for each class, named {', '.join(names)}; "
            "say the names with --classes a,b,c"
        )
    stacked = np.stack(images) if images else np.zeros((0, 1, side, side), np.float32)
    return stacked, np.array(targets, dtype=np.int64)


def _picture(file: Path, side: int) -> Inputs | None:
    """(1, side, side), grey. None, without a word: one person's broken file must not show itself in the run."""
    from PIL import Image

    with warnings.catch_warnings(), suppress(Exception):  # decoders raise errors of many kinds
        warnings.simplefilter("ignore")
        with Image.open(file) as picture:
            grey = np.asarray(picture.convert("L"), dtype=np.float32) / np.float32(255)
        return resize(grey[np.newaxis], side)
    return None


def _read_npz(place: Path, names: Sequence[str], side: int) -> tuple[Inputs, npt.NDArray[np.int64]]:
    with damaged_unless_read(f"expected {place} to be an .npz file of plain arrays; write it with numpy.savez"):
        content = read_archive(place, largest=_LARGEST, empty_width=_WIDEST)
    levels, labels = (content[key_among(content, keys, place)] for keys in (IMAGES, _LABELS))
    if labels.shape != levels.shape[:1] or levels.ndim not in (3, 4):
        raise InvalidInput(
            f"expected images (examples, height, width[, colours]) and one label each, got shapes "
            f"{levels.shape[1:]} and {labels.shape[1:]} a row"
        )
    if levels.dtype.kind not in "buif" or not all(levels.shape[1:]):
        raise InvalidInput(
            f"expected images of whole or real numbers with a height and a width, got {levels.dtype} of shape "
            f"{levels.shape[1:]} a row"
        )
    position = {name: target for target, name in enumerate(names)}
    targets = np.array([position.get(str(label), -1) for label in labels.tolist()], dtype=np.int64)
    known = targets >= 0
    return resize(_grey(levels[known])[:, np.newaxis], side), targets[known]


def _grey(levels: npt.NDArray[Any]) -> Inputs:
    """(examples, height, width) in [0, 1]; colours, wherever their axis is, are averaged."""
    scale = np.float32(255) if np.issubdtype(levels.dtype, np.integer) else np.float32(1)
    with np.errstate(all="ignore"):  # a warning would tell of one person's pixels
        values = np.clip(np.nan_to_num(levels.astype(np.float32) / scale), 0.0, 1.0)
    if values.ndim == 3:
        return values
    averaged: Inputs = values.mean(axis=3 if values.shape[3] in (1, 3, 4) else 1, dtype=np.float32)
    return averaged


def key_among(content: Any, names: Sequence[str], place: Path) -> str:
    """The first of the names that the archive has."""
    for name in names:
        if name in content:
            return name
    raise InvalidInput(f"expected {place} to hold an array named {' or '.join(names)}; rename it")
