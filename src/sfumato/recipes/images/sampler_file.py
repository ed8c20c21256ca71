"""The sampler as one file of tensors that says what they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.models import FeatureClassifier, PriorNet, prior_note
from sfumato.recipes import features
from sfumato.recipes.features import Recipe
from sfumato.recipes.images.sampler import ImageSampler
from sfumato.recipes.images.statistics import Layout, Statistics
from sfumato.recipes.images.styles import Styles, StyleSettings, View, raw_view
from sfumato.released import ModelCard, model_bytes

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
            else [noisy.count_sigma, noisy.moment_sigma],
        },
        priors=_priors(sampler, recipe),
    )
    tensors = {
        "centres": torch.from_numpy(sampler.styles.centres),
        "drawn": torch.from_numpy(sampler.styles.drawn),
        "spreads": torch.from_numpy(sampler.styles.spreads),
        "view.centre": sampler.styles.view.centre,
        "view.directions": sampler.styles.view.directions,
    }
    if sampler.statistics is not None:
        for name in ("counts", "sums", "moments"):
            tensors[name] = torch.from_numpy(np.asarray(getattr(sampler.statistics, name)))
    if sampler.head is not None:
        tensors |= {f"{_HEAD}{name}": value for name, value in _own_part(sampler.head).items()}
    return model_bytes(card, tensors)


def sampler_from(card: ModelCard, tensors: Mapping[str, Tensor]) -> ImageSampler:
    """The sampler that `sampler_bytes` wrote; any error means that the file is another."""
    settings = StyleSettings(**card.settings["styles"])
    return ImageSampler(
        styles=_styles(settings, card, tensors),
        statistics=_statistics(card, tensors, Layout.of(settings, classes=len(card.classes))),
        head=_head(card, tensors),
        class_names=card.classes,
    )


def _styles(settings: StyleSettings, card: ModelCard, tensors: Mapping[str, Tensor]) -> Styles:
    classes, fine, size = len(card.classes), settings.fine, settings.size
    values = math.prod(features.SHAPE) if settings.moved else PriorNet.feature_count
    for name, shape in (
        ("centres", (classes, fine, size)),
        ("drawn", (classes, fine)),
        ("spreads", (classes, size, size)),
    ):
        _expect(tensors[name], shape, torch.float64)
    _expect(tensors["view.centre"], (values,), torch.float32)
    _expect(tensors["view.directions"], (values, settings.directions), torch.float32)
    if not bool((tensors["drawn"] >= 0).all()) or not card.settings["reach"] > 0:
        raise ValueError("expected shares of the drawings, and a positive reach")
    return Styles(
        settings=settings,
        view=View(
            raw=raw_view(settings),
            centre=tensors["view.centre"],
            directions=tensors["view.directions"],
            textured=settings.moved,
        ),
        centres=tensors["centres"].numpy(),
        drawn=tensors["drawn"].numpy(),
        spreads=tensors["spreads"].numpy(),
        reach=float(card.settings["reach"]),
    )


def _statistics(card: ModelCard, tensors: Mapping[str, Tensor], layout: Layout) -> Statistics | None:
    if card.settings["sigmas"] is None:
        return None
    size = layout.directions
    shapes = {
        "counts": (layout.classes, layout.fine),
        "sums": (layout.classes, size),
        "moments": (layout.classes, size, size),
    }
    for name, shape in shapes.items():
        _expect(tensors[name], shape, torch.float64)
    count, moment = (float(value) for value in card.settings["sigmas"])
    return Statistics(
        **{name: tensors[name].numpy() for name in shapes}, count_sigma=count, moment_sigma=moment
    )


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
    names = {sampler.styles.settings.prior, *(() if sampler.head is None else recipe.priors)}
    return {name: prior_note(name)["sha256"] for name in sorted(names)}
