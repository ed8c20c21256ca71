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
_SLAB = (
    64 << 20
)  # bytes; the system takes back what is so large when it is freed, and gives pages as they are used


class Workspace:
    """Slabs of memory that hand out their parts one after the other."""

    def __init__(self) -> None:
        self.slabs: list[Tensor] = []
        self._at = 0, 0  # the slab, and the bytes of it that are taken

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Within, `empty` takes from these slabs; afterwards everything taken is free again."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._at = 0, 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        slab, used = self._at
        while slab < len(self.slabs) and used + room > len(self.slabs[slab]):
            slab, used = slab + 1, 0
        if slab == len(self.slabs):
            self.slabs.append(torch.empty(max(_SLAB, room), dtype=torch.uint8))
        self._at = slab, used + room
        return self.slabs[slab][used : used + size].view(dtype).view(*shape)

    @contextmanager
    def returned(self) -> Iterator[None]:
        """What is taken within is free again afterwards."""
        before = self._at
        try:
            yield
        finally:
            self._at = before


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
