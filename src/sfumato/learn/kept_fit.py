"""A cache of tensors learned from drawings alone: public, always the same, slow to make.

A file is named by everything it follows from: the settings, the source of drawings, networks and recipes with
their shipped weights, and the versions of Python, PyTorch and NumPy. Comments and layout of the source do not
count. A file that cannot be read is made anew. A changed cache can change the features; they stay a function
of one row each, so that no guarantee rests on it.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sfumato import plugins
from sfumato.datasets import archive as caches
from sfumato.errors import DataUnavailable

Fit = Mapping[str, Tensor]
_SOURCES = ("datasets", "models", "randomness.py", "learn/features.py")  # packages and modules


def kept_fit(settings: str, make: Callable[[], Fit], *, fits: Callable[[Fit], bool] = lambda kept: True) -> Fit:
    """Return tensors by name, from the cache or made now.

    Args:
        settings: All that they depend on, besides the source of drawings and networks.
        make: Makes them.
        fits: Whether tensors from a file can be those of `make`; others are made anew.

    Returns:
        The tensors.
    """
    versions = f"{sys.version_info[:2]} {torch.__version__} {np.__version__}"
    name = hashlib.sha256(f"{settings}\n{versions}\n{_source()}".encode()).hexdigest()
    path = caches.folder() / "fits" / f"{name[:32]}.safetensors"
    with suppress(OSError, SafetensorError):
        kept = safetensors.torch.load(path.read_bytes())
        if fits(kept):
            return kept
    made = {name: value.contiguous() for name, value in make().items()}
    with suppress(DataUnavailable):  # a cache that cannot be written only costs time
        caches.write(path, safetensors.torch.save(made))
    return made


@cache
def _source() -> str:
    """Return the digest of the code and weights that drawings and features come from."""
    digest = hashlib.sha256()
    ours = resources.files("sfumato")
    for source in (*map(ours.joinpath, _SOURCES), resources.files(plugins.part("drawings").__name__)):
        for place in _files(source):
            content = place.read_bytes()
            code = ast.dump(ast.parse(content)).encode() if place.name.endswith(".py") else content
            digest.update(hashlib.sha256(code).digest())
    return digest.hexdigest()


def _files(place: resources.abc.Traversable) -> list[resources.abc.Traversable]:
    """Return a file itself, or all files of a folder."""
    if not place.is_dir():
        return [place] if place.is_file() else []
    found = sorted(place.iterdir(), key=lambda one: one.name)
    return [file for one in found if one.name != "__pycache__" for file in _files(one)]
