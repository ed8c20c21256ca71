"""Views: public maps of images to a few directions, the same for everyone.

The noise on a report grows with the number of directions, so that few of them should hold most of the signal.
Which ones is decided by public knowledge alone: features of a prior learnt from drawings, and the spread of the
drawings' classes in them; or, with no prior at all, the low frequencies of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.datasets import draw
from sfumato.datasets.drawings import NETS, TOGETHER
from sfumato.errors import InvalidInput
from sfumato.local.estimates import ClassMoments

Floats32 = npt.NDArray[np.float32]

PRIORS = tuple(NETS)
LOW_FREQUENCIES = "low-frequencies"
KINDS = (*PRIORS, LOW_FREQUENCIES)
DIMENSIONS = {**dict.fromkeys(PRIORS, 40), TOGETHER: 64, LOW_FREQUENCIES: 60}
"""Directions for each kind; chosen on drawn digits, rotated and slanted; 64 on training rows of MNIST."""

_DRAWINGS = 12_000  # of which the public spread is measured
_PUBLIC_SEED = 3
_KEPT = 160  # principal directions in which classes are told apart
_RIDGE = 0.05  # of the mean variance within classes, added before whitening
_SIDE = 28
_BATCH = 1000  # images through the prior at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Features, less a centre, times a matrix, scaled to length 1; all of it public."""

    kind: str
    centre: Floats32  # (features,)
    matrix: Floats32  # (features, dimension)
    public: ClassMoments | None = None  # of drawings seen this way

    def __post_init__(self) -> None:
        _validate.one_of("view", self.kind, KINDS)

    @property
    def dimension(self) -> int:
        return int(self.matrix.shape[1])

    def of_classes(self, classes: int) -> View:
        """Without the drawings' moments if they are of another number of classes: only the directions serve."""
        if self.public is None or len(self.public.shares) == classes:
            return self
        return replace(self, public=None)

    def directions(self, images: Floats32) -> Floats32:
        """(images, dimension), each of length 1; an image without any contrast becomes the first direction."""
        return self.directions_of(features(self.kind, images))

    def directions_of(self, seen: Floats32) -> Floats32:
        vectors = (seen - self.centre) @ self.matrix
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        blank = lengths[:, 0] <= 1e-12
        vectors[blank, 0] = 1.0
        lengths[blank] = 1.0
        return vectors / lengths


def build_view(kind: str, dimension: int | None = None) -> View:
    """Build a view from drawings and formulas, never from people's data.

    Args:
        kind: A name of `KINDS`.
        dimension: How many directions are kept; a number for each kind by default.

    Returns:
        The view.

    ```python
    view = build_view("strokes", 40)
    ```
    """
    _validate.one_of("view", kind, KINDS)
    size = _validate.integer("dimension", DIMENSIONS[kind] if dimension is None else dimension, least=2)
    return _prior_view(kind, size) if kind in PRIORS else _frequency_view(size)


def features(kind: str, images: Floats32) -> Floats32:
    """(images, features): of the prior, or coefficients of the cosine transform."""
    pictures = check_images(images)
    if kind in PRIORS:
        return prior_outputs(kind, pictures)[0]
    from scipy.fft import dctn

    return dctn(pictures, axes=(1, 2), norm="ortho").reshape(len(pictures), -1).astype(np.float32)


def prior_outputs(kind: str, images: Floats32) -> tuple[Floats32, Floats32]:
    """Features (images, 576 of each net) and log-probabilities (images, classes), the mean of all heads."""
    import torch
    from torch.nn import functional

    from sfumato import models

    nets = [models.load_prior(name) for name in NETS[kind]]
    seen, scores = [], []
    with torch.inference_mode():
        for batch in torch.split(torch.from_numpy(check_images(images)[:, None]), _BATCH):
            bodies = [net.body(batch.to(memory_format=torch.channels_last)) for net in nets]
            units = [functional.normalize(body, dim=1) for body in bodies]
            answers = [net.head(body) for net, body in zip(nets, bodies, strict=True)]
            answers += [net.linear(unit) for net, unit in zip(nets, units, strict=True)]
            seen.append(torch.cat(units, dim=1).numpy())
            scores.append(torch.stack([answer.log_softmax(1) for answer in answers]).mean(0).numpy())
    return np.concatenate(seen), np.concatenate(scores)


def check_images(images: npt.NDArray[np.float32]) -> Floats32:
    """(images, 28, 28) in [0, 1]; anything else is refused, and the message shows none of it."""
    pictures = np.asarray(images, dtype=np.float32)
    if pictures.ndim == 4 and pictures.shape[1] == 1:
        pictures = pictures[:, 0]
    if pictures.shape[1:] != (_SIDE, _SIDE) or not len(pictures):
        raise InvalidInput(
            f"expected images of shape (images, {_SIDE}, {_SIDE}), got {pictures.shape}; resize each by itself"
        )
    if not (pictures.min() >= 0.0 and pictures.max() <= 1.0):  # NaN compares as false
        raise InvalidInput("expected grey values from 0 to 1, got some outside or not finite; scale each image")
    return np.ascontiguousarray(pictures)


def _prior_view(kind: str, dimension: int) -> View:
    """Directions along which drawings of different classes differ most, against the spread within classes."""
    images, labels = draw(kind, _DRAWINGS, seed=_PUBLIC_SEED)
    seen = features(kind, images)
    centre = seen.mean(axis=0)
    matrix = _discriminating(seen - centre, labels, dimension)
    bare = View(kind=kind, centre=centre, matrix=matrix)
    public = ClassMoments.of(bare.directions_of(seen), labels, int(labels.max()) + 1)
    return View(kind=kind, centre=centre, matrix=matrix, public=public)


def _discriminating(centred: Floats32, labels: npt.NDArray[np.int64], dimension: int) -> Floats32:
    """Whitened within classes, then the principal directions of the rest (Fisher's come first)."""
    _, directions = np.linalg.eigh(np.cov(centred.T))
    principal = directions[:, ::-1][:, :_KEPT]
    rows = centred @ principal
    means = np.stack([rows[labels == label].mean(axis=0) for label in range(int(labels.max()) + 1)])
    within = np.cov((rows - means[labels]).T)
    within += _RIDGE * float(np.trace(within)) / len(within) * np.eye(len(within))
    values, vectors = np.linalg.eigh(within)
    whitening = vectors / np.sqrt(values)
    _, spread = np.linalg.eigh(whitening.T @ np.cov(rows.T) @ whitening)
    return (principal @ whitening @ spread[:, ::-1][:, :dimension]).astype(np.float32)


def _frequency_view(dimension: int) -> View:
    """The lowest frequencies but the mean brightness, higher ones raised as images hold less of them."""
    across, down = np.meshgrid(np.arange(_SIDE), np.arange(_SIDE))
    frequency = np.hypot(across, down).reshape(-1)
    order = np.argsort(frequency, kind="stable")[1 : dimension + 1]
    matrix = np.zeros((_SIDE * _SIDE, dimension), dtype=np.float32)
    matrix[order, np.arange(dimension)] = (1.0 + frequency[order]) ** 0.7
    return View(kind=LOW_FREQUENCIES, centre=_blob(), matrix=matrix)


def _blob() -> Floats32:
    """The cosine transform of a round blob: a guess of the mean image of anything centred in a frame."""
    place = np.arange(_SIDE) - (_SIDE - 1) / 2.0
    squares = place[:, None] ** 2 + place[None, :] ** 2
    return features(LOW_FREQUENCIES, np.exp(-squares / 50.0)[None].astype(np.float32) * 0.65)[0]
