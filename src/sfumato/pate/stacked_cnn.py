"""The small convolutional net, stacked and differentiated by hand: convolutions are batched matrix products.

Images are cut once into pairs of rows and columns, so that a stride of two becomes one of one, and a patch is
one run of memory. Positions are ordered column first. The last row and column of the first maps, which the
second convolution never reaches, are left out. Everything else is as in `models.CNN`, ties in the pools
included. A step allocates next to nothing: fresh pages would cost more than the arithmetic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.models import CNN
from sfumato.pate.stacked import Method, Parameters, Shards

_FIRST, _SECOND = 16, 32  # channels of the maps
_PAD, _RUN = 3, 4  # of the first convolution: padding, and pairs of pixels a kernel spans
_KERNEL = 4  # of the second
_relu_back = torch.ops.aten.threshold_backward.grad_input  # (errors, values, 0): errors where values > 0


def is_stackable(template: nn.Module) -> bool:
    """Whether this is the small net, with ReLU."""
    return isinstance(template, CNN) and all(
        isinstance(layer, nn.ReLU)
        for layer in (template.activation1, template.activation2, template.activation3)
    )


def cnn_method(start: Parameters, shards: Shards) -> Method:
    """Steps of the small convolutional net."""
    runs, second = _runs(shards.inputs)
    ready: dict[int, _Batch] = {}  # by rows: the last batch of an epoch may be a smaller one

    def push(values: Parameters, velocity: Parameters, momentum: float, places: Tensor) -> None:
        if len(places) not in ready:
            ready[len(places)] = _Batch(runs, len(places), second)
        batch = ready[len(places)]
        errors = shards.errors(batch.forward(values, runs, places), places)
        batch.backward(values, velocity, momentum, errors)

    return Method(values=_laid_out(start), push=push, finish=lambda values: _as_in_model(values, start))


def _runs(images: Tensor) -> tuple[Tensor, int]:
    """(models, rows, x, y, run): for a column of patches its pairs of pixel rows; and the second maps' side.

    A patch is four runs that follow each other, and the next patch begins one run later.
    """
    models, rows, channels, side, _ = images.shape
    second = ((side + 2 * _PAD - 8) // 2 - 4) // 2 + 1  # positions of the second convolution
    first = 2 * second + 3  # those of the first that reach it
    pairs, pair = first + _RUN - 1, 4 * channels
    padded = F.pad(images.flatten(0, 1), (_PAD, _PAD, _PAD, _PAD))
    numbers = torch.arange(padded[0].numel()).view(padded.shape[1:])[:, : 2 * pairs, : 2 * pairs]
    numbers = numbers.reshape(channels, pairs, 2, pairs, 2).permute(3, 1, 2, 4, 0).contiguous()
    numbers = numbers.as_strided((first, pairs, _RUN, pair), (pairs * pair, pair, pairs * pair, 1))
    runs = torch.index_select(padded.flatten(1), 1, numbers.flatten())
    return runs.view(models, rows, first, pairs, _RUN * pair), second


def _laid_out(start: Parameters) -> Parameters:
    """Weights as the batched products take them: (models, outputs, inputs), inputs by column, row, channel."""
    one, two, three = (start[f"{name}.weight"] for name in ("conv1", "conv2", "hidden"))
    one = one.reshape(*one.shape[:3], _RUN, 2, _RUN, 2).permute(0, 1, 3, 5, 4, 6, 2)
    side = _side(three)
    changed = {
        "conv1.weight": one.flatten(2),
        "conv2.weight": two.permute(0, 1, 4, 3, 2).flatten(2),
        "hidden.weight": three.reshape(*three.shape[:2], _SECOND, side, side).permute(0, 1, 4, 3, 2).flatten(2),
    }
    return {**start, **{name: value.contiguous() for name, value in changed.items()}}


def _as_in_model(values: Parameters, like: Parameters) -> Parameters:
    """The inverse of `_laid_out`."""
    one, two, three = (values[f"{name}.weight"] for name in ("conv1", "conv2", "hidden"))
    side = _side(three)
    changed = {
        "conv1.weight": one.reshape(*one.shape[:2], _RUN, _RUN, 2, 2, -1).permute(0, 1, 6, 2, 4, 3, 5),
        "conv2.weight": two.reshape(*two.shape[:2], _KERNEL, _KERNEL, _FIRST).permute(0, 1, 4, 3, 2),
        "hidden.weight": three.reshape(*three.shape[:2], side, side, _SECOND).permute(0, 1, 4, 3, 2),
    }
    return {**values, **{name: value.reshape(like[name].shape) for name, value in changed.items()}}


def _side(hidden: Tensor) -> int:
    """Of the last maps."""
    return math.isqrt(hidden.shape[2] // _SECOND)


def _affine(values: Parameters, layer: str, inputs: Tensor) -> Tensor:
    return torch.baddbmm(values[f"{layer}.bias"][:, None], inputs, values[f"{layer}.weight"].mT)


def _push(velocity: Parameters, momentum: float, layer: str, errors: Tensor, inputs: Tensor) -> None:
    velocity[f"{layer}.weight"].baddbmm_(errors.mT, inputs, beta=momentum)
    velocity[f"{layer}.bias"].mul_(momentum).add_(errors.sum(1))


class _Batch:
    """One batch's maps and errors, in memory that every step uses again."""

    def __init__(self, runs: Tensor, rows: int, second: int) -> None:
        models, _, first, pairs, run = runs.shape
        empty, images, between = runs.new_empty, models * rows, first - 1
        self.runs = empty(models, rows, first, pairs, run)
        strides = (first * pairs * run, pairs * run, run, 1)
        self.overlapping = self.runs.as_strided((images, first, first, _RUN * run), strides)
        self.patches = empty(self.overlapping.shape)
        self.one = _Pooled(self.patches.view(models, -1, _RUN * run), (models, rows, first, _FIRST))
        self.reached = self.one.maps.as_strided(
            (images, second, second, _KERNEL, _KERNEL * _FIRST),
            (between**2 * _FIRST, 2 * between * _FIRST, 2 * _FIRST, between * _FIRST, 1),
        )
        self.again = empty(self.reached.shape)
        self.two = _Pooled(self.again.view(models, -1, _KERNEL**2 * _FIRST), (models, rows, second, _SECOND))
        self.again_back = torch.empty_like(self.two.inputs)
        self.folds = _folds(self.again_back, self.one.maps_back, second)

    def forward(self, values: Parameters, runs: Tensor, places: Tensor) -> Tensor:
        """The logits, (models, rows, classes)."""
        torch.index_select(runs, 1, places, out=self.runs)
        self.patches.copy_(self.overlapping)
        self.one.forward(values["conv1.weight"], values["conv1.bias"])
        self.again.copy_(self.reached)
        self.two.forward(values["conv2.weight"], values["conv2.bias"])
        self.flat = self.two.maps.view(len(runs), len(places), -1)
        self.hidden = _affine(values, "hidden", self.flat).relu_()
        return _affine(values, "output", self.hidden)

    def backward(self, values: Parameters, velocity: Parameters, momentum: float, errors: Tensor) -> None:
        """Add the gradients to the momenta."""
        _push(velocity, momentum, "output", errors, self.hidden)
        errors = torch.bmm(errors, values["output.weight"])
        _relu_back(errors, self.hidden, 0, grad_input=errors)
        _push(velocity, momentum, "hidden", errors, self.flat)
        torch.bmm(errors, values["hidden.weight"], out=self.two.maps_back.view(self.flat.shape))
        errors = self.two.backward(velocity, momentum, "conv2")
        torch.bmm(errors, values["conv2.weight"], out=self.again_back)
        self.one.maps_back.zero_()
        for target, part in self.folds:
            target.add_(part)
        self.one.backward(velocity, momentum, "conv1")


def _folds(patches: Tensor, maps: Tensor, second: int) -> list[tuple[Tensor, Tensor]]:
    """Where patches overlap their sum goes into the maps: pairs of what to add to and what to add."""
    parts = patches.view(-1, second, second, 2, 2, 2, 2 * _FIRST)
    pairs = maps.view(-1, second + 1, 2, second + 1, 2 * _FIRST)
    return [
        (pairs[:, x : x + second, :, y : y + second], parts[:, :, :, x, :, y].transpose(2, 3))
        for x in (0, 1)
        for y in (0, 1)
    ]


class _Pooled:
    """A product with patches, the largest of each 2 × 2 positions, the bias, and ReLU.

    Of equal positions the first counts, row by row. Positions are (images, x, y, channels).
    """

    def __init__(self, inputs: Tensor, sizes: tuple[int, int, int, int]) -> None:
        models, rows, side, channels = sizes
        empty, images = inputs.new_empty, models * rows
        self.inputs = inputs  # (models, positions, patch)
        whole, wide, maps = (
            [empty(images, *shape, channels) for _ in range(2)]
            for shape in ((side, side), (side - 1, side), (side - 1, side - 1))
        )
        self.maps, self.maps_back = maps
        self.outputs, self.outputs_back = (each.view(models, -1, channels) for each in whole)
        self.columns = _Larger(whole, axis=1, largest=wide[0])
        self.rows = _Larger(wide, axis=2, largest=self.maps)

    def forward(self, weight: Tensor, bias: Tensor) -> None:
        torch.bmm(self.inputs, weight.mT, out=self.outputs)
        self.columns.forward()
        self.rows.forward()
        self.maps.view(len(bias), -1, bias.shape[1]).add_(bias[:, None])
        self.maps.relu_()

    def backward(self, velocity: Parameters, momentum: float, layer: str) -> Tensor:
        """From errors of the maps to those of the product (models, positions, channels), and to the momenta."""
        _relu_back(self.maps_back, self.maps, 0, grad_input=self.maps_back)
        bias = velocity[f"{layer}.bias"]
        bias.mul_(momentum).add_(self.maps_back.view(len(bias), -1, bias.shape[1]).sum(1))
        self.rows.backward(self.maps_back)
        self.columns.backward(self.rows.back)
        velocity[f"{layer}.weight"].baddbmm_(self.outputs_back.mT, self.inputs, beta=momentum)
        return self.outputs_back


class _Larger:
    """The larger of each two neighbours along an axis; an error goes to it, or to the first of equals."""

    def __init__(self, values: list[Tensor], *, axis: int, largest: Tensor) -> None:
        value, self.back = values
        last = value.shape[axis] - 1
        self.first, self.second = value.narrow(axis, 0, last), value.narrow(axis, 1, last)
        self.first_back, self.second_back = self.back.narrow(axis, 0, last), self.back.narrow(axis, 1, last)
        self.edge = self.back.select(axis, last)  # which is no pair's first
        self.lead = torch.empty_like(self.first, memory_format=torch.contiguous_format)
        self.largest = largest

    def forward(self) -> None:
        torch.maximum(self.first, self.second, out=self.largest)

    def backward(self, errors: Tensor) -> None:
        torch.sub(self.second, self.first, out=self.lead)
        _relu_back(errors, self.lead, 0, grad_input=self.lead)  # what goes to the second
        torch.sub(errors, self.lead, out=self.first_back)
        self.edge.zero_()
        self.second_back.add_(self.lead)
