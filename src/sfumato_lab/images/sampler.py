"""Draws images from noisy statistics and public drawings, and labels them: post-processing, free of charge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.learn import Recipe, features
from sfumato.ledger import Certificate
from sfumato.models import FeatureClassifier, PriorNet, prior_note
from sfumato.randomness import public_generator
from sfumato.released import ModelCard, model_bytes
from sfumato_lab.images.plan import Statistics
from sfumato_lab.images.styles import (
    PUBLIC,
    SIDE,
    Floats,
    Images,
    Integers,
    PublicSet,
    Styles,
    StyleSettings,
    View,
    looked_at,
    raw_view,
)

_FLOOR = 0.02  # of the mean variance: the least variance of a drawing's direction
_HIDDEN = 0.3  # of the longest direction of a covariance's noise: variance that it hides
_FRAMES = (10, 20, 40, 70, 110)  # first directions of the frames in which covariances are denoised
_FARTHEST = 3.0  # times: how far a direction is stretched at most
ANEW = 0.5
"""The share of things that are put anywhere in their class, for more variety than the drawings have."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moves:
    """One affine map for each class, between places in the view.

    The map is the optimal transport between two Gaussians (Peyré & Cuturi 2019, §2.6): it moves the drawings of
    a class as little as possible so that their mean and covariance become those of the private images. Where
    the noise hides the covariance, the drawings' own is kept. Of drawn things a share is put anywhere in the
    class before: at a Gaussian place of the drawings' own mean and covariance, so that the map fits it as well.
    """

    maps: Floats  # (classes, directions, directions), symmetric
    shifts: Floats  # (classes, directions)
    centres: Floats  # (classes, directions): the fixed points of the maps
    roots: Floats  # (classes, directions, directions): of the drawings' covariances
    anew: Floats  # (classes,): the share that is put anywhere

    @classmethod
    def of(cls, statistics: Statistics, styles: Styles) -> Moves:
        assert styles.spreads is not None
        people, known = statistics.people, statistics.known
        means = np.where(known[:, np.newaxis], statistics.sums / people[:, np.newaxis], 0.0)
        spreads = denoised(statistics, styles.spreads, people, means)
        size = styles.spreads.shape[1]
        noise = _HIDDEN * statistics.moment_sigma * np.sqrt(2 * size) / people
        maps = [
            transport(drawn, found, floor=floor) if sure else np.eye(size)
            for drawn, found, floor, sure in zip(styles.spreads, spreads, noise, known, strict=True)
        ]
        share = ANEW if styles.settings.prior == "shapes" else 0.0
        return cls(
            maps=np.stack(maps),
            shifts=styles.reach * means,
            centres=styles.centres,
            roots=np.stack([styles.reach * _power(drawn, 0.5) for drawn in styles.spreads]),
            anew=np.where(known, share, 0.0),
        )

    def steps(self, places: Floats, labels: Integers, generator: np.random.Generator) -> Floats:
        """By how much each place is moved."""
        apart = places - self.centres[labels]
        found = self.shifts[labels] - apart
        anew = generator.random(len(labels)) < self.anew[labels]
        for label in np.unique(labels):
            fresh, same = anew & (labels == label), labels == label
            apart[fresh] = generator.standard_normal(apart[fresh].shape) @ self.roots[label]
            found[same] += apart[same] @ self.maps[label]
        return found


def denoised(statistics: Statistics, drawn: Floats, people: Floats, means: Floats) -> Floats:
    """Return the classes' covariances, each shrunk towards their common one, and that to the drawings'.

    By the positive-part James–Stein estimator, on the matrices' entries, whose noise is known.
    """
    assert statistics.moments is not None
    found = statistics.moments / people[:, np.newaxis, np.newaxis] - np.einsum("ci,cj->cij", means, means)
    weights = people / people.sum()
    wider = np.clip(np.einsum("c,cii->", weights, found) / np.einsum("c,cii->", weights, drawn), 0.1, 10.0)
    beyond = found - wider * drawn
    variance = statistics.moment_sigma**2
    common = in_frames(np.tensordot(weights, beyond, axes=1), len(people) * variance / people.sum() ** 2)
    own = [in_frames(each - common, variance / count**2) for each, count in zip(beyond, people, strict=True)]
    return wider * drawn + common + np.stack(own)


def in_frames(matrix: Floats, variance: float) -> Floats:
    """A noisy covariance by frames: the entries of the first directions, then those of the next beside them.

    The first directions vary most, so that noise hides least of them. `variance`: of a diagonal entry's noise;
    off the diagonal it is half of that.
    """
    place = np.arange(len(matrix))
    frame = np.searchsorted(_FRAMES, np.maximum.outer(place, place), side="right")
    noise = variance * (0.5 + 0.5 * np.eye(len(matrix)))
    found = matrix.copy()
    for number in range(frame.max() + 1):
        inside = frame == number
        found[inside] = believed(matrix[inside], float(noise[inside].sum()))
    return found


def believed(matrix: Floats, noise: float) -> Floats:
    """Shrink a matrix towards zero, given its noise's squared length (positive-part James–Stein)."""
    length = float(np.square(matrix).sum())
    return matrix * max(0.0, 1.0 - noise / length) if length else matrix


def transport(drawn: Floats, wanted: Floats, *, floor: float = 0.0) -> Floats:
    """Q^−½ (Q^½ S Q^½)^½ Q^−½: the map of least effort from covariance Q to S.

    Both have `floor` more variance in each direction, so that directions with less than that keep their length.

    >>> bool(np.allclose(transport(np.eye(2), np.diag([4.0, 0.25])), np.diag([2.0, 0.5]), atol=0.05))
    True
    """
    more = (floor + _FLOOR * np.trace(drawn) / len(drawn)) * np.eye(len(drawn))
    root, inverse = _power(drawn + more, 0.5), _power(drawn + more, -0.5)
    found = inverse @ _power(root @ (wanted + more) @ root, 0.5) @ inverse
    values, vectors = np.linalg.eigh((found + found.T) / 2)
    bounded: Floats = (vectors * np.clip(values, 0.0, _FARTHEST)) @ vectors.T
    return bounded


def _power(matrix: Floats, power: float) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    positive = np.maximum(values, 1e-12 * max(values[-1], 1e-300))
    found: Floats = (
        vectors * (np.where(values > 0, positive, 0.0) if power > 0 else positive) ** power
    ) @ vectors.T
    return found


KEPT = 0.2
"""The share of the drawings that is kept."""

SLACK = 0.3
"""By how much the mean may fall short: this times the weights, in standard deviations of the drawings."""

_ROUNDS, _CLOSE = 50, 1e-6
_LONGEST = 4.0  # by how much a round changes a drawing's logit at most


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """A logistic chance for each place and class: σ(w·x + b).

    Of all chances that keep a share of the drawings and give those kept a mean m, these have the greatest
    entropy, so that they change the drawings no more than m asks for. They minimise the convex function
    E softplus(w·x + b) − KEPT (w·m + b) + ½ KEPT slack |w|², with x in standard deviations of the drawings.
    """

    weights: Floats  # (classes, directions)
    offsets: Floats  # (classes,)

    @classmethod
    def of(cls, statistics: Statistics, styles: Styles) -> Choice:
        """For the private means; a class whose mean the noise hides keeps its drawings as they are."""
        found = []
        for label, places in enumerate(styles.places):
            centre, scale = styles.centres[label], places.std(axis=0) + 1e-9
            people = statistics.people[label]
            apart = styles.reach * statistics.sums[label] / people / scale
            noise = float(np.square(styles.reach * statistics.sum_sigma / people / scale).sum())
            wanted = believed(apart, noise) if statistics.known[label] else 0.0 * apart
            weights, offset = fitted((places - centre) / scale, wanted)
            found.append((weights / scale, offset - weights @ (centre / scale)))
        return cls(
            weights=np.stack([weights for weights, _ in found]),
            offsets=np.array([offset for _, offset in found]),
        )

    def chances(self, places: Floats, labels: Integers) -> Floats:
        """The chance of each drawing to be kept."""
        return _logistic(np.einsum("nd,nd->n", places, self.weights[labels]) + self.offsets[labels])


def fitted(rows: Floats, wanted: Floats) -> tuple[Floats, float]:
    """Newton's method for the weights and the offset of one class, on drawings of unit variance.

    >>> rows = np.random.default_rng(1).standard_normal((20_000, 1))
    >>> weights, offset = fitted(rows, np.array([1.0]))
    >>> chances = _logistic(rows @ weights + offset)
    >>> round(float(chances.mean()), 2), round(float(chances @ rows[:, 0] / chances.sum()), 1)
    (0.2, 0.7)
    """
    inputs = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    target = KEPT * np.append(wanted, 1.0)
    slack = KEPT * np.append(np.full(len(wanted), SLACK), 1e-9)
    weights = np.append(np.zeros(len(wanted)), np.log(KEPT / (1 - KEPT)))
    for _ in range(_ROUNDS):
        chances = _logistic(inputs @ weights)
        slope = chances @ inputs / len(inputs) - target + slack * weights
        curve = (inputs * (chances * (1 - chances))[:, np.newaxis]).T @ inputs / len(inputs)
        step = np.linalg.solve(curve + np.diag(slack + 1e-9), slope)
        weights = weights - step * min(1.0, _LONGEST / max(1e-9, float(np.abs(inputs @ step).max())))
        if float(np.abs(slope).max()) < _CLOSE:
            break
    return weights[:-1], float(weights[-1])


def _logistic(values: Floats) -> Floats:
    found: Floats = 0.5 * (1.0 + np.tanh(0.5 * values))
    return found


SUREST = 0.85
"""This share of the images is kept: those whose label the head is surest of."""

POSSIBLE = 0.05
"""Least probability that the head must give the drawn kind, as a multiple of its label's."""

_FAMILIES = np.array([0, 1, 0, 0, 0, 2, 0, 2, 3, 2])
"""Families of clothes: tops, trousers, shoes, bags. No kind is taken for one of another family."""

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
        """Label each image by the head; leave out images that it reads as another kind than was drawn.

        Digits must be read as the drawn digit; of things, that must be possible, and clothes stay in their
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


ARCHITECTURE = "synthetic images"
_HEAD, _EXTRACTORS = "head.", "extractors."  # the extractors are public, and installed


def sampler_bytes(sampler: ImageSampler, recipe: Recipe) -> bytes:
    """Return the sampler's parameters as bytes, without the files that come with the package."""
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
