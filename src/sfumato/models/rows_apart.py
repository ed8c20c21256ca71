"""Features of private rows whose bits depend on no other row.

Kernels choose their order of additions by shape: the last, shorter part of a batch is rounded otherwise, and a
row that leaves moves others into it. Features are therefore computed in blocks of one public height, the last
one padded, of a height at which public rows have the same bits at every place and in any company.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Compute = Callable[[Tensor], Tensor]
_HEIGHTS = (128, 64, 32, 16, 1)


@torch.no_grad()
def rows_apart(compute: Compute, rows: Tensor) -> Tensor:
    """Compute features of each row by itself, many at a time.

    Args:
        compute: Features of some rows, (rows, …) → (rows, …).
        rows: The rows, which may be private.

    Returns:
        The features, in the order of the rows.

    >>> rows_apart(torch.square, torch.tensor([[1.0], [2.0], [3.0]])).flatten().tolist()
    [1.0, 4.0, 9.0]
    """
    if not len(rows):
        return compute(rows)
    height = height_apart(compute, rows)
    missing = -len(rows) % height
    padded = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
    return torch.cat([compute(block) for block in torch.split(padded, height)])[: len(rows)]


@torch.no_grad()
def height_apart(compute: Compute, like: Tensor) -> int:
    """The largest height of blocks in which public rows have the same bits in any company, zeros among them.

    Args:
        compute: Features of some rows, (rows, …) → (rows, …).
        like: Rows, of which only shape and type count.

    Returns:
        The height.

    >>> height_apart(torch.square, torch.zeros(3, 1))
    128
    """
    return next(height for height in _HEIGHTS if height == 1 or _same_bits(compute, like, height))


def _same_bits(compute: Compute, like: Tensor, height: int) -> bool:
    """Return whether the result of a public row is independent of its position and of the rows beside it."""
    size = like.shape[1:]
    block = (torch.arange(height * size.numel()).reshape(height, *size) * 37 % 256 / 255).to(like.dtype)
    expected = compute(block)
    shifts = {1, 3, height // 2, height - 1}
    if not all(compute(block.roll(shift, 0)).equal(expected.roll(shift, 0)) for shift in shifts):
        return False
    alone = torch.zeros_like(block)
    alone[5] = block[5]
    return compute(alone)[5].equal(expected[5])
