"""Draws images from noisy statistics and public drawings, and labels them: post-processing, free of charge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from sfumato import _validate
from sfumato.ledger import Certificate
from sfumato.models import FeatureClassifier
from sfumato.randomness import public_generator
from sfumato.recipes.images.latent_model import LatentModel
from sfumato.recipes.images.statistics import Statistics
from sfumato.recipes.images.styles import Integers, Styles

Images = npt.NDArray[np.uint8]

CONFIDENCE = 0.5
"""An image is kept if the head gives its label at least this probability."""

_BATCH = 2000  # images drawn at a time
_MOST_ROUNDS = 8  # of drawing, for each that a head which drops nothing would need


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Synthetic images and their labels; `sure` is the probability that the head gave each label."""

    images: Images  # (images, 28, 28)
    labels: Integers  # (images,)
    sure: npt.NDArray[np.float32]
    tried: int  # images that were drawn, those that were dropped as the head was not sure of them included

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
        """`count` images; the same seed gives the same ones.

        Where the head is sure of hardly any, images that it is not sure of are taken in the end: `sure` tells.
        """
        count = _validate.integer("count", count, least=1)
        generator = public_generator(seed)
        parts: list[Drawn] = []
        patience = _MOST_ROUNDS * -(-count // _BATCH)
        while missing := count - sum(map(len, parts)):
            size = _BATCH if missing > _BATCH else missing + missing // 4 + 8
            least = CONFIDENCE if len(parts) < patience else 0.0
            parts.append(self._labelled(self._images(size, generator), missing, least))
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
        moved = bank.images[chosen] / np.float32(255) + wanted - had
        return np.rint(255 * np.clip(moved, 0.0, 1.0)).astype(np.uint8), labels

    def _labelled(self, drawn: tuple[Images, Integers], most: int, least: float) -> Drawn:
        """At most so many, each with the head's label, of those that it is sure enough of."""
        images, labels = drawn
        sure = np.ones(len(images), dtype=np.float32)
        if self.head is not None:
            chances = torch.softmax(self.head(torch.from_numpy(images).unsqueeze(1) / 255), dim=1)
            sure, labels = (part.detach().numpy() for part in chances.max(dim=1))
        kept = np.flatnonzero(sure >= least)[:most]
        return Drawn(images=images[kept], labels=labels[kept], sure=sure[kept], tried=len(images))
