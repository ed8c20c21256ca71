"""Public styles: drawings, how they are looked at, and where the drawings of each class lie.

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
from sfumato.errors import InvalidInput
from sfumato.learn.kept_fit import Fit, kept_fit
from sfumato.models import load_prior
from sfumato.randomness import public_generator
from sfumato_lab.drawings import shapes, strokes
from sfumato_lab.drawings.writers import WIDE, WILD

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]
Drawings = tuple[Images, Integers]

_SEED = 11
SIDE = 28
MOST_PUBLIC = 100_000
_REACH = 0.95  # of the drawings' residuals are no longer than the reach, where drawings are moved
_MARGIN = 1.4  # times that length is the reach, where they are chosen
_LEAST_REACH = 1e-6  # below this, images of a class are all the same
_BLACK = 0.12  # below this, a pixel of a moved image is background
_LOOKED_AT = 100  # images at a time: the nets' activations stay in the cache
_MATCHED: Mapping[str, tuple[str, ...]] = {
    "strokes": ("mnist", "digits", "strokes"),
    "shapes": ("fashion-mnist",),
}


def draw_wide(count: int, *, seed: int) -> Drawings:
    """Digits by three hands in turn: the ordinary one, a wide and a wild one. More styles to choose from."""
    hands = (None, WIDE, WILD)
    shares = [len(range(at, count, len(hands))) for at in range(len(hands))]
    drawn = [
        strokes.draw(share, seed=seed + 10_000 * at, hand=hand)
        for at, (share, hand) in enumerate(zip(shares, hands, strict=True))
        if share
    ]
    order = public_generator(seed).permutation(count)
    images, labels = (np.concatenate(parts)[order] for parts in zip(*drawn, strict=True))
    return images, labels


DRAW: Mapping[str, Callable[..., Drawings]] = {"strokes": draw_wide, "shapes": shapes.draw}
MATCHED_KINDS = 10
"""The digits, and the clothes: kinds of drawings that are named as classes are."""
PUBLIC = "public"
"""The prior that is a set of images which the holder names."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicSet:
    """Public images with the classes of the private ones, which synthetic images start from."""

    images: Images  # (images, 28, 28)
    kinds: Integers  # (images,)

    def __post_init__(self) -> None:
        if self.images.shape != (len(self.kinds), SIDE, SIDE) or self.images.dtype != np.uint8:
            raise InvalidInput(
                f"expected (images, {SIDE}, {SIDE}) in bytes and a kind for each, got {self.images.shape}"
            )
        _validate.integer("public images", len(self.images), least=1)
        if int(self.kinds.min()) < 0:
            raise InvalidInput("expected kinds of public images to be classes, got a negative one")
        if len(self.images) > MOST_PUBLIC:
            raise InvalidInput(f"expected at most {MOST_PUBLIC:,} public images, got {len(self.images):,}")

    def draw(self, count: int, *, seed: int) -> Drawings:
        """So many of them, the same one more than once where there are fewer."""
        chosen = public_generator(seed).permutation(-(-count // len(self.images)) * len(self.images))
        found = chosen[:count] % len(self.images)
        return self.images[found], self.kinds[found]


@dataclass(frozen=True, kw_only=True)
class StyleSettings:
    """The drawings, and their styles that are told apart.

    Lines of a pen are chosen, so that the mean of each class becomes that of the private images. Things of many
    tones are moved, so that mean and covariance do.
    """

    prior: str = "strokes"
    drawings: int = 40_000  # that directions and centres are made of
    matched: bool = True  # a class's drawings are those of its own kind
    directions: int = 128  # that an image is looked at along

    def __post_init__(self) -> None:
        _validate.one_of("prior", self.prior, (*DRAW, PUBLIC))
        for name in ("drawings", "directions"):
            _validate.integer(name, getattr(self, name), least=1)

    @property
    def moved(self) -> bool:
        return self.prior != "strokes"

    @property
    def net(self) -> str:
        """The public net in whose features likeness is judged."""
        return "shapes" if self.moved else "strokes"

    @property
    def size(self) -> int:
        """How many numbers an image is looked at by."""
        return self.directions + self.moved

    @classmethod
    def for_data(cls, data: str, prior: str | None = None) -> StyleSettings:
        """Drawings for a data set by name: digits for digits, else shapes; or those that `prior` names."""
        found = prior or ("strokes" if data in _MATCHED["strokes"] else "shapes")
        matched = found == PUBLIC or data in _MATCHED.get(found, ())
        if found != "strokes":
            return cls(prior=found, matched=matched, directions=100)
        return cls(prior=found, matched=matched)

    def classes_of(self, kinds: Integers, classes: int, generator: np.random.Generator) -> Integers:
        """The class that each drawing stands for; one beyond the classes stands for none."""
        return kinds if self.matched else generator.integers(classes, size=len(kinds))


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """An image as a few numbers: where it lies along principal directions of the drawings.

    Of pixels, where drawings are moved; of the public net's features, in which likeness is judged, where they
    are chosen. Of pixels there is one number more: the length of the residual, the texture. An
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
        found = self.centre + (along + ahead) @ self.directions.T + factor.clamp(0.0, 1.0) * texture
        dark = found < _BLACK
        return (
            (255 * found.masked_fill(dark, 0.0).clamp(max=1.0))
            .round()
            .to(torch.uint8)
            .reshape(images.shape)
            .numpy()
        )

    def places(self, images: Images) -> Floats:
        """(images, size), of public images."""
        return looked_at(self, images).double().numpy()


def raw_view(settings: StyleSettings) -> Callable[[Tensor], Tensor]:
    """Values of which the principal directions are taken."""
    return flat if settings.moved else load_prior(settings.net).features


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
    """Where the drawings of each class lie in the view.

    `centres` (classes, size): the drawings' means; `reach`: the length that residuals are clipped to; `spreads`
    (classes, size, size): the second moments of the drawings' residuals in units of it, where drawings are
    moved; `places`: those of the drawings, by class, which are not written to files; `public`: the set that
    stands for the drawings, if the holder names one.
    """

    settings: StyleSettings
    view: View
    centres: Floats
    reach: float
    spreads: Floats | None
    places: tuple[Floats, ...] = ()
    public: PublicSet | None = None

    def __post_init__(self) -> None:
        drawn = self.settings.matched and self.settings.prior != PUBLIC
        if drawn and len(self.centres) > MATCHED_KINDS:
            raise InvalidInput(
                f"expected at most {MATCHED_KINDS} classes where drawings are of the kinds of the classes, got "
                f"{len(self.centres)}; let every class have all drawings with matched=False"
            )

    def draw(self, count: int, *, seed: int) -> Drawings:
        return _draws(self.settings, self.public)(count, seed=seed)

    @classmethod
    def of(cls, settings: StyleSettings, *, classes: int, public: PublicSet | None = None) -> Styles:
        """Directions, centres and reach of fresh drawings, or of the public set."""
        view, places, kinds = _seen(settings, classes, public)
        members = [places[kinds == number] for number in range(classes)] if settings.matched else [places]
        for number, found in enumerate(members):
            if not len(found):
                raise InvalidInput(
                    f"expected public images or drawings of every class, got none of class {number}"
                )
        centres = [rows.mean(axis=0) for rows in members]
        residuals = [rows - centre for rows, centre in zip(members, centres, strict=True)]
        lengths = np.concatenate([np.linalg.norm(rows, axis=1) for rows in residuals])
        reach = (1.0 if settings.moved else _MARGIN) * float(np.quantile(lengths, _REACH))
        if not _LEAST_REACH < reach < np.inf:
            raise InvalidInput(
                "expected public images that differ within their class, got hardly any difference; name a set "
                "with several images of each class"
            )
        scaled = [clipped(rows / reach) for rows in residuals] if settings.moved else []
        copies = 1 if settings.matched else classes
        return cls(
            settings=settings,
            view=view,
            centres=np.stack(centres * copies),
            reach=reach,
            spreads=np.stack([rows.T @ rows / len(rows) for rows in scaled] * copies) if scaled else None,
            places=tuple(members * copies),
            public=public,
        )


def _seen(settings: StyleSettings, classes: int, public: PublicSet | None) -> tuple[View, Floats, Integers]:
    """How drawings are looked at, where they lie, and their kinds. It is kept, as it is always the same."""

    def make() -> Fit:
        images, kinds = _draws(settings, public)(settings.drawings, seed=_SEED)
        if settings.matched:
            images, kinds = images[kinds < classes], kinds[kinds < classes]
        view = View.of(settings, images)
        return {
            "centre": view.centre,
            "directions": view.directions,
            "places": looked_at(view, images),
            "kinds": torch.from_numpy(kinds),
        }

    found = make() if public is not None else kept_fit(f"styles {settings} {classes} {_SEED}", make)
    view = View(
        raw=raw_view(settings),
        centre=found["centre"],
        directions=found["directions"],
        textured=settings.moved,
    )
    return view, found["places"].double().numpy(), found["kinds"].numpy()


def _draws(settings: StyleSettings, public: PublicSet | None) -> Callable[..., Drawings]:
    if (public is not None) is not (settings.prior == PUBLIC):
        raise InvalidInput(f"expected a public set with prior={PUBLIC!r}, and with no other")
    return DRAW[settings.prior] if public is None else public.draw


def clipped(residuals: Floats) -> Floats:
    """Rows of length at most 1."""
    lengths = np.sqrt(np.square(residuals).sum(axis=1, keepdims=True))
    return residuals / np.maximum(1.0, lengths)
