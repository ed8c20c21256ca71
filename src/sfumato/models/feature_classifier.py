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

    Each extractor's answer is brought to unit length and joined to the others'. `centre`, a public mean, is
    taken off: a common part of all features would only use up the clipping norm. With `directions` the rest is
    projected on that many principal directions of public images, each weighed by its variance to the power
    −¼: noise has fewer places to go to, and steps are as long where features vary little (a preconditioner
    that costs nothing). The whole is brought to unit length again. An image's features depend on that image,
    and on public ones, alone.

    Args:
        extractors: Networks that turn images into features; they are not trained.
        classes: How many outputs there are.
        directions: How many principal directions of public images are kept; None keeps all features.

    >>> net = FeatureClassifier([nn.Flatten()], classes=10)
    >>> net.fit_to(torch.rand(20, 1, 28, 28))  # public images
    >>> net(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 10])
    """

    centre: Tensor
    directions: Tensor | None

    def __init__(self, extractors: Sequence[nn.Module], *, classes: int, directions: int | None = None) -> None:
        super().__init__()
        self.extractors = nn.ModuleList(extractors).eval().requires_grad_(False)
        with torch.no_grad():
            size = self._joined(torch.zeros(1, 1, 28, 28)).shape[1]
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("directions", None if directions is None else torch.eye(size, directions))
        self.head = nn.Linear(directions or size, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """(images, features), each row of L2 norm 1, computed a few images at a time."""
        rows = [self._projected(self._joined(chunk)) for chunk in torch.split(images, _CHUNK)]
        return torch.cat(rows or [self._projected(self._joined(images))])

    @torch.no_grad()
    def fit_to(self, images: Tensor) -> None:
        """Take centre and directions from these images, which must be public."""
        rows = torch.cat([self._joined(chunk) for chunk in torch.split(images, _CHUNK)])
        self.centre.copy_(rows.mean(0))
        if self.directions is not None:
            self.directions.copy_(_weighed_directions(rows - self.centre, self.directions.shape[1]))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    def _joined(self, images: Tensor) -> Tensor:
        laid_out = images.contiguous(memory_format=torch.channels_last)
        parts = [functional.normalize(part(laid_out).flatten(1), dim=1) for part in self.extractors]
        return torch.cat(parts, dim=1)

    def _projected(self, rows: Tensor) -> Tensor:
        centred = rows - self.centre
        return functional.normalize(centred if self.directions is None else centred @ self.directions, dim=1)


def _weighed_directions(rows: Tensor, count: int) -> Tensor:
    """(features, count): principal directions of centred rows, times (variance share + 10⁻⁴)^−¼."""
    few = len(rows) < rows.shape[1]
    gram = rows @ rows.T if few else rows.T @ rows
    values, vectors = torch.linalg.eigh(gram.double())
    values, vectors = values.flip(0)[:count].clamp_min(1e-12).float(), vectors.flip(1)[:, :count].float()
    if few:  # from directions among the rows to directions among the features
        vectors = functional.normalize(rows.T @ vectors, dim=0)
    return vectors * (values / values[0] + 1e-4).pow(-0.25)
