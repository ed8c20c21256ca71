"""Codes of small patches: features of images in colour that were learned from drawn scenes, without labels.

Coates & Ng, *The importance of encoding versus training with sparse coding and vector quantization* (2011): a
dictionary of whitened patches, a soft threshold, sums over parts of the image. It takes in no label and no
photograph: dictionary and whitening come from scenes drawn by code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import _validate, randomness

SIZE = 6  # pixels of a patch's side
_CHANNELS = 3
_FLAT = 100 / 255**2  # variance that is added to a patch's: flat ones say little
_WHITENING = 0.05  # added to the variances of contrast-normalised patches
_THRESHOLD = 0.5  # in deviations of a code on the drawn patches
_REGIONS = 3
_ROUNDS = 12  # of k-means
_SAMPLED = 60_000  # patches that the dictionary is learned from
_CHUNK = 8  # images at a time: their maps stay in the cache


class PatchCodes(nn.Module):
    """(images, 3, side, side) → (images, 18·patches): how much of each patch, and of its negative, is where.

    A patch of the image is contrast-normalised, p̂ = (p − mean)/√(variance + 100/255²), and whitened. With c one
    of the dictionary, the codes are relu(±c·p̂ − t), averaged over 3 × 3 regions. The dictionary has the mirror
    image of each patch too, so that the codes of a mirrored image are the same in another order: the average
    over both is half a sum, and an image and its mirror image have the same features. Square roots of averages
    are given, which are more even than averages.

    Args:
        patches: How many patches the dictionary has, beside their mirror images.

    >>> PatchCodes(patches=4)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 72])
    """

    filters: Tensor  # (2·patches, 3, 6, 6), each of sum zero, the mirror images last

    def __init__(self, *, patches: int = 320) -> None:
        super().__init__()
        self.patches = _validate.integer("patches", patches, least=1)
        self.register_buffer("filters", torch.zeros(2 * patches, _CHANNELS, SIZE, SIZE))

    @torch.no_grad()
    def fit_to(self, images: Tensor) -> None:
        """Learn whitening and dictionary from these images, which must be public."""
        rows = _sampled_patches(images)  # (patches, 108)
        values, vectors = torch.linalg.eigh((rows.T @ rows / len(rows)).double())
        whitening = ((vectors * (values + _WHITENING).rsqrt()) @ vectors.T).float()
        white = rows @ whitening
        filters = _spherical_means(white, self.patches) @ whitening
        filters = filters / (rows @ filters.T).square().mean(0).sqrt().unsqueeze(1)  # codes of deviation 1
        filters = (filters - filters.mean(1, keepdim=True)).reshape(-1, _CHANNELS, SIZE, SIZE)
        self.filters.copy_(torch.cat([filters, filters.flip(-1)]))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        parts = [self._codes(chunk) for chunk in torch.split(images, _CHUNK)]
        return torch.cat(parts or [self._codes(images)])

    def _codes(self, images: Tensor) -> Tensor:
        found = functional.conv2d(images, self.filters) * _contrast(images)
        size = found.shape[-1] // _REGIONS
        shrunk = functional.softshrink(found, _THRESHOLD)
        signed = functional.avg_pool2d(shrunk, size)
        either = functional.avg_pool2d(shrunk.abs_(), size)
        regions = torch.stack([either + signed, either - signed], dim=1).mul_(0.5)
        first, mirrored = torch.split(regions, self.patches, dim=2)  # (images, signs, patches, 3, 3)
        both = 0.5 * (first + mirrored.flip(-1))
        return both.clamp_min_(0.0).add_(1e-3).sqrt_().flatten(1)


def _contrast(images: Tensor) -> Tensor:
    """(images, 1, positions, positions): one over the deviation of the patch at each position."""
    grey, squared = images.mean(1, keepdim=True), images.square().mean(1, keepdim=True)
    mean, square = (functional.avg_pool2d(maps, SIZE, stride=1) for maps in (grey, squared))
    return (square - mean.square()).clamp_min_(0.0).add_(_FLAT).rsqrt_()


def _sampled_patches(images: Tensor) -> Tensor:
    """Contrast-normalised patches (patches, 108) from random places."""
    generator = randomness.public_generator(0)
    windows = images.unfold(2, SIZE, 1).unfold(3, SIZE, 1)  # a view (images, 3, positions, positions, 6, 6)
    which = torch.from_numpy(generator.integers(len(images), size=_SAMPLED))
    down, right = torch.from_numpy(generator.integers(windows.shape[2], size=(2, _SAMPLED)))
    rows = windows[which, :, down, right].flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    return rows / (rows.square().mean(1, keepdim=True) + _FLAT).sqrt()


def _spherical_means(rows: Tensor, count: int) -> Tensor:
    """Unit directions (count, values) that rows gather around: k-means by angle."""
    directions = functional.normalize(rows, dim=1)
    means = directions[:count].clone()
    for _ in range(_ROUNDS):
        nearest = (directions @ means.T).argmax(1)
        sums = torch.zeros_like(means).index_add_(0, nearest, directions)
        means = torch.where(sums.norm(dim=1, keepdim=True) > 0, functional.normalize(sums, dim=1), means)
    return means
