"""A small variational autoencoder that learned from drawings alone: images as a few numbers, and back.

Its weights ship with the package in half precision, made by `sfumato prior`, and are checked against the digest
of their note before use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _validate
from sfumato.models.prior import shipped_note, shipped_weights

LATENTS = ("strokes-latents", "shapes-latents")
_CHUNK = 2000  # images at a time, to bound the memory
_PIXELS = 28 * 28


class Autoencoder(nn.Module):
    """28 × 28 grey images in [0, 1] ↔ `size` latents.

    An image's latents depend on that image alone. What the decoder gives lies in [0, 1].

    Args:
        size: How many latents an image has.
        hidden: The widths of the two hidden layers, that next to the image first.

    >>> net = Autoencoder(size=4, hidden=(16, 8)).eval()
    >>> net.decode(net.encode(torch.zeros(3, 1, 28, 28))).shape
    torch.Size([3, 1, 28, 28])
    """

    def __init__(self, *, size: int = 24, hidden: tuple[int, int] = (512, 256)) -> None:
        super().__init__()
        wide, narrow = hidden
        self.size, self.hidden = size, hidden
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(_PIXELS, wide), nn.ReLU(), nn.Linear(wide, narrow), nn.ReLU()
        )
        self.mean, self.log_variance = nn.Linear(narrow, size), nn.Linear(narrow, size)
        self.decoder = nn.Sequential(
            nn.Linear(size, narrow), nn.ReLU(), nn.Linear(narrow, wide), nn.ReLU(), nn.Linear(wide, _PIXELS)
        )

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the pixels (images, 784) from latents shaken by `noise`; their mean and log variance."""
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + noise * torch.exp(0.5 * log_variance)), mean, log_variance

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """(images, latents)."""
        parts = [self.mean(self.encoder(chunk)) for chunk in torch.split(images, _CHUNK)]
        return torch.cat(parts) if parts else torch.zeros(0, self.size)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """(images, 1, 28, 28) in [0, 1]."""
        parts = [torch.sigmoid(self.decoder(chunk)) for chunk in torch.split(latents, _CHUNK)]
        return (torch.cat(parts) if parts else torch.zeros(0, _PIXELS)).reshape(-1, 1, 28, 28)


def latents_note(name: str) -> dict[str, Any]:
    """How the weights were made: recipe, versions, digest; for certificates."""
    return shipped_note(_validate.one_of("name", name, LATENTS))


def load_latents(name: str) -> Autoencoder:
    """The autoencoder with the weights that ship with the package, in evaluation mode.

    Args:
        name: A name of `LATENTS`.

    Returns:
        The autoencoder, in single precision.

    Raises:
        DataCorrupted: If the weights do not have the digest of their note.

    >>> load_latents("strokes-latents").size
    24
    """
    return autoencoder_from(shipped_weights(_validate.one_of("name", name, LATENTS)))


def autoencoder_from(weights: dict[str, Tensor]) -> Autoencoder:
    """The autoencoder of these weights, whose shapes say its sizes."""
    hidden = len(weights["encoder.1.bias"]), len(weights["encoder.3.bias"])
    net = Autoencoder(size=len(weights["mean.bias"]), hidden=hidden)
    net.load_state_dict({name: value.float() for name, value in weights.items()})
    return net.eval()
