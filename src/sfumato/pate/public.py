"""A public prior made at home among public images: features for teachers and students, at no cost in privacy.

Nets that know drawings of digits meet photographs of digits without labels. They are taught on drawings, whose
labels are known, and on those photographs that their running averages are sure of together, turned and
stretched for each net by itself, with the label that those give them (self-training with a strong augmentation:
Sohn et al. 2020, "FixMatch", section 2). Drawings and public images hold no secret: nothing is charged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato import _validate, models, randomness
from sfumato.datasets import draw
from sfumato.datasets.drawings import NETS, TOGETHER
from sfumato.models import JoinedPriors, PriorNet
from sfumato.pate.votes import MISSING, Integers

_DRAWN: Mapping[str, str] = {
    **dict.fromkeys(("strokes", "strokes-wide", "strokes-wild"), "strokes"),
    "strokes-rare": "strokes-rarer",
    "shapes": "shapes",
}
_CHUNK = 1000  # images through the net at a time


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How the prior is adapted; the values were chosen on rows of MNIST's training set declared public.

    Args:
        prior: The first prior, a name of `sfumato.datasets.drawings.NETS`: one net, or several together.
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

    prior: str = TOGETHER
    steps: int = 240  # 0 keeps the prior as it ships
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
        _validate.one_of("prior", self.prior, NETS)
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
    """Nets' features in their principal directions, and the nets' own linear head on them; all public."""

    nets: JoinedPriors
    mean: Tensor  # (features,)
    basis: Tensor  # (features, directions)
    head: nn.Linear  # directions → classes

    @classmethod
    def of(cls, nets: JoinedPriors, images: Tensor, *, directions: int) -> Representation:
        """Principal directions of public images."""
        features = net_features(nets, images)
        mean = features.mean(0)
        scatter = (features - mean).T @ (features - mean)
        basis = torch.linalg.eigh(scatter).eigenvectors.flip(1)[:, :directions].contiguous()
        weight, bias = nets.linear.weight.detach(), nets.linear.bias.detach()
        head = nn.Linear(basis.shape[1], len(bias))
        with torch.no_grad():
            head.weight.copy_(weight @ basis)
            head.bias.copy_(bias + weight @ mean)
        return cls(nets=nets, mean=mean, basis=basis, head=head)

    def features(self, images: Tensor) -> Tensor:
        """(images, directions)."""
        return (net_features(self.nets, images) - self.mean) @ self.basis

    def predictor(self, head: nn.Linear) -> JoinedPriors:
        """The nets with this head in the place of their own, for images."""
        nets = copy.deepcopy(self.nets)
        weight = head.weight.detach() @ self.basis.T
        with torch.no_grad():
            nets.linear.weight.copy_(weight)
            nets.linear.bias.copy_(head.bias - weight @ self.mean)
        return nets


def net_features(nets: JoinedPriors, images: Tensor) -> Tensor:
    with torch.no_grad():
        parts = torch.split(images, _CHUNK)
        return torch.cat([nets.features(part.to(memory_format=torch.channels_last)) for part in parts])


def adapt(
    images: npt.NDArray[np.float32],
    how: Adaptation,
    *,
    classes: int,
    progress: Callable[[int], None] = lambda step: None,
) -> Representation:
    """Self-train the prior among public images, which come without labels."""
    public = torch.from_numpy(images)
    nets = [models.load_prior(name) for name in NETS[how.prior]]
    averages = nets if how.steps == 0 else _self_train(nets, public, how, classes, progress)
    joined = JoinedPriors.of(averages, classes=classes)
    directions = min(how.directions, len(public), joined.linear.in_features)
    return Representation.of(joined, public, directions=directions)


def _self_train(
    nets: Sequence[PriorNet], public: Tensor, how: Adaptation, classes: int, progress: Callable[[int], None]
) -> Sequence[PriorNet]:
    source = randomness.public_torch_generator(how.seed)
    learners = [_Learner.of(net, name, how) for net, name in zip(nets, NETS[how.prior], strict=True)]
    averages = [learner.average for learner in learners]
    for step in range(how.steps):
        seen = public[torch.randint(len(public), (how.public_batch,), generator=source)]
        guesses, believed = _own_labels(averages, seen, classes, how.sure)
        rate = how.learning_rate * _rate(step / how.steps)
        for learner in learners:
            learner.step(seen, guesses, believed, how, rate=rate, source=source)
        progress(step + 1)
    return averages


@dataclass(frozen=True, kw_only=True)
class _Learner:
    """One of the nets that learn together, its drawings, and the average of its weights."""

    net: PriorNet
    average: PriorNet
    drawn: Tensor
    labels: Tensor
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, net: PriorNet, name: str, how: Adaptation) -> _Learner:
        drawn, digits = draw(_DRAWN[name], how.drawings, seed=how.seed)
        return cls(
            average=copy.deepcopy(net).requires_grad_(False),
            net=net.train(),
            drawn=torch.from_numpy(drawn)[:, None],
            labels=torch.from_numpy(digits),
            optimizer=torch.optim.AdamW(net.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay),
        )

    def step(
        self,
        seen: Tensor,
        guesses: Tensor,
        believed: Tensor,
        how: Adaptation,
        *,
        rate: float,
        source: torch.Generator,
    ) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        rows = torch.randint(len(self.drawn), (how.drawn_batch,), generator=source)
        batch = torch.cat([self.drawn[rows], distorted(seen, source)])
        targets = torch.cat([self.labels[rows], guesses])
        certain = torch.full((how.drawn_batch,), 1 / how.drawn_batch)
        loss = _loss(self.net, batch, targets) @ torch.cat([certain, believed / how.public_batch])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            for slow, quick in zip(self.average.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(quick, 1 - how.averaging)


def _rate(share: float) -> float:
    """Up over the first fifth, then down along a cosine."""
    return share / 0.2 if share < 0.2 else 0.5 * (1 + math.cos(math.pi * (share - 0.2) / 0.8))


def _own_labels(
    averages: Sequence[PriorNet], images: Tensor, classes: int, sure: float
) -> tuple[Tensor, Tensor]:
    """Return the label of all heads of all nets together, by the mean of their log-probabilities."""
    laid_out, said = images.to(memory_format=torch.channels_last), []
    with torch.no_grad():
        for net in averages:
            body = net.body(laid_out)
            for logits in (net.head(body), net.linear(F.normalize(body, dim=1))):
                said.append(F.log_softmax(logits[:, :classes], 1))
    chance, label = torch.softmax(torch.stack(said).mean(0), 1).max(1)
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


# The student: post-processing of public images and released labels


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """How the student learns; the values were chosen on rows of MNIST's training set declared public.

    >>> StudentConfig(steps=50).trust
    0.9
    """

    trust: float = 0.9  # the chance that a released label is right
    softness: float = 2.0  # the temperature of the head that it starts from, which is too sure of itself
    label_weight: float = 16.0  # the weight of an answered image against one with a guess
    steps: int = 100  # how many steps are taken
    learning_rate: float = 8.0  # the step size
    momentum: float = 0.9  # the momentum of SGD
    pull: float = 0.02  # towards the first head, divided by the number of answers: few noisy ones move it less

    def __post_init__(self) -> None:
        _validate.probability("trust", self.trust)
        for name in ("softness", "label_weight", "learning_rate"):
            _validate.positive(name, getattr(self, name))
        _validate.integer("steps", self.steps)
        _validate.non_negative("momentum", self.momentum)
        _validate.non_negative("pull", self.pull)


def least_sure(head: nn.Linear, features: Tensor) -> Tensor:
    """How narrowly the head decides: difference of its two largest probabilities for each image."""
    with torch.no_grad():
        top = torch.softmax(head(features), 1).topk(min(2, head.out_features), dim=1).values
    return top[:, 0] - top[:, 1] if top.shape[1] == 2 else top[:, 0]


def beliefs(head: nn.Linear, features: Tensor, labels: Integers, config: StudentConfig) -> Tensor:
    """Return target probabilities of each image: the head's guess, times the likelihood of its label, if any.

    P(y | x, label) ∝ P(y | x) · (trust if y = label else (1−trust)/(classes−1)): a label that noise has made is
    not believed against a sure guess.
    """
    with torch.no_grad():
        logs = F.log_softmax(head(features) / config.softness, 1)
    answered = np.flatnonzero(labels != MISSING)
    classes = head.out_features
    if classes > 1 and len(answered):
        wrong = max((1 - config.trust) / (classes - 1), 1e-12)
        update = torch.full((len(answered), classes), float(np.log(wrong)))
        update[torch.arange(len(answered)), torch.from_numpy(labels[answered])] = float(np.log(config.trust))
        logs[torch.from_numpy(answered)] += update
    return torch.softmax(logs, 1)


def learn(
    start: nn.Linear, features: Tensor, labels: Integers, config: StudentConfig | None = None
) -> nn.Linear:
    """Learn a head for public images from the labels released for some of them."""
    config = StudentConfig() if config is None else config
    targets = beliefs(start, features, labels, config)
    weights = torch.where(torch.from_numpy(labels != MISSING), config.label_weight, 1.0)
    weights = weights / weights.sum().clamp(min=1.0)
    head = copy.deepcopy(start).requires_grad_(True)
    first = [parameter.detach().clone() for parameter in head.parameters()]
    pull = config.pull / max(1, int((labels != MISSING).sum()))
    optimizer = torch.optim.SGD(head.parameters(), lr=config.learning_rate, momentum=config.momentum)
    for _ in range(config.steps):
        loss = -(weights[:, None] * targets * F.log_softmax(head(features), 1)).sum()
        for parameter, anchor in zip(head.parameters(), first, strict=True):
            loss = loss + 0.5 * pull * (parameter - anchor).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return head.requires_grad_(False)
