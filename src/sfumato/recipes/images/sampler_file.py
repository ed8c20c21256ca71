"""The sampler as one file of tensors that says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato import models
from sfumato.models import FeatureClassifier, prior_note
from sfumato.models.latents import latents_note
from sfumato.recipes import features
from sfumato.recipes.features import Recipe
from sfumato.recipes.images.sampler import ImageSampler
from sfumato.recipes.images.statistics import Layout, Statistics
from sfumato.recipes.images.styles import Styles, StyleSettings
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
            "count_sigma": None if sampler.statistics is None else sampler.statistics.count_sigma,
        },
        priors=_priors(sampler, recipe),
    )
    tensors = {
        "centres": torch.from_numpy(sampler.styles.centres),
        "groups": torch.from_numpy(sampler.styles.groups),
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
    classes = len(card.classes)
    centres, groups = tensors["centres"], tensors["groups"]
    latents = models.load_latents(settings.latents).size
    layout = Layout(classes=classes, fine=settings.fine, coarse=settings.coarse, latents=latents)
    _expect(centres, (classes, layout.fine, latents), torch.float64)
    _expect(groups, (classes, layout.fine), torch.int64)
    if not bool(((groups >= 0) & (groups < layout.coarse)).all()) or not card.settings["reach"] > 0:
        raise ValueError("expected groups of the clusters, and a positive reach")
    return ImageSampler(
        styles=Styles(
            settings=settings,
            centres=centres.numpy(),
            groups=groups.numpy(),
            reach=float(card.settings["reach"]),
        ),
        statistics=_statistics(card, tensors, layout),
        head=_head(card, tensors),
        class_names=card.classes,
    )


def _statistics(card: ModelCard, tensors: Mapping[str, Tensor], layout: Layout) -> Statistics | None:
    sigma = card.settings["count_sigma"]
    if sigma is None:
        return None
    size = layout.latents
    shapes = {
        "counts": (layout.classes, layout.fine),
        "sums": (layout.classes, layout.coarse, size),
        "moments": (layout.classes, size, size),
    }
    for name, shape in shapes.items():
        _expect(tensors[name], shape, torch.float64)
    return Statistics(**{name: tensors[name].numpy() for name in shapes}, count_sigma=float(sigma))


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
    latents = sampler.styles.settings.latents
    names = () if sampler.head is None else recipe.priors
    return {latents: latents_note(latents)["sha256"], **{name: prior_note(name)["sha256"] for name in names}}
