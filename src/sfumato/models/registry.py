"""Every model by name, built with public, seeded initial weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, final

from torch import Tensor, nn

from sfumato import _validate, randomness
from sfumato.models.normalization import group_norm

_SMALLEST_SIDE = 20  # below, no position is left after the second pool


@final
class CNN(nn.Module):
    """Two convolutions and two linear layers; 26,010 parameters for 28×28 images of one channel, ten classes.

    Positions for 28×28: 28 → conv1 14 → pool 13 → conv2 5 → pool 4.

    Args:
        classes: How many outputs there are.
        in_channels: Channels of an image.
        side: Its height and width.
        activation: The function after a convolution.

    >>> import torch
    >>> CNN()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        classes: int = 10,
        in_channels: int = 1,
        side: int = 28,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        _validate.integer("side", side, least=_SMALLEST_SIDE, remedy="load the images with side=28")
        self.conv1 = nn.Conv2d(in_channels, 16, kernel_size=8, stride=2, padding=3)
        self.activation1 = activation()
        self.pool1 = nn.MaxPool2d(kernel_size=2, stride=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=4, stride=2)
        self.activation2 = activation()
        self.pool2 = nn.MaxPool2d(kernel_size=2, stride=1)
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(32 * _positions(side) ** 2, 32)
        self.activation3 = activation()
        self.output = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.pool1(self.activation1(self.conv1(images)))  # (examples, 16, 13, 13)
        maps = self.pool2(self.activation2(self.conv2(maps)))  # (examples, 32, 4, 4)
        logits: Tensor = self.output(self.activation3(self.hidden(self.flatten(maps))))
        return logits


def _positions(side: int) -> int:
    after_pool1 = (side + 2 * 3 - 8) // 2 + 1 - 1
    return (after_pool1 - 4) // 2 + 1 - 1


TanhCNN = partial(CNN, activation=nn.Tanh)


@final
class MLP(nn.Module):
    """Linear layers with ReLU between them, on flattened inputs.

    Args:
        in_features: How many values a row has.
        classes: How many outputs there are.
        hidden: The width of each hidden layer; none makes a logistic regression.

    >>> MLP(in_features=64, hidden=())
    MLP(...)
    """

    def __init__(self, *, in_features: int, classes: int = 10, hidden: Sequence[int] = (128,)) -> None:
        super().__init__()
        widths = [_validate.integer("in_features", in_features, least=1), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for narrow, wide in itertools.pairwise(widths):
            layers += [nn.Linear(narrow, wide), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits


Norm = Literal["group", "batch"]
_NORMS: dict[str, Callable[[int], nn.Module]] = {"group": group_norm, "batch": nn.BatchNorm2d}


def resnet18(*, in_channels: int = 1, classes: int = 10, norm: Norm = "group") -> ResNet:
    """Build a ResNet-18: four stages of two blocks; 11,175,370 parameters for one channel and ten classes.

    Args:
        in_channels: Channels of an image.
        classes: How many outputs there are.
        norm: "group" treats each image by itself, as private training must; "batch" is the original.

    Returns:
        The network.

    >>> sum(parameter.numel() for parameter in resnet18().parameters())
    11175370
    """
    _validate.one_of("norm", norm, _NORMS)
    return ResNet(in_channels=in_channels, classes=classes, norm=_NORMS[norm])


@final
class ResNet(nn.Module):
    """A residual network of four stages, for small images. `resnet18` makes one.

    Args:
        in_channels: Channels of an image.
        classes: How many outputs there are.
        norm: Makes the normalisation for a number of channels.
    """

    def __init__(self, *, in_channels: int, classes: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = _convolution(in_channels, 64, kernel=7, stride=2)
        self.norm = norm(64)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.stage1 = _stage(64, 64, stride=1, norm=norm)
        self.stage2 = _stage(64, 128, stride=2, norm=norm)
        self.stage3 = _stage(128, 256, stride=2, norm=norm)
        self.stage4 = _stage(256, 512, stride=2, norm=norm)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.output = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.pool(self.relu(self.norm(self.stem(images))))
        maps = self.stage4(self.stage3(self.stage2(self.stage1(maps))))
        logits: Tensor = self.output(self.flatten(self.average(maps)))
        return logits


@final
class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, narrow: int, wide: int, *, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = _convolution(narrow, wide, kernel=3, stride=stride)
        self.norm1 = norm(wide)
        self.relu1 = nn.ReLU()
        self.conv2 = _convolution(wide, wide, kernel=3, stride=1)
        self.norm2 = norm(wide)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or narrow != wide:
            self.shortcut = nn.Sequential(_convolution(narrow, wide, kernel=1, stride=stride), norm(wide))

    def forward(self, maps: Tensor) -> Tensor:
        deep = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(maps)))))
        rectified: Tensor = self.relu2(deep + self.shortcut(maps))
        return rectified


def _stage(narrow: int, wide: int, *, stride: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        _Block(narrow, wide, stride=stride, norm=norm), _Block(wide, wide, stride=1, norm=norm)
    )


def _convolution(narrow: int, wide: int, *, kernel: int, stride: int) -> nn.Conv2d:
    """No bias, as a norm follows; He's initialisation, by the number of outputs."""
    convolution = nn.Conv2d(narrow, wide, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


@dataclass(frozen=True, kw_only=True)
class Task:
    """The input shape and the classes of a model.

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
