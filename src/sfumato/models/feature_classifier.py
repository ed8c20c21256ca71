"""A linear head on features that cost no privacy: they were drawn, designed, or learned from drawings.

Only the head learns from people's data. It is convex and small, so that little noise goes far (Tramèr & Boneh,
*Differentially Private Learning Needs Better Features*, 2021, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato import randomness
from sfumato.errors import InvalidInput
from sfumato.models.patches import PatchCodes

_FLOOR = 0.002  # of the largest variance: directions that hardly vary are left short
_MANY = 3000  # features and rows from which on exact directions would take a minute
_MORE = 32  # directions beside those that are wanted, for exactness
_CHUNK = 128  # images at a time: their maps stay in the cache
_PRODUCTS = 0.5  # length of the products of private directions beside the features themselves


class FeatureClassifier(nn.Module):
    """Images → features of unit length → `head`, which starts at zero.

    Each extractor's answer is brought to unit length, weighed and joined to the others'. `centre`, a public
    mean, is taken off: a common part of all features would only use up the clipping norm. With `directions` the
    rest is projected on that many principal directions of public images, each weighed by its variance to the
    power −¼: noise has fewer places to go to, and steps are as long where features vary little (a
    preconditioner that costs nothing). The whole is brought to unit length again. An image's features depend on
    that image, and on public ones, alone. `adapt` takes noisy statistics of private features: a
    mean that is taken off, a basis, or a mean and directions whose products are joined to the features at half
    their length; the inputs of the head are then of unit length once more.

    Args:
        extractors: Networks that turn images into features; they are not trained.
        classes: How many outputs there are.
        directions: How many principal directions of public images are kept; None keeps all features.
        shape: Channels, height and width of the images.
        adapts: "shift", "basis" or "products", the statistics that `adapt` will be given, if any.
        products: How many directions have their products joined, where it adapts by them.
        weights: The length of each extractor's part; 1 for all by default.
        bias: Whether the head has a constant for each class. Beside features of unit length it makes up half of
            the square of a row's gradient, so that a private head without it has √½ of the noise.

    >>> net = FeatureClassifier([nn.Flatten()], classes=10)
    >>> net.fit_to(torch.rand(20, 1, 28, 28))  # public images
    >>> net(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 10])
    """

    centre: Tensor
    directions: Tensor | None

    shift: Tensor | None
    basis: Tensor | None
    leading: Tensor | None  # (features, directions)

    def __init__(
        self,
        extractors: Sequence[nn.Module],
        *,
        classes: int,
        directions: int | None = None,
        shape: tuple[int, int, int] = (1, 28, 28),
        adapts: str | None = None,
        products: int = 0,
        weights: Sequence[float] = (),
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.extractors = nn.ModuleList(extractors).eval().requires_grad_(False)
        self.weights = tuple(weights) or (1.0,) * len(extractors)
        self.shape = shape
        with torch.no_grad():
            self.sizes = tuple(part.shape[1] for part in self._parts(torch.zeros(1, *shape)))
        size = sum(self.sizes)
        self.width = width = directions or size
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("directions", None if directions is None else torch.eye(size, directions))
        self.register_buffer("shift", torch.zeros(width) if adapts in ("shift", "products") else None)
        self.register_buffer("basis", torch.eye(width) if adapts == "basis" else None)
        self.register_buffer("leading", torch.eye(width, products) if adapts == "products" else None)
        self.head = nn.Linear(width + products * (products + 1) // 2, classes, bias=bias)
        for values in self.head.parameters():
            nn.init.zeros_(values)

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """(images, features), each row of L2 norm 1, computed a few images at a time."""
        rows = [self._projected(self._joined(chunk)) for chunk in torch.split(images, _CHUNK)]
        return torch.cat(rows or [self._projected(self._joined(images))])

    @torch.no_grad()
    def fit_to(self, images: Tensor) -> None:
        """Take centre and directions from these images, which are public; extractors that learn go first."""
        for extractor in self.extractors:
            if isinstance(extractor, Whitened):
                extractor.fit_to(images)
        rows = torch.cat([self._joined(chunk) for chunk in torch.split(images, _CHUNK)])
        self.centre.copy_(rows.mean(0))
        if self.directions is not None:
            self.directions.copy_(_weighed_directions(rows - self.centre, self.directions.shape[1]))

    @torch.no_grad()
    def adapt(self, measured: Tensor) -> None:
        """Take noisy statistics of private features: the mean, the basis, or mean and directions.

        Mean and directions are the rows of one matrix, the mean first.
        """
        if self.leading is not None and self.shift is not None:
            self.shift.copy_(measured[0])
            self.leading.copy_(measured[1:].T)
            return
        place = self.basis if self.shift is None else self.shift
        if place is None:
            raise InvalidInput("expected a classifier that adapts to its rows, got one that does not")
        place.copy_(measured)

    @torch.no_grad()
    def adapted(self, features: Tensor) -> Tensor:
        """Return the inputs of the head for these features, each row by itself."""
        if self.shift is not None:
            centred = functional.normalize(features - self.shift, dim=1)
            return centred if self.leading is None else _with_products(centred, self.leading)
        return features if self.basis is None else functional.normalize(features @ self.basis, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.adapted(self.features(images)))
        return logits

    def _joined(self, images: Tensor) -> Tensor:
        parts = self._parts(images)
        return torch.cat([w * part for w, part in zip(self.weights, parts, strict=True)], dim=1)

    def _parts(self, images: Tensor) -> list[Tensor]:
        laid_out = images.contiguous(memory_format=torch.channels_last)
        return [functional.normalize(part(laid_out).flatten(1), dim=1) for part in self.extractors]

    def _projected(self, rows: Tensor) -> Tensor:
        centred = rows - self.centre
        return functional.normalize(centred if self.directions is None else centred @ self.directions, dim=1)


class Whitened(nn.Module):
    """An extractor's features in directions of public images, all about as wide.

    Rows are centred and multiplied by V(λ + 0.002·λ₁)^−½, with λ and V the largest variances and directions of
    the features of public images.

    Args:
        extractor: The network; `PatchCodes` learn from the public images first.
        shape: Channels, height and width of the images.
        directions: How many are kept.

    >>> net = Whitened(nn.Flatten(), shape=(1, 4, 4), directions=5)
    >>> net.fit_to(torch.rand(30, 1, 4, 4))  # public images
    >>> net(torch.rand(3, 1, 4, 4)).shape
    torch.Size([3, 5])
    """

    centre: Tensor
    directions: Tensor

    def __init__(self, extractor: nn.Module, *, shape: tuple[int, int, int], directions: int) -> None:
        super().__init__()
        self.extractor = extractor
        with torch.no_grad():
            size = extractor(torch.zeros(1, *shape)).flatten(1).shape[1]
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("directions", torch.eye(size, directions))

    @torch.no_grad()
    def fit_to(self, images: Tensor) -> None:
        """Learn from these images, which must be public."""
        if isinstance(self.extractor, PatchCodes):
            self.extractor.fit_to(images)
        rows = torch.cat([self.extractor(chunk).flatten(1) for chunk in torch.split(images, _CHUNK)])
        self.centre.copy_(rows.mean(0))
        values, vectors = _principal(rows.sub_(self.centre), self.directions.shape[1])
        self.directions.copy_(vectors * (values + _FLOOR * values[0]).rsqrt() * values[0].sqrt())

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = (self.extractor(images).flatten(1) - self.centre) @ self.directions
        return found


def _with_products(rows: Tensor, leading: Tensor) -> Tensor:
    """Rows of unit length beside the products uᵢuⱼ, i ≤ j, of their unit places u along some directions.

    Those of i < j have √2, so that the products of two rows have (u·v)² as theirs: a quadratic kernel.
    """
    along = functional.normalize(rows @ leading, dim=1)
    first, second = torch.triu_indices(along.shape[1], along.shape[1])
    weights = torch.where(first == second, 1.0, math.sqrt(2.0)).to(rows)
    products = along[:, first] * along[:, second] * weights
    return functional.normalize(torch.cat([rows, _PRODUCTS * products], dim=1), dim=1)


def _weighed_directions(rows: Tensor, count: int) -> Tensor:
    """(features, count): principal directions of centred rows, times (variance share + 10⁻⁴)^−¼."""
    values, vectors = _principal(rows, count)
    return vectors * (values / values[0] + 1e-4).pow(-0.25)


def _principal(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sums of squares along the main directions of centred rows, largest first, and those directions."""
    if max(_MANY, 3 * count) < min(rows.shape):  # by random projections (Halko, Martinsson & Tropp 2011)
        with randomness.public_torch_seed(0):
            _, lengths, vectors = torch.svd_lowrank(rows, q=count + _MORE, niter=3)
        return lengths[:count].square(), vectors[:, :count]
    few = len(rows) < rows.shape[1]
    gram = rows @ rows.T if few else rows.T @ rows
    values, vectors = torch.linalg.eigh(gram.double())
    values, vectors = values.flip(0)[:count].clamp_min(1e-12).float(), vectors.flip(1)[:, :count].float()
    if few:  # from directions among the rows to directions among the features
        vectors = functional.normalize(rows.T @ vectors, dim=0)
    return values, vectors
