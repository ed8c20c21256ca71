"""Several prior nets as one: their features joined, under one linear head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from sfumato.models.prior import PriorNet


class JoinedPriors(nn.Module):
    """Images → the features of all nets, of length 1 together → `linear`.

    Args:
        nets: The nets; they share nothing.
        classes: How many outputs there are.

    >>> joined = JoinedPriors([PriorNet(), PriorNet()], classes=10)
    >>> joined.features(torch.zeros(3, 1, 28, 28)).shape
    torch.Size([3, 1152])
    """

    architecture = "joined priors"

    def __init__(self, nets: Sequence[PriorNet], *, classes: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.linear = nn.Linear(PriorNet.feature_count * len(nets), classes)

    @classmethod
    def of(cls, nets: Sequence[PriorNet], *, classes: int) -> JoinedPriors:
        """The head is the mean of the nets' own linear ones, for their first `classes` outputs."""
        joined, scale = cls(nets, classes=classes), len(nets) ** -0.5
        with torch.no_grad():
            joined.linear.weight.copy_(scale * torch.cat([net.linear.weight[:classes] for net in nets], dim=1))
            joined.linear.bias.copy_(torch.stack([net.linear.bias[:classes] for net in nets]).mean(0))
        return joined

    def features(self, images: Tensor) -> Tensor:
        """(images, 576 of each net), each row of length 1."""
        parts = [cast(PriorNet, net).features(images) for net in self.nets]
        return len(parts) ** -0.5 * torch.cat(parts, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.features(images))
        return logits
