"""Draws images from noisy statistics and public drawings, and labels them: post-processing, free of charge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _validate
from sfumato.ledger import Certificate
from sfumato.models import FeatureClassifier
from sfumato.randomness import public_generator
from sfumato.recipes.images.latent_model import LatentModel
from sfumato.recipes.images.statistics import Statistics
from sfumato.recipes.images.styles import Integers, Styles

Images = npt.NDArray[np.uint8]

SUREST = 0.9
"""This share of the images is kept: those whose label the head is surest of."""

_BATCH = 2000  # images drawn at a time


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Synthetic images and their labels."""

    images: Images  # (images, 28, 28)
    labels: Integers  # (images,)
    sure: npt.NDArray[np.float32]  # the probability that the head gives each label
    tried: int  # images that were drawn, those that were left out included

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSampler:
    """The released model: it draws as many images as wanted.

    Without `statistics` images are drawings as they are; without `head` they keep the class that they were
    drawn for.
    """

    styles: Styles
    statistics: Statistics | None
    head: FeatureClassifier | None
    class_names: tuple[str, ...]
    certificate: Certificate | None = None

    def draw(self, count: int, *, seed: int) -> Drawn:
        """`count` images; the same seed gives the same ones."""
        count = _validate.integer("count", count, least=1)
        generator = public_generator(seed)
        parts: list[Drawn] = []
        while missing := count - sum(map(len, parts)):
            size = _BATCH if missing > _BATCH else missing + missing // 8 + 2
            parts.append(self._labelled(*self._images(size, generator), most=missing))
        return Drawn(
            images=np.concatenate([part.images for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            sure=np.concatenate([part.sure for part in parts]),
            tried=sum(part.tried for part in parts),
        )

    @cached_property
    def _model(self) -> LatentModel | None:
        return None if self.statistics is None else LatentModel.of(self.statistics, self.styles)

    def _images(self, count: int, generator: np.random.Generator) -> tuple[Images, Integers]:
        """Images and the classes they were drawn for."""
        bank = self.styles.bank
        if self._model is None:
            labels = generator.integers(len(self.styles.centres), size=count)
            chosen = np.array([generator.choice(bank.members[label]) for label in labels])
            return bank.images[chosen], labels
        labels, latents = self._model.draw(count, generator)
        chosen = bank.nearest(labels, latents)
        wanted, had = (
            bank.net.decode(torch.from_numpy(each)).numpy()[:, 0]
            for each in (latents.astype(np.float32), bank.latents[chosen])
        )
        drawings = bank.images[chosen]
        moved = drawings / np.float32(255) + wanted - had
        if self.styles.settings.of_a_pen:
            return with_levels_of(drawings, moved), labels
        return np.rint(255 * np.clip(moved, 0.0, 1.0)).astype(np.uint8), labels

    def _labelled(self, images: Images, labels: Integers, *, most: int) -> Drawn:
        """At most so many, each with the label that the head reads, of those that it is surest of."""
        sure, kept = np.ones(len(images), dtype=np.float32), np.arange(len(images))
        if self.head is not None:
            chances = torch.softmax(self.head(to_inputs(images)), dim=1).detach()
            sure, labels = (part.numpy() for part in chances.max(dim=1))
            kept = np.flatnonzero(sure >= np.quantile(sure, 1 - SUREST))
        kept = kept[:most]
        return Drawn(images=images[kept], labels=labels[kept], sure=sure[kept], tried=len(images))


def to_inputs(images: Images) -> Tensor:
    """(images, 1, 28, 28) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images)).unsqueeze(1).float() / 255


def with_levels_of(drawings: Images, wanted: npt.NDArray[np.floating]) -> Images:
    """Each image with the grey levels of its drawing, laid out in the order of brightness that is wanted.

    What an autoencoder adds is faint and blurred; strokes of a pen are not.

    >>> levels = np.array([[[0, 255], [0, 128]]], dtype=np.uint8)
    >>> with_levels_of(levels, np.array([[[0.9, 0.1], [0.2, 0.3]]])).tolist()
    [[[255, 0], [0, 128]]]
    """
    order = np.argsort(wanted.reshape(len(wanted), -1), axis=1, kind="stable")
    images = np.empty(order.shape, dtype=np.uint8)
    np.put_along_axis(images, order, np.sort(drawings.reshape(order.shape), axis=1), axis=1)
    return images.reshape(drawings.shape)
