"""A public prior made at home among public images: features for teachers and students, at no cost in privacy.

A net that knows drawings of digits meets photographs of digits without labels. It is taught on drawings, whose
labels are known, and on those photographs that its own running average is sure of, turned and stretched, with
the label that average gives them (self-training with a strong augmentation: Sohn et al. 2020, "FixMatch",
section 2). Drawings and public images are nobody's secret: nothing here is charged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato import _validate, models, randomness
from sfumato.datasets import shapes, strokes
from sfumato.models import PriorNet

_DRAW: Mapping[str, Callable[..., tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]] = {
    "strokes": strokes.draw,
    "strokes-wide": strokes.draw,
    "strokes-wild": strokes.draw,
    "strokes-rare": partial(strokes.draw, rarer=True),
    "shapes": shapes.draw,
}
_CHUNK = 1000  # images through the net at a time


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How the prior is adapted; the values were chosen on rows of MNIST's training set declared public.

    Args:
        prior: The net to start from, a name of `sfumato.models.PRIORS`.
        steps: How many steps of self-training; 0 keeps the prior as it ships.
        drawings: How many drawings are seen again, so that their classes are not forgotten.
        drawn_batch: Drawings in a step.
        public_batch: Public images in a step.
        learning_rate: The step size.
        weight_decay: The weight decay.
        sure: The probability from which on the net's own label is believed.
        averaging: The decay of the average of weights.
        directions: How many principal directions of the public images' features are kept.
        seed: Fixes the order of images and drawings.

    >>> Adaptation(steps=0).directions
    128
    """

    prior: str = "strokes"
    steps: int = 320  # 0 keeps the prior as it ships
    drawings: int = 10_000
    drawn_batch: int = 32
    public_batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    sure: float = 0.9  # probability from which on the net's own label is believed
    averaging: float = 0.98
    directions: int = 128  # of the features that are kept: the first principal ones of the public images
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.one_of("prior", self.prior, _DRAW)
        _validate.integer("steps", self.steps)
        for name in ("drawings", "drawn_batch", "public_batch", "directions"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.probability("sure", self.sure)
        _validate.non_negative("averaging", self.averaging)
        _validate.non_negative("weight_decay", self.weight_decay)
        _validate.integer("seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Representation:
    """A net's features in their principal directions, and the net's own linear head on them; all public.

    Attributes:
        net: Gives the features.
        mean: (features,), taken off.
        basis: (features, directions).
        head: The net's own linear head on the directions.
    """

    net: PriorNet
    mean: Tensor  # (features,)
    basis: Tensor  # (features, directions)
    head: nn.Linear  # directions → classes

    @classmethod
    def of(cls, net: PriorNet, images: Tensor, *, directions: int, classes: int) -> Representation:
        """Principal directions of public images."""
        features = net_features(net, images)
        mean = features.mean(0)
        scatter = (features - mean).T @ (features - mean)
        basis = torch.linalg.eigh(scatter).eigenvectors.flip(1)[:, :directions].contiguous()
        weight, bias = net.linear.weight.detach()[:classes], net.linear.bias.detach()[:classes]
        head = nn.Linear(basis.shape[1], classes)
        with torch.no_grad():
            head.weight.copy_(weight @ basis)
            head.bias.copy_(bias + weight @ mean)
        return cls(net=net, mean=mean, basis=basis, head=head)

    def features(self, images: Tensor) -> Tensor:
        """(images, directions)."""
        return (net_features(self.net, images) - self.mean) @ self.basis

    def predictor(self, head: nn.Linear) -> PriorNet:
        """The net with this head in the place of its own, for images."""
        net = copy.deepcopy(self.net)
        weight = head.weight.detach() @ self.basis.T
        net.linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            net.linear.weight.copy_(weight)
            net.linear.bias.copy_(head.bias - weight @ self.mean)
        return net


def net_features(net: PriorNet, images: Tensor) -> Tensor:
    with torch.no_grad():
        parts = torch.split(images, _CHUNK)
        return torch.cat([net.features(part.to(memory_format=torch.channels_last)) for part in parts])


def adapt(
    images: npt.NDArray[np.float32],
    how: Adaptation,
    *,
    classes: int,
    progress: Callable[[int], None] = lambda step: None,
) -> Representation:
    """Self-train the prior among public images, which come without labels.

    Args:
        images: (examples, 1, 28, 28), public.
        how: The settings.
        classes: How many classes there are.
        progress: Called with the number of steps done.

    Returns:
        The adapted features and their head.

    ```python
    representation = adapt(public.inputs, Adaptation(), classes=10)
    ```
    """
    public = torch.from_numpy(images)
    net = models.load_prior(how.prior)
    average = net if how.steps == 0 else _self_train(net, public, how, classes, progress)
    directions = min(how.directions, len(public), net.feature_count)
    return Representation.of(average, public, directions=directions, classes=classes)


def _self_train(
    net: PriorNet, public: Tensor, how: Adaptation, classes: int, progress: Callable[[int], None]
) -> PriorNet:
    source = randomness.public_torch_generator(how.seed)
    levels, digits = _DRAW[how.prior](how.drawings, seed=how.seed)
    drawn, labels = torch.from_numpy(levels)[:, None].float() / 255, torch.from_numpy(digits)
    average = copy.deepcopy(net).requires_grad_(False)
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay)
    weights = torch.tensor([1 / how.drawn_batch]).repeat(how.drawn_batch)
    for step in range(how.steps):
        for group in optimizer.param_groups:
            group["lr"] = how.learning_rate * _rate(step / how.steps)
        rows = torch.randint(len(drawn), (how.drawn_batch,), generator=source)
        seen = public[torch.randint(len(public), (how.public_batch,), generator=source)]
        guesses, believed = _own_labels(average, seen, classes, how.sure)
        batch = torch.cat([drawn[rows], distorted(seen, source)])
        targets = torch.cat([labels[rows], guesses])
        loss = _loss(net, batch, targets) @ torch.cat([weights, believed / how.public_batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            for slow, quick in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(quick, 1 - how.averaging)
        progress(step + 1)
    return average


def _rate(share: float) -> float:
    """Up over the first fifth, then down along a cosine."""
    return share / 0.2 if share < 0.2 else 0.5 * (1 + math.cos(math.pi * (share - 0.2) / 0.8))


def _own_labels(average: PriorNet, images: Tensor, classes: int, sure: float) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        logits = average(images.to(memory_format=torch.channels_last))[:, :classes]
    chance, label = torch.softmax(logits, 1).max(1)
    return label, (chance > sure).float()


def _loss(net: PriorNet, images: Tensor, targets: Tensor) -> Tensor:
    """Of both heads, for each image."""
    body = net.body(images.to(memory_format=torch.channels_last))
    deep = F.cross_entropy(net.head(body), targets, reduction="none")
    return deep + F.cross_entropy(net.linear(F.normalize(body, dim=1)), targets, reduction="none")


def distorted(images: Tensor, source: torch.Generator) -> Tensor:
    """Each image turned, sheared, stretched and moved by its own random amounts."""
    count = len(images)

    def amount(most: float, *shape: int) -> Tensor:
        return (torch.rand(count, *shape, generator=source) * 2 - 1) * most

    turn, shear, stretch = amount(0.25), amount(0.25), 1 + amount(0.15, 2)
    first = torch.stack([turn.cos() * stretch[:, 0], shear - turn.sin()], dim=1)
    second = torch.stack([turn.sin(), turn.cos() * stretch[:, 1]], dim=1)
    matrix = torch.cat([torch.stack([first, second], dim=1), amount(0.1, 2)[..., None]], dim=2)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
