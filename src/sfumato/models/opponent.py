"""Scattering of opponent colours: brightness, red against green, yellow against blue.

Red, green and blue of a photograph are nearly the same image, and so are the moduli of their waves: edges
between colours of one brightness are lost in them. Opponent colours are less alike. Nothing here is learned.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidInput
from sfumato.models.scattering import ORIENTATIONS, SCALES, ScatteringCodes

_CHROMA = 3.0  # differences of colours are as much weaker than brightness
_OPPONENTS = ((1 / 3, 1 / 3, 1 / 3), (_CHROMA / 2, -_CHROMA / 2, 0.0), (_CHROMA / 4, _CHROMA / 4, -_CHROMA / 2))
_FIRST = SCALES * ORIENTATIONS  # channels of order 1, after the one of order 0
_BRIGHT, _WEAK, _FLAT = 1e-3, 1e-4, 1e-3  # added to averages of order 0, to waves, and to what is divided by
_ROOTS, _RELATIVE = "roots", "relative"
KINDS = (_ROOTS, _RELATIVE)


@final
class OpponentScattering(nn.Module):
    """(images, 3, side, side) → codes of the scattering of opponent colours, left as right.

    "roots" are √(S + 10⁻⁴) of orders 1 and 2, and √(S₀ + 10⁻³) of red, green and blue. "relative" codes say how
    waves are shared out, whatever the contrast: √ of S₁ over the mean of all S₁ of its place, of brightness and
    of its own colour, and √ of S₂ over the S₁ that it comes from; 10⁻³ is added to what is divided by, and
    3·10⁻⁴ to what is divided.

    Args:
        side: Height and width of the images, a multiple of 8.
        kind: "roots" or "relative".

    >>> OpponentScattering(side=16, kind="relative")(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 960])
    """

    opponents: Tensor  # (3, 3)
    colours: Tensor  # its inverse

    def __init__(self, *, side: int, kind: str) -> None:
        super().__init__()
        if kind not in KINDS:
            raise InvalidInput(f"expected kind to be one of {', '.join(KINDS)}, got kind={kind!r}")
        self.kind = kind
        self.codes = ScatteringCodes(side=side)
        opponents = torch.tensor(_OPPONENTS)
        self.register_buffer("opponents", opponents)
        self.register_buffer("colours", torch.linalg.inv(opponents))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        found = self.codes.averages(
            _mixed(self.opponents, images).contiguous(memory_format=torch.channels_last)
        )
        waves = found[:, :, 1:].clamp_min(0.0)
        if self.kind == _RELATIVE:
            return _relative(waves)
        bright = _mixed(self.colours, found[:, :, 0]).clamp_min_(0.0).add_(_BRIGHT).sqrt_()
        return torch.cat([bright.flatten(1), waves.add_(_WEAK).sqrt_().flatten(1)], dim=1)


def _mixed(matrix: Tensor, images: Tensor) -> Tensor:
    """Each pixel's three values times a matrix; products one by one, whose bits hang on no other pixel."""
    first, second, third = (images[:, None, place] * matrix[:, place, None, None] for place in range(3))
    return first + second + third


def _relative(waves: Tensor) -> Tensor:
    """Shares of order 1 and of order 2, from (images, colours, orders 1 and 2, squares, squares)."""
    first, second = waves[:, :, :_FIRST], waves[:, :, _FIRST:]
    fine = first[:, :, :ORIENTATIONS].unsqueeze(3)  # what waves of order 2 come from
    mean = first.mean(2, keepdim=True)
    shares = (first + 0.3 * _FLAT) / (mean + mean[:, :1] + _FLAT)
    within = (second.unflatten(2, (ORIENTATIONS, ORIENTATIONS)) + 0.3 * _FLAT) / (fine + _FLAT)  # type: ignore[no-untyped-call]
    return torch.cat([shares.sqrt_().flatten(1), within.sqrt_().flatten(1)], dim=1)
