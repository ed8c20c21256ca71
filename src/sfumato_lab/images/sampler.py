"""Draws images from noisy statistics and public drawings, and labels them: post-processing, free of charge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate
from sfumato.models import FeatureClassifier
from sfumato.randomness import public_generator
from sfumato_lab.images.choice import Choice
from sfumato_lab.images.moves import Moves
from sfumato_lab.images.statistics import Statistics
from sfumato_lab.images.styles import Images, Integers, Styles, StyleSettings, looked_at

SUREST = 0.85
"""This share of the images is kept: those whose label the head is surest of."""

POSSIBLE = 0.05
"""Times the chance of its label: what the head must give the kind that a thing was drawn as."""

_FAMILIES = np.array([0, 1, 0, 0, 0, 2, 0, 2, 3, 2])
"""Of kinds of clothes: what covers the chest, trousers, shoes, bags. None is taken for one of another."""

_BATCH = 4000  # drawings at a time
_MOST_TRIED = 6  # times as many as are wanted, after which classes need not have their shares
_MOST_EMPTY = 50  # times in a row that no drawing is kept
_SEEDS = 2**31


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Synthetic images and their labels."""

    images: Images  # (images, 28, 28)
    labels: Integers  # (images,)
    sure: npt.NDArray[np.float32]  # the probability that the head gives each label
    tried: int  # images that were labelled
    unsure: int  # of these, left out as the head was not sure of them, or reads another class

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSampler:
    """The released model: it draws as many images as wanted.

    `choice` says which drawings are kept, where they are chosen. Without `statistics` images are drawings as
    they are; without `head` they keep the class that they were drawn for.
    """

    styles: Styles
    statistics: Statistics | None
    head: FeatureClassifier | None
    class_names: tuple[str, ...]
    choice: Choice | None = None
    certificate: Certificate | None = None

    def draw(self, count: int, *, seed: int) -> Drawn:
        """`count` images; the same seed gives the same ones.

        Classes have the shares of the noisy counts. Where the head hardly ever reads a class, they do not.
        """
        count = _validate.integer("count", count, least=1)
        generator = public_generator(seed)
        parts: list[Drawn] = []
        missing, nothing = self._wanted(count), 0
        while left := count - sum(map(len, parts)):
            part = self._labelled(*self._images(min(_BATCH, 8 * left + 40), generator))
            nothing = 0 if len(part) else nothing + 1
            if nothing == _MOST_EMPTY:
                raise InvalidInput("expected a sampler that keeps some drawings, got one that keeps hardly any")
            tried = part.tried + sum(earlier.tried for earlier in parts)
            room = missing if tried < _MOST_TRIED * count + _BATCH else np.full_like(missing, left)
            part = _first_of_each(part, room, most=left)
            missing = missing - np.bincount(part.labels, minlength=len(missing))
            parts.append(part)
        return Drawn(
            images=np.concatenate([part.images for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            sure=np.concatenate([part.sure for part in parts]),
            tried=sum(part.tried for part in parts),
            unsure=sum(part.unsure for part in parts),
        )

    def _wanted(self, count: int) -> Integers:
        """Images of each class, at most; rounded up."""
        if self.statistics is None:
            return np.full(len(self.class_names), count)
        people = np.maximum(self.statistics.counts, 0.0) + 1e-9
        return np.ceil(count * people / people.sum()).astype(np.int64)

    def _images(self, drawings: int, generator: np.random.Generator) -> tuple[Images, Integers]:
        """Images from so many drawings, and the classes that they were drawn for."""
        settings, classes = self.styles.settings, len(self.styles.centres)
        images, kinds = self.styles.draw(drawings, seed=int(generator.integers(_SEEDS)))
        labels = settings.classes_of(kinds, classes, generator)
        images, labels = images[labels < classes], labels[labels < classes]
        if self.choice is None and self._moves is None:
            return images, labels
        places = self.styles.view.places(images)
        if self._moves is not None:
            return self.styles.view.moved(images, self._moves.steps(places, labels, generator)), labels
        assert self.choice is not None
        kept = generator.random(len(images)) < self.choice.chances(places, labels)
        return images[kept], labels[kept]

    @cached_property
    def _moves(self) -> Moves | None:
        if self.statistics is None or not self.styles.settings.moved:
            return None
        return Moves.of(self.statistics, self.styles)

    def _labelled(self, images: Images, labels: Integers) -> Drawn:
        """Each with the label that the head reads. What it takes for something else than was drawn is left out.

        Digits must be read as what was drawn; of things, that must be possible, and clothes stay in their
        family. Of these, the ones that the head is surest of.
        """
        sure, kept = np.ones(len(images), dtype=np.float32), np.arange(len(images))
        if self.head is not None and len(images):
            chances = torch.softmax(looked_at(self.head, images), dim=1)
            sure, read = (part.numpy() for part in chances.max(dim=1))
            if self.styles.settings.matched:
                kept = np.flatnonzero(may_be(self.styles.settings, chances.numpy(), labels))
            labels = read
            if len(kept):
                kept = kept[sure[kept] >= np.quantile(sure[kept], 1 - SUREST)]
        unsure = len(images) - len(kept)
        return Drawn(
            images=images[kept], labels=labels[kept], sure=sure[kept], tried=len(images), unsure=unsure
        )


def may_be(settings: StyleSettings, chances: npt.NDArray[np.float32], drawn: Integers) -> npt.NDArray[np.bool_]:
    """Whether an image that was drawn for one class may have the label that the head reads.

    >>> shoe_or_bag = np.zeros((1, 10), dtype=np.float32)
    >>> shoe_or_bag[0, [7, 8, 9]] = 0.4, 0.6, 0.0
    >>> settings = StyleSettings.for_data("fashion-mnist")
    >>> [bool(may_be(settings, shoe_or_bag, np.array([drawn]))[0]) for drawn in (7, 8)]
    [False, True]
    """
    read = chances.argmax(axis=1)
    if not settings.moved:
        return np.asarray(read == drawn)
    found = chances[np.arange(len(drawn)), drawn] >= POSSIBLE * chances.max(axis=1)
    return found & (_FAMILIES[read] == _FAMILIES[drawn]) if settings.prior == "shapes" else found


def _first_of_each(part: Drawn, room: Integers, *, most: int) -> Drawn:
    """The first images of each label for which there is room, and of these at most so many."""
    earlier = np.zeros(len(part), dtype=np.int64)
    for label in np.unique(part.labels):
        same = part.labels == label
        earlier[same] = np.arange(same.sum())
    kept = np.flatnonzero(earlier < room[part.labels])[:most]
    return replace(part, images=part.images[kept], labels=part.labels[kept], sure=part.sure[kept])
