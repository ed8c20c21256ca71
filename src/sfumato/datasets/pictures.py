"""Images to be answered: a folder, a NumPy file, or the public half of a data set; labels are not looked at."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.datasets.images import load, resize
from sfumato.datasets.own_images import ENDINGS, IMAGES, key_among
from sfumato.datasets.registry import DATASETS
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

_SIDE = 28  # to which pictures of several sizes are brought, as `read_images` does


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """Images (pictures, …) as a file has them, and the name of each: its file, or its number.

    Attributes:
        images: (pictures, …), as the file has them.
        names: The file's name of each picture, or its number.
    """

    images: npt.NDArray[Any]
    names: tuple[str, ...]


def read_pictures(place: str | Path) -> Pictures:
    """Read pictures without labels, to be predicted.

    Args:
        place: A folder of image files, with or without subfolders; an .npy or .npz file; or the name of a
            data set, whose test split is taken.

    Returns:
        The pictures and their names.

    >>> read_pictures("digits").images.shape
    (360, 1, 8, 8)
    """
    path = Path(place).expanduser()
    if str(place) in DATASETS:
        return _numbered(load(str(place), "test").inputs)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file() and path.suffix in (".npy", ".npz"):
        return _numbered(_from_file(path))
    known = ", ".join(DATASETS)
    raise DataUnavailable(
        f"expected a folder of images, an .npy or .npz file, or one of {known}, got {str(place)!r}"
    )


def _from_folder(path: Path) -> Pictures:
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
    if not files:
        raise InvalidInput(f"expected images ({', '.join(ENDINGS)}) in {path}, got none")
    images = np.stack([_picture(file) for file in files])
    return Pictures(images=images, names=tuple(str(file.relative_to(path)) for file in files))


def _picture(file: Path) -> npt.NDArray[np.float32]:
    """(1, side, side), grey: as `read_images` reads it for training."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as picture:
            grey = np.asarray(picture.convert("L"), dtype=np.float32) / np.float32(255)
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataCorrupted(f"expected an image at {file}, got a file that cannot be read as one") from error
    return resize(grey[np.newaxis], _SIDE)


def _from_file(path: Path) -> npt.NDArray[Any]:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            images: npt.NDArray[Any] = content[key_among(content, IMAGES, path)]
            return images
    except InvalidInput:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataCorrupted(
            f"expected {path} to hold plain arrays of images; write it with numpy.savez"
        ) from error


def _numbered(images: npt.NDArray[Any]) -> Pictures:
    if images.ndim < 1:
        raise InvalidInput("expected an array of images, got a single number")
    return Pictures(images=images, names=tuple(str(number) for number in range(len(images))))
