"""The sampler as one file of tensors that says what they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.learn import features
from sfumato.learn.features import Recipe
from sfumato.models import FeatureClassifier, PriorNet, prior_note
from sfumato.released import ModelCard, model_bytes
from sfumato_lab.images.choice import Choice
from sfumato_lab.images.sampler import ImageSampler
from sfumato_lab.images.statistics import Statistics
from sfumato_lab.images.styles import PUBLIC, SIDE, Floats, PublicSet, Styles, StyleSettings, View, raw_view

ARCHITECTURE = "synthetic images"
_HEAD, _EXTRACTORS = "head.", "extractors."  # the extractors are public, and installed


def sampler_bytes(sampler: ImageSampler, recipe: Recipe) -> bytes:
    """Everything that the sampler draws from, except what comes with the package."""
    card = ModelCard(
        architecture=ARCHITECTURE,
        classes=sampler.class_names,
        shape=features.SHAPE,
        settings={
            "styles": asdict(sampler.styles.settings),
            "reach": sampler.styles.reach,
            "recipe": None if sampler.head is None else asdict(recipe),
            "sigmas": None
            if (noisy := sampler.statistics) is None
            else [noisy.count_sigma, noisy.sum_sigma, noisy.moment_sigma],
        },
        priors=_priors(sampler, recipe),
    )
    styles, noisy, choice = sampler.styles, sampler.statistics, sampler.choice
    parts = {
        "centres": styles.centres,
        "spreads": styles.spreads,
        "counts": noisy and noisy.counts,
        "sums": noisy and noisy.sums,
        "moments": noisy and noisy.moments,
        "choice.weights": choice and choice.weights,
        "choice.offsets": choice and choice.offsets,
        "public.images": styles.public and styles.public.images,
        "public.kinds": styles.public and styles.public.kinds,
    }
    tensors = {name: torch.from_numpy(part) for name, part in parts.items() if part is not None}
    tensors |= {"view.centre": styles.view.centre, "view.directions": styles.view.directions}
    if sampler.head is not None:
        tensors |= {f"{_HEAD}{name}": value for name, value in _own_part(sampler.head).items()}
    return model_bytes(card, tensors)


def sampler_from(card: ModelCard, tensors: Mapping[str, Tensor]) -> ImageSampler:
    """The sampler that `sampler_bytes` wrote; any error means that the file is another."""
    settings = StyleSettings(**card.settings["styles"])
    arrays = _Arrays(tensors, classes=len(card.classes), size=settings.size)
    statistics = None if card.settings["sigmas"] is None else _statistics(card, settings, arrays)
    return ImageSampler(
        styles=_styles(settings, card, tensors, arrays),
        statistics=statistics,
        head=_head(card, tensors),
        class_names=card.classes,
        choice=None if statistics is None or settings.moved else _choice(arrays),
    )


@dataclass(frozen=True)
class _Arrays:
    """Arrays by name, each of a shape in classes and directions."""

    tensors: Mapping[str, Tensor]
    classes: int
    size: int

    def __call__(self, name: str, dimensions: int) -> Floats:
        """(classes, size, …) in so many dimensions."""
        _expect(self.tensors[name], (self.classes, *[self.size] * (dimensions - 1)), torch.float64)
        return self.tensors[name].numpy()


def _styles(settings: StyleSettings, card: ModelCard, tensors: Mapping[str, Tensor], arrays: _Arrays) -> Styles:
    values = math.prod(features.SHAPE) if settings.moved else PriorNet.feature_count
    _expect(tensors["view.centre"], (values,), torch.float32)
    _expect(tensors["view.directions"], (values, settings.directions), torch.float32)
    if not card.settings["reach"] > 0:
        raise ValueError("expected a positive reach")
    return Styles(
        settings=settings,
        view=View(
            raw=raw_view(settings),
            centre=tensors["view.centre"],
            directions=tensors["view.directions"],
            textured=settings.moved,
        ),
        centres=arrays("centres", 2),
        spreads=arrays("spreads", 3) if settings.moved else None,
        reach=float(card.settings["reach"]),
        public=_public(tensors) if settings.prior == PUBLIC else None,
    )


def _public(tensors: Mapping[str, Tensor]) -> PublicSet:
    images, kinds = tensors["public.images"], tensors["public.kinds"]
    _expect(images, (len(kinds), SIDE, SIDE), torch.uint8)
    _expect(kinds, (len(kinds),), torch.int64)
    return PublicSet(images=images.numpy(), kinds=kinds.numpy())


def _statistics(card: ModelCard, settings: StyleSettings, arrays: _Arrays) -> Statistics:
    count, total, moment = (float(value) for value in card.settings["sigmas"])
    return Statistics(
        counts=arrays("counts", 1),
        sums=arrays("sums", 2),
        moments=arrays("moments", 3) if settings.moved else None,
        count_sigma=count,
        sum_sigma=total,
        moment_sigma=moment,
    )


def _choice(arrays: _Arrays) -> Choice:
    return Choice(weights=arrays("choice.weights", 2), offsets=arrays("choice.offsets", 1))


def _head(card: ModelCard, tensors: Mapping[str, Tensor]) -> FeatureClassifier | None:
    if card.settings["recipe"] is None:
        return None
    network = features.bare(Recipe.from_json(card.settings["recipe"]), classes=len(card.classes))
    own = {name.removeprefix(_HEAD): value for name, value in tensors.items() if name.startswith(_HEAD)}
    if set(own) != set(_own_part(network)) or any(not bool(value.isfinite().all()) for value in own.values()):
        raise ValueError("expected a head on public features")
    network.load_state_dict({**network.state_dict(), **own})
    return network.eval()


def _own_part(head: FeatureClassifier) -> dict[str, Tensor]:
    return {name: value for name, value in head.state_dict().items() if not name.startswith(_EXTRACTORS)}


def _expect(tensor: Tensor, shape: tuple[int, ...], dtype: Any) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not bool(tensor.isfinite().all()):
        raise ValueError(f"expected {dtype} of shape {shape}, all finite")


def _priors(sampler: ImageSampler, recipe: Recipe) -> dict[str, str]:
    names = {sampler.styles.settings.net, *(() if sampler.head is None else recipe.priors)}
    return {name: prior_note(name)["sha256"] for name in sorted(names)}
