"""The student: a linear head on public features, taught by the answers and by what the features suggest.

Everything here is post-processing of public images and released labels.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato import _validate
from sfumato.pate.votes import MISSING, Integers


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """How the student learns; the values were chosen on rows of MNIST's training set declared public.

    Args:
        trust: The chance that a released label is right.
        softness: The temperature of the head that it starts from, which is too sure of itself.
        label_weight: The weight of an answered image against one with a guess.
        steps: How many steps are taken.
        learning_rate: The step size.
        momentum: The momentum of SGD.
        pull: The pull towards the first head, divided by the number of answers: few noisy ones move it
            less.

    >>> StudentConfig(steps=50).trust
    0.9
    """

    trust: float = 0.9  # chance that a released label is right
    softness: float = 2.0  # temperature of the head that it starts from, which is too sure of itself
    label_weight: float = 16.0  # of an answered image against one with a guess
    steps: int = 100
    learning_rate: float = 8.0
    momentum: float = 0.9
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
    """What to believe of each image: the head's guess, times the likelihood of the label if there is one.

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
    """Learn a head for public images from the labels released for some of them.

    Args:
        start: The head to start from.
        features: (rows, directions) of the public images.
        labels: (rows,), −1 where none was released.
        config: How the student learns.

    Returns:
        The new head.

    ```python
    head = learn(representation.head, representation.features(images), answers.labels)
    ```
    """
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
