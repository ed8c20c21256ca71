"""Public styles: drawings, their latents, and the clusters of them that private images are counted in.

Nothing here comes from private rows. A class has the drawings of its own kind where kinds of drawings are named
as the classes are (digits, clothes); else every class has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from sfumato import _validate
from sfumato.models.latents import Autoencoder, load_latents
from sfumato.randomness import public_generator
from sfumato.recipes.latents import DRAW

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_SEED = 11
_LLOYD = 12  # rounds of k-means
_MOST_TO_CLUSTER = 6000  # drawings of a class that the clusters are made of
_REACH, _MARGIN = 0.95, 1.4  # times the length below which so many of the drawings' residuals are
_MATCHED: Mapping[str, tuple[str, ...]] = {
    "strokes-latents": ("mnist", "digits", "strokes"),
    "shapes-latents": ("fashion-mnist",),
}


@dataclass(frozen=True, kw_only=True)
class StyleSettings:
    """Which drawings, how many, and how finely they are told apart."""

    latents: str = "strokes-latents"
    drawings: int = 60_000
    matched: bool = True  # a class's drawings are those of its own kind
    fine: int = 60  # clusters of a class
    coarse: int = 4  # groups of clusters, of a class

    def __post_init__(self) -> None:
        _validate.one_of("latents", self.latents, DRAW)
        for name in ("drawings", "fine", "coarse"):
            _validate.integer(name, getattr(self, name), least=1)

    @property
    def of_a_pen(self) -> bool:
        """Whether drawings are lines on an empty page, and not things of many tones."""
        return self.latents == "strokes-latents"

    @classmethod
    def for_data(cls, data: str, latents: str | None = None, **more: int) -> StyleSettings:
        """Drawings for a data set by name: digits for digits, else shapes."""
        found = latents or ("strokes-latents" if data in _MATCHED["strokes-latents"] else "shapes-latents")
        return cls(latents=found, matched=data in _MATCHED.get(found, ()), **more)


@dataclass(frozen=True, kw_only=True, eq=False)
class Styles:
    """Clusters of drawn styles, by class.

    `centres` (classes, fine, latents); `groups` (classes, fine): the coarse group of each cluster; `reach`: the
    length that residuals are clipped to.
    """

    settings: StyleSettings
    centres: Floats
    groups: Integers
    reach: float

    @classmethod
    def of(cls, settings: StyleSettings, *, classes: int) -> Styles:
        """The clusters of the drawings, by k-means on their latents."""
        bank = drawn_bank(settings, classes)
        made = [_clusters(bank, number, settings) for number in range(classes if settings.matched else 1)]
        centres, groups, lengths = zip(*made, strict=True)
        copies = 1 if settings.matched else classes
        return cls(
            settings=settings,
            centres=np.concatenate([np.stack(centres)] * copies),
            groups=np.concatenate([np.stack(groups)] * copies),
            reach=_MARGIN * float(np.quantile(np.concatenate(lengths), _REACH)),
        )

    @property
    def bank(self) -> Bank:
        return drawn_bank(self.settings, len(self.centres))


@dataclass(frozen=True, kw_only=True, eq=False)
class Bank:
    """Drawings with their latents, and which of them each class has."""

    images: npt.NDArray[np.uint8]  # (drawings, 28, 28)
    latents: npt.NDArray[np.float32]  # (drawings, latents)
    members: tuple[Integers, ...]  # of each class
    net: Autoencoder

    def nearest(self, labels: Integers, latents: Floats) -> Integers:
        """The drawing of each label's class that lies nearest in the latents."""
        chosen = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rows, members = np.flatnonzero(labels == label), self.members[label]
            near = torch.from_numpy(self.latents[members])
            wanted = torch.from_numpy(latents[rows].astype(np.float32))
            chosen[rows] = members[torch.cdist(wanted, near).argmin(dim=1).numpy()]
        return chosen


@lru_cache(maxsize=1)  # drawing takes as long as all else that is public
def drawn_bank(settings: StyleSettings, classes: int) -> Bank:
    """The drawings of these settings, always the same."""
    images, kinds = DRAW[settings.latents](settings.drawings, seed=_SEED)
    net = load_latents(settings.latents)
    latents = net.encode(torch.from_numpy(images).unsqueeze(1) / 255).numpy()
    every = np.arange(len(images))
    members = [np.flatnonzero(kinds == number) if settings.matched else every for number in range(classes)]
    for number, found in enumerate(members):
        _validate.integer(f"drawings of class {number}", len(found), least=settings.fine)
    return Bank(images=images, latents=latents, members=tuple(members), net=net)


def _clusters(bank: Bank, number: int, settings: StyleSettings) -> tuple[Floats, Integers, Floats]:
    rows = bank.latents[bank.members[number][:_MOST_TO_CLUSTER]].astype(np.float64)
    centres = _k_means(rows, settings.fine, seed=_SEED + number)
    groups = nearest(centres, _k_means(centres, min(settings.coarse, settings.fine), seed=_SEED))
    return centres, groups, np.linalg.norm(rows - centres[nearest(rows, centres)], axis=1)


def _k_means(rows: Floats, count: int, *, seed: int) -> Floats:
    """Lloyd's algorithm from rows chosen at random; a cluster that lost its rows stays where it was."""
    centres = rows[public_generator(seed).choice(len(rows), count, replace=False)].copy()
    for _ in range(_LLOYD):
        owner = nearest(rows, centres)
        for number in np.unique(owner):
            centres[number] = rows[owner == number].mean(axis=0)
    return centres


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
