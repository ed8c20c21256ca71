"""Take the gradient of a parameter apart into the operands of the products that form it.

A gradient is followed back through additions, transposes and views to the matrix products, convolutions and
look-ups that formed it. Their operands give each row's norm and the clipped sum without the gradient itself
(`terms`). Any other gradient is formed for each row. No rule knows a module.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from sfumato.training.batch import Block, without_padding
from sfumato.training.terms import Contribution, Factors, Fold, Lookups, Rows, Windows, scratch

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """Σₚ gₚ aₚᵀ, of (positions, outputs) and (positions, inputs)."""

    gradients: fx.Node
    inputs: fx.Node
    lined: tuple[bool, bool]  # whether the positions of each are its first dimension
    shape: tuple[int, ...]

    def operands(self, block: Block) -> list[fx.Node]:
        return [
            _lined(block, node, by) for node, by in zip((self.gradients, self.inputs), self.lined, strict=True)
        ]

    def contribution(self, gradients: Tensor, inputs: Tensor) -> Contribution:
        return Factors(inputs.unsqueeze(1), gradients.unsqueeze(1), Fold(self.shape))


@dataclass(frozen=True)
class Kernel:
    """The gradient of a convolution's kernel: a product with windows of the input."""

    gradients: fx.Node
    inputs: fx.Node
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    shape: tuple[int, ...]

    def operands(self, block: Block) -> list[fx.Node]:
        return [block.merged(self.gradients), block.merged(self.inputs)]

    def contribution(self, gradients: Tensor, inputs: Tensor) -> Contribution:
        """∂W = Σₚ gₚ patchₚᵀ over the output positions p."""
        axes = [
            _axis(inputs.shape[dim + 2], gradients.shape[dim + 2], self.shape[dim + 2], *settings)
            for dim, settings in enumerate(zip(self.stride, self.dilation, self.padding, strict=True))
        ]
        lines = _lines_abreast(axes, self.shape[1], self.groups)
        fold = Fold(
            self.shape,
            kernel=tuple(axis.taps for axis in axes),
            offset=tuple(axis.first for axis in axes),
            abreast=lines,
        )
        padded = _abreast(inputs, axes, lines) if lines > 1 else _padded(inputs, axes)
        if lines > 1:
            axes = [replace(axes[0], stride=1, taps=axes[0].taps // lines), axes[1]]
        apart = gradients.movedim(1, -1).reshape(len(inputs), -1, self.groups, self.shape[0] // self.groups)
        return Factors(_windows(padded, axes, self.groups), apart.transpose(1, 2), fold)


@dataclass(frozen=True)
class Entries:
    """The gradient of a table: gradients of its looked-up entries."""

    gradients: fx.Node
    indices: fx.Node
    entries: int
    padding: int

    def operands(self, block: Block) -> list[fx.Node]:
        indices, gradients = block.rows(self.indices), block.rows(self.gradients)
        if self.padding >= 0:
            gradients = without_padding(block, gradients, indices, self.padding)
        width, rows = gradients.meta["shape"][-1], block.height
        count = gradients.meta["shape"]
        positions = 1
        for size in count[1:-1]:
            positions *= size
        return [
            block.reshaped(gradients, (rows, positions, width)),
            block.reshaped(indices, (rows, positions)),
        ]

    def contribution(self, gradients: Tensor, indices: Tensor) -> Contribution:
        return Lookups(indices, gradients, self.entries)


@dataclass(frozen=True)
class Formed:
    """The gradient itself."""

    gradient: fx.Node

    def operands(self, block: Block) -> list[fx.Node]:
        return [block.rows(self.gradient)]

    def contribution(self, gradient: Tensor) -> Contribution:
        return Rows(gradient)


Use: TypeAlias = Product | Kernel | Entries | Formed


def uses(gradient: Any) -> list[Use]:
    """The products that add up to a matrix; any other gradient as it is."""
    shape = tuple(gradient.meta["val"].shape)
    if len(_plain(gradient)) < 2:
        return [Formed(gradient)]
    found: list[Use] = []
    ways: list[tuple[Any, bool]] = [(gradient, False)]
    while ways:
        node, turned = _unwrapped(*ways.pop())
        if node.target is aten.add.Tensor and not node.kwargs and _adds(node):
            ways += [(arg, turned) for arg in node.args]
            continue
        use = _use(node, shape, turned)
        if use is None:
            return [Formed(gradient)]
        found.append(use)
    return found


def _unwrapped(node: Any, turned: bool) -> tuple[Any, bool]:
    """The node behind transposes and views, and whether an odd number of transposes lies between."""
    while True:
        target = node.target
        if target is aten.reshape.default:  # while turned, one that adds or drops dimensions of 1
            if turned and _plain(node.args[0]) != _plain(node):
                return node, turned
        elif target is aten.permute.default and _swaps(node):
            turned = not turned
        elif target not in (aten.squeeze.dims, aten.squeeze.dim, aten.unsqueeze.default):
            return node, turned
        node = node.args[0]


def _adds(node: Any) -> bool:
    shape = node.meta["val"].shape
    return all(isinstance(arg, fx.Node) and arg.meta["val"].shape == shape for arg in node.args)


def _use(node: Any, shape: tuple[int, ...], turned: bool) -> Use | None:
    """The product that a gradient is; None if it is formed in another way."""
    if node.target is aten.mm.default or (
        node.target is aten.bmm.default and node.meta["val"].shape[0] == 1
    ):  # (outputs, positions) and (positions, inputs); the other way round for one that is turned
        g, a = [(arg, bool(first)) for first, arg in enumerate(node.args)]
        if turned:
            g, a = a, g
        return Product(g[0], a[0], (g[1], a[1]), shape)
    if turned:
        return None
    if node.target is operator.getitem and node.args[1] == 1:
        return _kernel(node.args[0], shape)
    if node.target is aten.embedding_dense_backward.default and not node.args[4]:
        gradient, indices, entries, padding, _ = node.args
        return Entries(gradient, indices, entries, padding)
    return None


def _plain(node: Any) -> list[int]:
    return [size for size in node.meta["val"].shape if size != 1]


def _swaps(node: Any) -> bool:
    """Whether a permutation is the transpose of a matrix, but for dimensions of 1."""
    dims: Any = node.args[1]
    sizes = node.args[0].meta["val"].shape
    order = [dim % len(sizes) for dim in dims if sizes[dim] != 1]
    return len(order) == 2 and order[0] > order[1]


def _lined(block: Block, node: Any, positions_first: bool) -> fx.Node:
    """(height, positions, width)."""
    while node.target is aten.permute.default and _is_transpose(node):
        node, positions_first = node.args[0], not positions_first
    made = block.rows(node)
    height, *shape = made.meta["shape"]
    shape = shape[-2:]
    made = block.reshaped(made, (height, *shape))
    if positions_first:
        return made
    turned = (height, shape[1], shape[0])
    return block.emit(aten.permute.default, made, [0, 2, 1], shape=turned, dtype=made.meta["dtype"])


def _is_transpose(node: Any) -> bool:
    rank = len(node.args[1])
    return rank >= 2 and list(node.args[1]) == [*range(rank - 2), rank - 1, rank - 2]


def _kernel(node: Any, shape: tuple[int, ...]) -> Kernel | None:
    if node.target is not aten.convolution_backward.default:
        return None
    gradient, inputs, _, _, stride, padding, dilation, turned, _, groups, _ = node.args
    g, x = (inputs, gradient) if turned else (gradient, inputs)
    dims = len(shape) - 2
    stride, padding, dilation = (tuple(each) * (dims // len(each)) for each in (stride, padding, dilation))
    return Kernel(g, x, stride, padding, dilation, groups, shape)


# Convolutions in one, two and three dimensions: a linear layer on patches

_LONG_RUN = 16  # values; copying longer runs gains nothing from lines laid side by side


@dataclass(frozen=True)
class _Axis:
    """One spatial dimension: which kernel taps met data, and how much padding they need."""

    outputs: int
    stride: int
    dilation: int
    first: int
    taps: int
    before: int
    after: int


@lru_cache(maxsize=1024)
def _axis(size: int, outputs: int, kernel: int, stride: int, dilation: int, left: int) -> _Axis:
    met = [t for t in range(kernel) if _meets_data(t * dilation - left, stride, outputs, size)]
    first, last = (met[0], met[-1]) if met else (0, 0)  # taps that only ever see zeros have no gradient
    start, end = first * dilation - left, (outputs - 1) * stride + last * dilation - left + 1
    return _Axis(outputs, stride, dilation, first, last - first + 1, before=-start, after=end - size)


def _meets_data(start: int, stride: int, outputs: int, size: int) -> bool:
    """Whether start, start + stride, … (`outputs` of them) falls into [0, size)."""
    skipped = max(0, -(start // stride))
    return skipped < outputs and start + skipped * stride < size


def _padded(inputs: Tensor, axes: list[_Axis]) -> Tensor:
    """Channels last, padded (or cropped) to the extent of the taps: (rows, *space, channels)."""
    seen = _cropped(inputs, axes)
    amounts = [max(0, amount) for axis in reversed(axes) for amount in (axis.before, axis.after)]
    return F.pad(seen, [0, 0, *amounts]) if any(amounts) else seen


def _cropped(inputs: Tensor, axes: list[_Axis]) -> Tensor:
    """Channels last, without the margins that no tap sees: all of it, if every tap falls beside the data."""
    seen = inputs.movedim(1, -1)
    for dim, axis in enumerate(axes, 1):
        start = min(max(0, -axis.before), seen.shape[dim])
        seen = seen.narrow(dim, start, max(0, seen.shape[dim] - start - max(0, -axis.after)))
    return seen


def _lines_abreast(axes: list[_Axis], channels: int, groups: int) -> int:
    """How many lines of an image to lay side by side before windows are copied.

    Copying costs by the run of neighbouring values. Where the kernel is a whole number of vertical strides
    high, that many lines always go together: 8×8 taps at stride 2 are four runs of 16 instead of eight of 8.
    """
    if groups > 1 or len(axes) != 2:
        return 1
    lines, run = axes
    short = run.taps * channels < _LONG_RUN and lines.dilation == run.dilation == 1
    return lines.stride if short and lines.taps % lines.stride == 0 else 1


def _abreast(inputs: Tensor, axes: list[_Axis], lines: int) -> Tensor:
    """Padded, `lines` lines side by side: (rows, height / lines, width, lines · channels)."""
    seen = _cropped(inputs, axes)
    rows, _, across, channels = seen.shape
    height, width = ((axis.outputs - 1) * axis.stride + axis.taps for axis in axes)
    top, left = (max(0, axis.before) for axis in axes)
    laid = scratch((rows, height // lines, width, lines, channels), inputs).zero_()
    for place in range(lines):
        first = (place - top) % lines
        chosen = seen[:, first::lines]
        start = (first + top) // lines
        laid[:, start : start + chosen.shape[1], left : left + across, place] = chosen
    return laid.flatten(3)


def _windows(padded: Tensor, axes: list[_Axis], groups: int) -> Windows:
    """Overlapping windows as a view; copied, they are had many times faster than by `F.unfold`."""
    padded = padded if padded.stride(-1) == 1 else padded.contiguous()
    rows, channels = padded.shape[0], padded.shape[-1] // groups
    strides = padded.stride()
    space = list(zip(axes, strides[1:-1], strict=True))
    view = padded.as_strided(
        (rows, groups, *(a.outputs for a in axes), *(a.taps for a in axes), channels),
        (
            strides[0],
            channels,
            *(a.stride * step for a, step in space),
            *(a.dilation * step for a, step in space),
            1,
        ),
    )
    return Windows(view)
