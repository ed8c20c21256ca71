"""ResNet-18 (He et al. 2016) for images of any number of channels, with group or batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

from torch import Tensor, nn

from sfumato import _validate
from sfumato.models.normalization import group_norm

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
