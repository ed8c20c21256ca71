"""What was learned from drawings alone, kept on this machine: it is public, always the same, and takes long.

A file is found again by everything it follows from: the settings, the code of drawings, networks and recipes
with their shipped weights, and the versions of Python, PyTorch and NumPy. Code counts by its syntax tree, so
that other words in a docstring or a comment change nothing. What cannot be read is made anew. Whoever can
write into the cache can change the features; they stay a function of one row each, so that no guarantee rests
on the file.
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
    """Tensors that were made on this machine before, or now.

    Args:
        settings: All that they depend on, besides the source of drawings and networks.
        make: Makes them.
        fits: Whether tensors from a file can be what `make` makes; others are made anew.

    Returns:
        The tensors by name.

    ```python
    fit = kept_fit(repr(recipe), lambda: fit_to_drawings(recipe))
    ```
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
    """Of the code and weights that drawings and features come from."""
    digest = hashlib.sha256()
    ours = resources.files("sfumato")
    for source in (*map(ours.joinpath, _SOURCES), resources.files(plugins.part("drawings").__name__)):
        for place in _files(source):
            content = place.read_bytes()
            counted = code_of(content) if place.name.endswith(".py") else content
            digest.update(hashlib.sha256(counted).digest())
    return digest.hexdigest()


def code_of(source: bytes) -> bytes:
    """What a Python file does: its syntax tree, without texts that stand by themselves, as docstrings do.

    >>> code_of(b"def f():\\n    'Two.'\\n    return 2  # always") == code_of(b"def f(): return 2")
    True
    >>> code_of(b"def f(): return 2") == code_of(b"def f(): return 3")
    False
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name, statements in ast.iter_fields(node):
            if isinstance(statements, list):
                setattr(node, name, [one for one in statements if not _is_text(one)])
    return ast.dump(tree).encode()


def _is_text(statement: object) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def _files(place: resources.abc.Traversable) -> list[resources.abc.Traversable]:
    """A file itself, or all that are in a folder."""
    if place.is_file():
        return [place]
    found = sorted(place.iterdir(), key=lambda one: one.name)
    return [file for one in found if one.name != "__pycache__" for file in _files(one)]
