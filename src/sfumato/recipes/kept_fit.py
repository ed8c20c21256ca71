"""What was learned from drawings alone, kept on this machine: it is public, always the same, and takes long.

A file is found again by everything it follows from: the settings, the source of drawings, networks and recipes
with their shipped weights, and the versions of PyTorch and NumPy. What cannot be read is made anew. Whoever
can write into the cache can change the features; they stay a function of one row each, so that no guarantee
rests on the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sfumato.datasets import cache as caches
from sfumato.errors import DataUnavailable

Fit = Mapping[str, Tensor]
_SOURCES = (  # packages and modules
    *("datasets", "models", "randomness.py"),
    *("recipes/features.py", "recipes/prior.py", "recipes/images/styles.py"),
)


def kept_fit(settings: str, make: Callable[[], Fit]) -> Fit:
    """Tensors that were made on this machine before, or now.

    Args:
        settings: All that they depend on, besides the source of drawings and networks.
        make: Makes them.

    Returns:
        The tensors by name.

    ```python
    fit = kept_fit(repr(recipe), lambda: fit_to_drawings(recipe))
    ```
    """
    versions = f"{torch.__version__} {np.__version__}"
    name = hashlib.sha256(f"{settings}\n{versions}\n{_source()}".encode()).hexdigest()
    path = caches.folder() / "fits" / f"{name[:32]}.safetensors"
    with suppress(OSError, SafetensorError):
        return safetensors.torch.load(path.read_bytes())
    made = {name: value.contiguous() for name, value in make().items()}
    with suppress(DataUnavailable):  # a cache that cannot be written only costs time
        caches.write(path, safetensors.torch.save(made))
    return made


@cache
def _source() -> str:
    """Of the code and weights that drawings and features come from."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        for place in _files(resources.files("sfumato").joinpath(source)):
            digest.update(hashlib.sha256(place.read_bytes()).digest())
    return digest.hexdigest()


def _files(place: resources.abc.Traversable) -> list[resources.abc.Traversable]:
    """A file itself, or all that are in a folder."""
    if place.is_file():
        return [place]
    found = sorted(place.iterdir(), key=lambda one: one.name)
    return [file for one in found if one.name != "__pycache__" for file in _files(one)]
