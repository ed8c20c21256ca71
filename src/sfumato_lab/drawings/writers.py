"""How the writers differ from whom each prior of digits learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from sfumato import _validate
from sfumato.randomness import public_generator
from sfumato_lab.drawings import strokes
from sfumato_lab.drawings.strokes import Hand


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
        """Return the moved images (images, 1, side, side); pixels from outside are 0."""
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


WIDE = Hand(
    warp=0.034, shake=0.020, bend=0.18, slant_spread=0.32, turn=0.14, stretch=0.25, pen_spread=0.45,
    pressure=0.22, lift=0.05, blur_spread=0.4,
)  # fmt: skip
"""Writers who differ more than people do: features that hold for them hold for people."""

WILD = Hand(
    warp=0.046, shake=0.026, bend=0.23, slant_spread=0.38, turn=0.16, stretch=0.30, pen_spread=0.50,
    pressure=0.28, lift=0.08, blur_spread=0.5,
)  # fmt: skip
"""And some who differ more still."""


@dataclass(frozen=True, kw_only=True)
class Writers:
    """How digits are written, and how far each image is moved as a whole."""

    hand: Hand | None = None
    rarer: bool = False  # also ways to write a digit that fewer people have
    moved: tuple[float, float, float, float] | None = None  # turn, scale, shear, shift; None: not at all

    @property
    def moves(self) -> Moves | None:
        from sfumato_lab.drawings.writers import Moves  # needs PyTorch

        names = ("turn", "scale", "shear", "shift")
        return None if self.moved is None else Moves(**dict(zip(names, self.moved, strict=True)))

    def draw(self, count: int, *, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """`count` images (count, 28, 28) from 0 to 1, moved, and their digits.

        >>> images, digits = WRITERS["strokes-wide"].draw(20, seed=1)
        >>> images.shape, sorted(digits.tolist())[:4]
        ((20, 28, 28), [0, 0, 1, 1])
        """
        import torch

        levels, digits = strokes.draw(count, seed=seed, hand=self.hand, rarer=self.rarer)
        images, moves = levels.astype(np.float32) / 255, self.moves
        if moves is not None:
            images = moves.of(torch.from_numpy(images)[:, None], public_generator(seed))[:, 0].numpy()
        return images.clip(0.0, 1.0), digits


_FAR = (0.3, 0.25, 0.25, 3.0)
WRITERS: Mapping[str, Writers] = {
    "strokes": Writers(),
    "strokes-wide": Writers(hand=WIDE, moved=(0.175, 0.15, 0.15, 2.0)),
    "strokes-wild": Writers(hand=WILD, moved=_FAR),
    "strokes-rare": Writers(hand=WILD, moved=_FAR, rarer=True),
}
"""By the name of the prior that learned from them."""
