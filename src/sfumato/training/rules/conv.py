"""Convolutions in one, two and three dimensions: a linear layer on patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace

import torch.nn.functional as F
from torch import Tensor

from sfumato.training.rules import workspace
from sfumato.training.rules.terms import Contribution, Factors, Fold, Rows, Windows

_LONG_RUN = 16  # values; copying longer runs gains nothing from lines laid side by side


def convolution(module: SimpleNamespace, inputs: Tensor, gradient: Tensor) -> dict[str, Contribution]:
    """∂W = Σₚ gₚ patchₚᵀ, ∂b = Σₚ gₚ over the output positions p."""
    rows, groups = inputs.shape[0], module.groups
    gradients = gradient.movedim(1, -1).reshape(rows, -1, groups, module.out_channels // groups)
    axes = [_axis(module, inputs, gradient, dim) for dim in range(inputs.dim() - 2)]
    lines = _lines_abreast(module, axes)
    fold = Fold(
        tuple(module.weight.shape),
        kernel=tuple(axis.taps for axis in axes),
        offset=tuple(axis.first for axis in axes),
        abreast=lines,
    )
    padded = _abreast(inputs, axes, lines) if lines > 1 else _padded(module, inputs, axes)
    if lines > 1:
        axes = [replace(axes[0], stride=1, taps=axes[0].taps // lines), axes[1]]
    weight = Factors(_windows(padded, axes, groups), gradients.transpose(1, 2), fold)
    return {"weight": weight, "bias": Rows(gradients.sum(1).flatten(1))}


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


def _axis(module: SimpleNamespace, inputs: Tensor, gradient: Tensor, dim: int) -> _Axis:
    sizes = inputs.shape[dim + 2], gradient.shape[dim + 2]
    taps = module.kernel_size[dim], module.stride[dim], module.dilation[dim]
    return _axis_of(*sizes, *taps, _padding(module, dim)[0], module.padding_mode == "zeros")


@lru_cache(maxsize=1024)
def _axis_of(size: int, outputs: int, kernel: int, stride: int, dilation: int, left: int, zeros: bool) -> _Axis:
    first, last = 0, kernel - 1
    if zeros:  # taps that only ever see zeros have no gradient
        met = [t for t in range(kernel) if _meets_data(t * dilation - left, stride, outputs, size)]
        first, last = (met[0], met[-1]) if met else (0, 0)
    start, end = first * dilation - left, (outputs - 1) * stride + last * dilation - left + 1
    return _Axis(outputs, stride, dilation, first, last - first + 1, before=-start, after=end - size)


def _meets_data(start: int, stride: int, outputs: int, size: int) -> bool:
    """Whether start, start + stride, … (`outputs` of them) falls into [0, size)."""
    skipped = max(0, -(start // stride))
    return skipped < outputs and start + skipped * stride < size


def _padding(module: SimpleNamespace, dim: int) -> tuple[int, int]:
    if module.padding == "same":
        total = module.dilation[dim] * (module.kernel_size[dim] - 1)
        return total // 2, total - total // 2
    if module.padding == "valid":
        return 0, 0
    each = int(module.padding[dim])
    return each, each


def _padded(module: SimpleNamespace, inputs: Tensor, axes: list[_Axis]) -> Tensor:
    """Channels last, padded (or cropped) to what the taps see: (rows, *space, channels)."""
    if module.padding_mode != "zeros":
        amounts = [amount for dim in reversed(range(len(axes))) for amount in _padding(module, dim)]
        return F.pad(inputs, amounts, mode=module.padding_mode).movedim(1, -1)
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


def _lines_abreast(module: SimpleNamespace, axes: list[_Axis]) -> int:
    """How many lines of an image to lay side by side before windows are copied.

    Copying costs by the run of neighbouring values. Where the kernel is a whole number of vertical strides
    high, that many lines always go together: 8×8 taps at stride 2 are four runs of 16 instead of eight of 8.
    """
    if module.groups > 1 or len(axes) != 2 or module.padding_mode != "zeros":
        return 1
    lines, run = axes
    short = run.taps * module.in_channels < _LONG_RUN and lines.dilation == run.dilation == 1
    return lines.stride if short and lines.taps % lines.stride == 0 else 1


def _abreast(inputs: Tensor, axes: list[_Axis], lines: int) -> Tensor:
    """Padded, `lines` lines side by side: (rows, height / lines, width, lines · channels)."""
    seen = _cropped(inputs, axes)
    rows, _, across, channels = seen.shape
    height, width = ((axis.outputs - 1) * axis.stride + axis.taps for axis in axes)
    top, left = (max(0, axis.before) for axis in axes)
    laid = workspace.empty((rows, height // lines, width, lines, channels), inputs).zero_()
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
