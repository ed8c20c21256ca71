"""Every model by name, built with public, seeded initial weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from sfumato import _validate, randomness
from sfumato.models.cnn import CNN
from sfumato.models.mlp import MLP
from sfumato.models.resnet import resnet18
from sfumato.models.tanh_cnn import TanhCNN


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model must take in and tell apart.

    Args:
        classes: How many classes it must tell apart.
        in_channels: Channels of an image.
        side: Height and width of an image.

    >>> Task(classes=2).side
    28
    """

    classes: int = 10
    in_channels: int = 1
    side: int = 28

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, least=1)
        _validate.integer("in_channels", self.in_channels, least=1)
        _validate.integer("side", self.side, least=1)


def _cnn(task: Task) -> nn.Module:
    return CNN(classes=task.classes, in_channels=task.in_channels, side=task.side)


def _tanh_cnn(task: Task) -> nn.Module:
    return TanhCNN(classes=task.classes, in_channels=task.in_channels, side=task.side)


def _mlp(task: Task) -> nn.Module:
    return MLP(in_features=task.in_channels * task.side**2, classes=task.classes)


def _resnet18(task: Task) -> nn.Module:
    return resnet18(in_channels=task.in_channels, classes=task.classes)


MODELS: dict[str, Callable[[Task], nn.Module]] = {
    "cnn": _cnn,
    "tanh-cnn": _tanh_cnn,
    "resnet18": _resnet18,
    "mlp": _mlp,
}


def build(name: str, *, classes: int = 10, in_channels: int = 1, side: int = 28, seed: int = 0) -> nn.Module:
    """A model for images side×side; the same seed gives the same weights, and no other draw is disturbed.

    Args:
        name: A name of `MODELS`.
        classes: How many outputs there are.
        in_channels: Channels of an image.
        side: Height and width of an image.
        seed: Fixes the first weights.

    Returns:
        The model.

    Raises:
        InvalidInput: If there is no model of that name.

    >>> sum(parameter.numel() for parameter in build("cnn").parameters())
    26010
    """
    make = MODELS[_validate.one_of("name", name, MODELS)]
    with randomness.public_torch_seed(seed):
        return make(Task(classes=classes, in_channels=in_channels, side=side))
