"""Several views of one image, whose gradients are averaged before they are clipped: they count as one image."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.errors import InvalidInput

_MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


def moved_by_a_pixel(images: Tensor) -> Tensor:
    """Look at each image five times: as it is, and moved by a pixel up, down, left and right.

    What leaves on one side comes in on the other, so that images should have a margin.

    Args:
        images: (rows, …, height, width).

    Raises:
        InvalidInput: If rows have no height and width.

    Returns:
        (rows, 5, …, height, width), as `views` of `sfumato.train` and `PrivateTrainer.batches`.

    >>> moved_by_a_pixel(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 5, 1, 28, 28])
    """
    if images.dim() < 3:
        raise InvalidInput(
            f"expected images (rows, …, height, width) to move by a pixel, got shape {tuple(images.shape)}"
        )
    return torch.stack([images.roll(move, (-2, -1)) for move in _MOVES], dim=1)
