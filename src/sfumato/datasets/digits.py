"""The 1,797 handwritten digits inside scikit-learn: 8×8 pixels, 17 grey levels, no download."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from sfumato import randomness
from sfumato.errors import DataCorrupted

SIZES = {"train": 1437, "test": 360}
_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"  # images, then labels, a byte each
_SPLIT_SEED = 0


def read(split: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Grey levels (examples, 8, 8) and labels of one split.

    The rows lie writer by writer; a fixed public shuffle comes first, so that both splits hold all of them.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    _verify(images, labels)
    order = randomness.public_generator(_SPLIT_SEED).permutation(len(labels))
    rows = order[: SIZES["train"]] if split == "train" else order[SIZES["train"] :]
    return images[rows], labels[rows]


def _verify(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> None:
    found = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    if found != _SHA256:
        raise DataCorrupted(
            f"the digits inside scikit-learn have changed: expected SHA-256 {_SHA256}, got {found}; "
            "install the scikit-learn version that Sfumato names in its constraints"
        )
