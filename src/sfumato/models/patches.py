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
_VALUES = _CHANNELS * SIZE**2
_FLAT = 100 / 255**2  # variance that is added to a patch's: flat ones say little
_WHITENING = 0.05  # added to the variances of contrast-normalised patches
_THRESHOLD = 0.12  # of the cosine between a patch and one of the dictionary
_REGIONS = 3
_ROUNDS = 12  # of k-means
_SAMPLED = 60_000  # patches that the dictionary is learned from
_CHUNK = 1  # images of full size at a time: their maps stay in the cache, which takes half the time of eight


class PatchCodes(nn.Module):
    """(images, 3, side, side) → (images, 18·patches): how much of each patch, and of its negative, is where.

    A patch of the image is contrast-normalised, (p − mean)/√(variance + 100/255²), whitened, and brought to
    unit length, p̂. With c one of the dictionary, the codes are relu(±c·p̂ − 0.12), averaged over 3 × 3
    regions. The dictionary has the mirror image of each patch too, and whitening treats both alike, so that the
    codes of a mirrored image are the same in another order: the average over both is half a sum, and an image
    and its mirror image have the same features. Square roots of averages are given, which are more even than
    averages.

    Args:
        patches: How many patches the dictionary has, beside their mirror images.
        shrink: The factor by which images are made smaller first: patches then show larger parts of them.

    >>> PatchCodes(patches=4)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 72])
    """

    whitening: Tensor  # (108, 108); values of a patch go by row, column, colour
    dictionary: Tensor  # (2·patches, 108), unit directions of whitened patches, the mirror images last

    def __init__(self, *, patches: int = 320, shrink: int = 1) -> None:
        super().__init__()
        self.patches = _validate.integer("patches", patches, least=1)
        self.shrink = _validate.integer("shrink", shrink, least=1)
        self.register_buffer("whitening", torch.eye(_VALUES))
        self.register_buffer("dictionary", torch.zeros(2 * patches, _VALUES))

    @torch.no_grad()
    def fit_to(self, images: Tensor) -> None:
        """Learn whitening and dictionary from these images, which must be public."""
        rows = _normalised(_sampled_windows(self._shrunk(images)))
        both = torch.cat([rows, _mirrored(rows)])
        values, vectors = torch.linalg.eigh((both.T @ both / len(both)).double())
        self.whitening.copy_((vectors * (values + _WHITENING).rsqrt()) @ vectors.T)
        means = _spherical_means(rows @ self.whitening, self.patches)
        self.dictionary.copy_(torch.cat([means, _mirrored(means)]))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        chunks = torch.split(self._shrunk(images), _CHUNK * self.shrink**2)
        return torch.cat([self._codes(chunk) for chunk in chunks])

    def _shrunk(self, images: Tensor) -> Tensor:
        return images if self.shrink == 1 else functional.avg_pool2d(images, self.shrink)

    def _codes(self, images: Tensor) -> Tensor:
        positions = images.shape[-1] - SIZE + 1
        windows = _windows(images).reshape(-1, _VALUES)
        white = functional.normalize(_normalised(windows) @ self.whitening, dim=1, eps=1e-3)
        found = white @ self.dictionary.T  # one product: a convolution is slower
        maps = found.reshape(len(images), positions, positions, 2 * self.patches).permute(0, 3, 1, 2)
        stride = positions // _REGIONS
        size = positions - (_REGIONS - 1) * stride
        shrunk = functional.softshrink(maps, _THRESHOLD)
        signed = functional.avg_pool2d(shrunk, size, stride)
        either = functional.avg_pool2d(shrunk.abs_(), size, stride)
        regions = torch.stack([either + signed, either - signed], dim=1).mul_(0.5)
        first, mirrored = torch.split(regions, self.patches, dim=2)  # (images, signs, patches, 3, 3)
        both = 0.5 * (first + mirrored.flip(-1))
        return both.clamp_min_(0.0).add_(1e-3).sqrt_().flatten(1)


def _windows(images: Tensor) -> Tensor:
    """(images, positions, positions, 6, 18): a view of the patch at each position, by row, column, colour."""
    laid_out = images.permute(0, 2, 3, 1).contiguous()
    count, height, width, channels = laid_out.shape
    image, row, column, _ = laid_out.stride()
    places = (count, height - SIZE + 1, width - SIZE + 1)
    return laid_out.as_strided((*places, SIZE, SIZE * channels), (image, row, column, row, 1))


def _normalised(rows: Tensor) -> Tensor:
    """Patches of mean zero and deviation about 1; flat ones less."""
    rows = rows - rows.mean(1, keepdim=True)
    return rows * (rows.square().mean(1, keepdim=True) + _FLAT).rsqrt()


def _mirrored(rows: Tensor) -> Tensor:
    """The same patches seen in a mirror."""
    return rows.reshape(-1, SIZE, SIZE, _CHANNELS).flip(2).reshape(-1, _VALUES)


def _sampled_windows(images: Tensor) -> Tensor:
    """(patches, 108) from random places."""
    generator = randomness.public_generator(0)
    windows = _windows(images)
    which = torch.from_numpy(generator.integers(len(images), size=_SAMPLED))
    down, right = torch.from_numpy(generator.integers(windows.shape[1], size=(2, _SAMPLED)))
    return windows[which, down, right].flatten(1)


def _spherical_means(rows: Tensor, count: int) -> Tensor:
    """Unit directions (count, values) that rows gather around: k-means by angle."""
    directions = functional.normalize(rows, dim=1)
    means = directions[:count].clone()
    for _ in range(_ROUNDS):
        nearest = (directions @ means.T).argmax(1)
        sums = torch.zeros_like(means).index_add_(0, nearest, directions)
        means = torch.where(sums.norm(dim=1, keepdim=True) > 0, functional.normalize(sums, dim=1), means)
    return means
