"""Public styles: drawings, how they are looked at, and the clusters of them that private images are counted in.

Nothing here comes from private rows. A class has the drawings of its own kind where kinds of drawings are named
as the classes are (digits, clothes); else every class has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _validate
from sfumato.datasets import shapes, strokes
from sfumato.errors import InvalidInput
from sfumato.models import load_prior
from sfumato.randomness import public_generator

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]
Drawings = tuple[Images, Integers]

WIDE = strokes.Hand(
    pose_concentration=0.5, shake=0.02, slant_spread=0.34, turn=0.14, stretch=0.26, bend=0.18, warp=0.032,
    pen_spread=0.45, pressure=0.2, rough=0.12,
)  # fmt: skip
"""Writers who differ more than those of the classifier's prior: more styles to choose from."""

_SEED = 11
_LLOYD = 10  # rounds of k-means
_REACH, _MARGIN = 0.95, 1.4  # times the length below which so many of the drawings' residuals are
_FARTHEST = 3.0  # times: by how much a texture is made stronger at most
_LOOKED_AT = 1000  # images at a time
_MATCHED: Mapping[str, tuple[str, ...]] = {
    "strokes": ("mnist", "digits", "strokes"),
    "shapes": ("fashion-mnist",),
}


def draw_wide(count: int, *, seed: int) -> Drawings:
    """Digits of wide variety, every other one by the ordinary hand."""
    ordinary, labels = strokes.draw(max(1, count // 2), seed=seed)
    wide, more = strokes.draw(max(1, count - count // 2), seed=seed + 10_000, hand=WIDE)
    order = public_generator(seed).permutation(count)
    return np.concatenate([ordinary, wide])[order], np.concatenate([labels, more])[order]


DRAW: Mapping[str, Callable[..., Drawings]] = {"strokes": draw_wide, "shapes": shapes.draw}


@dataclass(frozen=True, kw_only=True)
class StyleSettings:
    """Which drawings, and what of them is told apart.

    Lines of a pen are chosen: each class has `fine` clusters, and private images say how many drawings of each
    are kept. Things of many tones are moved: each class has one cluster, and private images say where its mean
    and covariance lie.
    """

    prior: str = "strokes"
    drawings: int = 40_000  # that the clusters are made of
    matched: bool = True  # a class's drawings are those of its own kind
    fine: int = 100  # clusters of a class
    directions: int = 32  # that an image is looked at along

    def __post_init__(self) -> None:
        _validate.one_of("prior", self.prior, DRAW)
        for name in ("drawings", "fine", "directions"):
            _validate.integer(name, getattr(self, name), least=1)
        if self.moved and self.fine != 1:
            raise InvalidInput(f"expected fine=1 for drawings that are moved, got fine={self.fine}")

    @property
    def moved(self) -> bool:
        return self.prior == "shapes"

    @property
    def size(self) -> int:
        """How many numbers an image is looked at by."""
        return self.directions + self.moved

    @classmethod
    def for_data(cls, data: str, prior: str | None = None) -> StyleSettings:
        """Drawings for a data set by name: digits for digits, else shapes."""
        found = prior or ("strokes" if data in _MATCHED["strokes"] else "shapes")
        matched = data in _MATCHED.get(found, ())
        if found == "shapes":
            return cls(prior=found, matched=matched, fine=1, directions=40)
        return cls(prior=found, matched=matched)

    def classes_of(self, kinds: Integers, classes: int, generator: np.random.Generator) -> Integers:
        """The class that each drawing stands for; one beyond the classes stands for none."""
        return kinds if self.matched else generator.integers(classes, size=len(kinds))


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """An image as a few numbers: where it lies along principal directions of the drawings.

    Of pixels, where drawings are moved; of the public net's features, in which likeness is judged, where they
    are chosen. Of pixels there is one number more: the length of what lies along no direction, the texture. An
    image's numbers depend on that image alone.
    """

    raw: Callable[[Tensor], Tensor]  # (images, 1, 28, 28) → (images, values)
    centre: Tensor  # (values,)
    directions: Tensor  # (values, directions), orthonormal
    textured: bool

    @classmethod
    def of(cls, settings: StyleSettings, images: Images) -> View:
        raw = raw_view(settings)
        rows = looked_at(raw, images)
        centre = rows.mean(dim=0)
        values = (rows - centre).double()
        _, vectors = torch.linalg.eigh(values.T @ values)
        directions = vectors[:, -settings.directions :].flip(1).float()
        return cls(raw=raw, centre=centre, directions=directions, textured=settings.moved)

    def __call__(self, images: Tensor) -> Tensor:
        rows = self.raw(images) - self.centre
        along = rows @ self.directions
        if not self.textured:
            return along
        return torch.cat([along, (rows - along @ self.directions.T).norm(dim=1, keepdim=True)], dim=1)

    def moved(self, images: Images, steps: Floats) -> Images:
        """Images whose numbers are moved by `steps`: along the directions, and in the length of the texture."""
        rows = to_inputs(images).flatten(1) - self.centre
        along = rows @ self.directions
        texture = rows - along @ self.directions.T
        wanted = torch.from_numpy(steps).float()
        ahead, longer = wanted[:, :-1], wanted[:, -1:]
        factor = 1 + longer / texture.norm(dim=1, keepdim=True).clamp(min=1e-3)
        found = self.centre + (along + ahead) @ self.directions.T + factor.clamp(0.0, _FARTHEST) * texture
        return (255 * found.clamp(0.0, 1.0)).round().to(torch.uint8).reshape(images.shape).numpy()

    def places(self, images: Images) -> Floats:
        """(images, size), of public images."""
        return looked_at(self, images).double().numpy()


def raw_view(settings: StyleSettings) -> Callable[[Tensor], Tensor]:
    """Values of which the principal directions are taken."""
    return flat if settings.moved else load_prior(settings.prior).features


def flat(images: Tensor) -> Tensor:
    return images.flatten(1)


@torch.no_grad()
def looked_at(view: Callable[[Tensor], Tensor], images: Images) -> Tensor:
    return torch.cat(
        [view(to_inputs(images[at : at + _LOOKED_AT])) for at in range(0, len(images), _LOOKED_AT)]
    )


def to_inputs(images: Images) -> Tensor:
    """(images, 1, 28, 28) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images)).unsqueeze(1).float() / 255


@dataclass(frozen=True, kw_only=True, eq=False)
class Styles:
    """Clusters of drawn styles, by class.

    `centres` (classes, fine, size); `drawn` (classes, fine): each cluster's share of the drawings of its
    class; `reach`: the length that residuals are clipped to; `spreads` (classes, size, size): the second
    moments of the drawings' residuals in units of it.
    """

    settings: StyleSettings
    view: View
    centres: Floats
    drawn: Floats
    spreads: Floats
    reach: float

    @classmethod
    def of(cls, settings: StyleSettings, *, classes: int) -> Styles:
        """The clusters of the drawings, by k-means on what the view says of them."""
        images, kinds = DRAW[settings.prior](settings.drawings, seed=_SEED)
        if settings.matched:
            images, kinds = images[kinds < classes], kinds[kinds < classes]
        view = View.of(settings, images)
        places = view.places(images)
        members = [places[kinds == number] for number in range(classes)] if settings.matched else [places]
        for number, found in enumerate(members):
            _validate.integer(f"drawings of class {number}", len(found), least=settings.fine)
        centres = [k_means(rows, settings.fine, seed=_SEED + at) for at, rows in enumerate(members)]
        owners = [quickly_nearest(rows, own) for rows, own in zip(members, centres, strict=True)]
        residuals = [rows - own[owner] for rows, own, owner in zip(members, centres, owners, strict=True)]
        lengths = np.concatenate([np.linalg.norm(rows, axis=1) for rows in residuals])
        reach = _MARGIN * float(np.quantile(lengths, _REACH))
        scaled = [clipped(rows / reach) for rows in residuals]
        copies = 1 if settings.matched else classes
        return cls(
            settings=settings,
            view=view,
            centres=np.stack(centres * copies),
            drawn=np.stack([np.bincount(own, minlength=settings.fine) / len(own) for own in owners] * copies),
            spreads=np.stack([rows.T @ rows / len(rows) for rows in scaled] * copies),
            reach=reach,
        )

    def clusters(self, places: Floats, labels: Integers) -> Integers:
        """The nearest cluster of each public image's own class."""
        found = np.zeros(len(places), dtype=np.int64)
        for label in np.unique(labels):
            found[labels == label] = quickly_nearest(places[labels == label], self.centres[label])
        return found


def k_means(rows: Floats, count: int, *, seed: int) -> Floats:
    """Lloyd's algorithm from rows chosen at random; a cluster that lost its rows stays where it was."""
    centres = rows[public_generator(seed).choice(len(rows), count, replace=False)].copy()
    for _ in range(_LLOYD if count > 1 else 1):
        owner = quickly_nearest(rows, centres)
        for number in np.unique(owner):
            centres[number] = rows[owner == number].mean(axis=0)
    return centres


def quickly_nearest(rows: Floats, centres: Floats) -> Integers:
    """The nearest centre of each public row."""
    return torch.cdist(torch.from_numpy(rows), torch.from_numpy(centres)).argmin(dim=1).numpy()


def nearest(rows: npt.NDArray[np.floating], centres: npt.NDArray[np.floating]) -> Integers:
    """The nearest centre of each row.

    Each row is compared by itself, without products of matrices, whose last bits depend on the other rows.
    """
    best = np.full(len(rows), np.inf)
    owner = np.zeros(len(rows), dtype=np.int64)
    for number, centre in enumerate(centres):
        apart = np.square(rows - centre).sum(axis=1)
        closer = apart < best
        owner[closer], best[closer] = number, apart[closer]
    return owner


def clipped(residuals: Floats) -> Floats:
    """Rows of length at most 1."""
    lengths = np.sqrt(np.square(residuals).sum(axis=1, keepdims=True))
    return residuals / np.maximum(1.0, lengths)
