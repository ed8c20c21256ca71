"""A linear head on features that cost no privacy: they were drawn, designed, or learned from drawings.

Only the head learns from people's data. It is convex and small, so that little noise goes far (Tramèr & Boneh,
*Differentially Private Learning Needs Better Features*, 2021, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

_CHUNK = 128  # images at a time: their maps stay in the cache


class FeatureClassifier(nn.Module):
    """Images → features of unit length → `head`, which starts at zero.

    Each extractor's answer is brought to unit length, averaged over small shifts of the image, joined to the
    others', and `centre`, a public mean, taken off before the whole is brought to unit length again: a common
    part of all features would only use up the clipping norm. `shifts` are (down, right) in pixels. An image's
    features depend on that image alone.
    """

    centre: Tensor

    def __init__(
        self, extractors: Sequence[nn.Module], *, classes: int, shifts: Sequence[tuple[int, int]] = ((0, 0),)
    ) -> None:
        super().__init__()
        self.extractors = nn.ModuleList(extractors).eval().requires_grad_(False)
        self.shifts = tuple(shifts)
        with torch.no_grad():
            size = self._joined(torch.zeros(1, 1, 28, 28)).shape[1]
        self.register_buffer("centre", torch.zeros(size))
        self.head = nn.Linear(size, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """(images, features), each row of L2 norm 1, computed a few images at a time."""
        rows = [self._joined(chunk) for chunk in images.split(_CHUNK)] or [self._joined(images)]
        return functional.normalize(torch.cat(rows) - self.centre, dim=1)

    @torch.no_grad()
    def centre_on(self, images: Tensor) -> None:
        """Take the mean of these images' features as the centre; they must be public."""
        self.centre.zero_()
        self.centre.copy_(torch.cat([self._joined(chunk) for chunk in images.split(_CHUNK)]).mean(0))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    def _joined(self, images: Tensor) -> Tensor:
        total: Tensor | None = None
        for shift in self.shifts:
            moved = _moved(images, shift).contiguous(memory_format=torch.channels_last)
            parts = [functional.normalize(part(moved).flatten(1), dim=1) for part in self.extractors]
            joined = torch.cat(parts, dim=1)
            total = joined if total is None else total + joined
        assert total is not None
        return total


def _moved(images: Tensor, shift: tuple[int, int]) -> Tensor:
    """Images moved by whole pixels, black coming in at the edges."""
    down, right = shift
    if not (down or right):
        return images
    return functional.pad(images, (right, -right, down, -down))
