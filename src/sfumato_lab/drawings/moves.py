"""Images moved as a whole: each turned, scaled, sheared and shifted by itself, at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sfumato import _validate


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How far images are moved at most; each amount is drawn evenly from ± its bound."""

    turn: float  # radians
    scale: float  # of each axis, as a share
    shear: float
    shift: float  # pixels

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            _validate.non_negative(name, getattr(self, name))

    def of(self, images: Tensor, generator: np.random.Generator) -> Tensor:
        """The images (images, 1, side, side), moved; what comes in from outside is 0."""
        maps = torch.from_numpy(self._maps(len(images), images.shape[-1], generator))
        grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)

    def _maps(self, count: int, side: int, generator: np.random.Generator) -> np.ndarray:
        """Affine maps (images, 2, 3) from places in the moved image to places in the first, both in [−1, 1]."""
        turn, wide, high, shear, right, down = generator.uniform(-1.0, 1.0, (6, count))
        turn, shear = self.turn * turn, self.shear * shear
        across, along = 1.0 + self.scale * wide, 1.0 + self.scale * high
        shift = 2.0 * self.shift / side
        rows = [
            [across * np.cos(turn), shear - np.sin(turn), shift * right],
            [np.sin(turn), along * np.cos(turn), shift * down],
        ]
        return np.moveaxis(np.array(rows, dtype=np.float32), -1, 0)
