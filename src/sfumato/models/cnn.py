"""A small convolutional net, the usual one in work on private training with MNIST."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from sfumato import _validate

_SMALLEST_SIDE = 20  # below, no position is left after the second pool


@final
class CNN(nn.Module):
    """Two convolutions and two linear layers; 26,010 parameters for 28×28 images of one channel, ten classes.

    Positions for 28×28: 28 → conv1 14 → pool 13 → conv2 5 → pool 4.

    Args:
        classes: How many outputs there are.
        in_channels: Channels of an image.
        side: Its height and width.
        activation: What follows a convolution.

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
