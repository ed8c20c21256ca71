"""Memory for a chunk's large intermediate results, used again by the next chunk.

Patches and per-example gradients are large and short-lived. Asked of the system afresh for every chunk, their
pages cost up to a third of the whole step; a workspace keeps them. Outside of `lend`, `empty` is plain
`torch.empty`, so that rules remain pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor

_ALIGNMENT = 64


class Workspace:
    """A block of memory that hands out its parts one after the other."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._wanted = 0
        self._largest = 0  # what was wanted at one time, parts since returned included

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Within, `empty` takes from this block; afterwards everything taken is free again."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            wanted = max(self._wanted, self._largest)
            self._used = self._wanted = self._largest = 0
            if wanted > len(self._block):
                self._block = torch.empty(wanted, dtype=torch.uint8)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        self._wanted += room
        if self._used + room > len(self._block):
            return torch.empty(*shape, dtype=dtype)
        part = self._block[self._used : self._used + size]
        self._used += room
        return part.view(dtype).view(*shape)

    @contextmanager
    def returned(self) -> Iterator[None]:
        """What is taken within is free again afterwards."""
        used, wanted = self._used, self._wanted
        try:
            yield
        finally:
            self._largest = max(self._largest, self._wanted)
            self._used, self._wanted = used, wanted


_current: ContextVar[Workspace | None] = ContextVar("workspace", default=None)


def empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialised tensor of the type of `like`."""
    workspace = _current.get()
    if workspace is None or like.device.type != "cpu":
        return like.new_empty(*shape)
    return workspace.take(shape, like.dtype)


@contextmanager
def returned() -> Iterator[None]:
    """Within, `empty` takes memory that is free again afterwards."""
    workspace = _current.get()
    with nullcontext() if workspace is None else workspace.returned():
        yield
