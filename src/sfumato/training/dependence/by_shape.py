"""Rules that look at shapes and arguments alone: where in the result the labels of an argument come to lie."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.training.dependence.operation import (
    VARIES,
    Labels,
    Operation,
    called,
    is_tensor,
    joined,
    over,
    tensors_in,
    united,
)


def nothing(op: Operation) -> Iterable[Labels]:
    return [np.zeros((), np.uint8) for _ in op.outputs]


def varying(op: Operation) -> Iterable[Labels]:
    return [np.full((), VARIES, np.uint8) for _ in op.outputs]


def pointwise(op: Operation) -> Iterable[Labels]:
    return [joined(op.all_labels())] * len(op.outputs)


def pointwise_draw(op: Operation) -> Iterable[Labels]:
    return [joined(op.all_labels()) | np.uint8(VARIES)] * len(op.outputs)


def overwritten(op: Operation) -> Iterable[Labels]:
    """copy_ and fill_: what was there before does not matter."""
    others = [self_or for self_or in op.sources() if self_or is not op["self"]]
    return [joined(map(op.labels_of, others))]


def unreduced(op: Operation) -> Iterable[Labels]:
    """Losses: pointwise where nothing is reduced, else of everything."""
    return pointwise(op) if op["reduction"] == 0 else everything(op)


def classes(op: Operation) -> Iterable[Labels]:
    """The usual loss of a classifier, whose classes lie in the second dimension."""
    if op["reduction"] != 0 or op["self"].dim() < 2:
        return everything(op)
    target = np.expand_dims(op.labels("target"), 1)
    if op.name.endswith("backward"):
        return [target | np.expand_dims(op.labels("grad_output"), 1)]
    found = target | over(op.labels("self"), [1])
    return [found.reshape(op.outputs[0].shape), np.asarray(united(op.all_labels()), np.uint8)]


def everything(op: Operation) -> Iterable[Labels]:
    return [np.asarray(united(op.all_labels()), np.uint8)] * len(op.outputs)


def reduced(op: Operation) -> Iterable[Labels]:
    labels = op.labels("self")
    dims = _dims(op.get("dim"), labels.ndim)
    kept = over(labels, dims)
    return [kept.reshape(out.shape) for out in op.outputs]


def along(op: Operation) -> Iterable[Labels]:
    """Each element depends on the line through it: softmax, sort, running sums."""
    found = joined(over(labels, _dims(op["dim"], labels.ndim)) for labels in op.all_labels())
    return [found] * len(op.outputs)


def _dims(dim: Any, ndim: int) -> Iterable[int]:
    if dim is None or dim == []:
        return range(ndim)
    return [dim] if isinstance(dim, int) else dim


def product(op: Operation) -> Iterable[Labels]:
    """mm, bmm and their like: rows of the first, columns of the second, and what is added."""
    first, second = ("batch1", "batch2") if "batch1" in op.arguments else ("mat1", "mat2")
    if first not in op.arguments:
        first, second = "self", "mat2"
    found = over(op.labels(first), [-1]) | over(op.labels(second), [-2])
    return [found | op.labels("self") if first != "self" else found]


def windows(op: Operation) -> Iterable[Labels]:
    """Pools, padding and resizing: each plane by itself."""
    match = re.search(r"(\d)d", op.name)
    assert match is not None
    dims = range(-int(match[1]), 0)
    planes = [over(labels, dims) for labels in op.all_labels() if labels.ndim > int(match[1])]
    return [joined(planes)] * len(op.outputs)


def trailing(op: Operation) -> Iterable[Labels]:
    """Layer norms: over the last dimensions; gradients of weights depend on all."""
    lead = len(op["input"].shape) - len(op["normalized_shape"])
    lines = [over(labels, range(lead, labels.ndim)) for labels in op.all_labels() if labels.ndim > lead]
    shared = united(labels for labels in op.all_labels() if labels.ndim <= lead)
    kept = joined(lines) | shared
    return _first_by_row(op, kept)


def groups(op: Operation) -> Iterable[Labels]:
    """Group norm: each row's groups by themselves."""
    shape = op["N"], op["group"]
    weights = united(op.labels(name) for name in ("weight", "bias") if isinstance(op.get(name), Tensor))
    of_rows = [op.labels(n) for n in ("grad_out", "input", "mean", "rstd") if isinstance(op.get(n), Tensor)]
    found = joined(np.bitwise_or.reduce(each.reshape(*shape, -1), axis=2) for each in of_rows) | weights
    channels = np.repeat(found, op["C"] // op["group"], axis=1)
    wide = channels.reshape(*channels.shape, *[1] * (op["input"].dim() - 2))
    if op.name.endswith("backward"):
        return _first_by_row(op, wide)
    return [wide, found, found]


def convolved(op: Operation) -> Iterable[Labels]:
    """Each row's groups of channels by themselves."""
    found = _by_group(op, op.labels("input")) | _of_group(op, op.labels("weight"))
    if isinstance(op.get("bias"), Tensor):
        found = found | united([op.labels("bias")])
    return [_spread(found, op.outputs[0])]


def convolved_back(op: Operation) -> Iterable[Labels]:
    """Gradients of the input, the weight and the bias, of which some may not be wanted."""
    gradient, inputs = _by_group(op, op.labels("grad_output")), _by_group(op, op.labels("input"))
    weight = np.bitwise_or.reduce(gradient | inputs, axis=0)
    kinds = [gradient | _of_group(op, op.labels("weight")), weight, np.bitwise_or.reduce(gradient, axis=0)]
    wanted = [labels for labels, want in zip(kinds, op["output_mask"], strict=True) if want]
    return [_spread(labels, out) for labels, out in zip(wanted, op.outputs, strict=True)]


def _by_group(op: Operation, labels: Labels) -> Labels:
    """(rows, groups)"""
    return np.asarray(np.bitwise_or.reduce(labels.reshape(len(labels), op["groups"], -1), axis=2), np.uint8)


def _of_group(op: Operation, weight: Labels) -> Labels:
    """(groups,)"""
    return np.asarray(np.bitwise_or.reduce(weight.reshape(op["groups"], -1), axis=1), np.uint8)


def _spread(labels: Labels, out: Tensor) -> Labels:
    """From groups, in the last dimension, to the channels of a result."""
    wide = np.repeat(labels, out.shape[labels.ndim - 1] // labels.shape[-1], axis=-1)
    return wide.reshape(*wide.shape, *[1] * (out.dim() - wide.ndim))


def _first_by_row(op: Operation, labels: Labels) -> Iterable[Labels]:
    """These labels for every output that they fit; the others depend on everything."""
    for out in op.outputs:
        try:
            yield np.broadcast_to(labels, out.shape)
        except ValueError:
            yield np.asarray(united(op.all_labels()), np.uint8)


def attention(op: Operation) -> Iterable[Labels]:
    """Rows are the first dimension of queries, keys and values."""
    parts = [(labels, labels.ndim == 4) for labels in op.all_labels()]
    by_row = [over(labels, (1, 2, 3)).reshape(-1) for labels, has_rows in parts if has_rows]
    by_row += [over(op.labels_of(t), (1, 2)).reshape(-1) for t in op.sources() if t.dim() == 3]
    shared = united(labels for labels, _ in parts if labels.ndim < 3)
    found = joined(by_row) | shared
    return [found.reshape(-1, *[1] * (out.dim() - 1)) if out.dim() else found for out in op.outputs]


def concatenated(op: Operation) -> Iterable[Labels]:
    parts = [tensor for tensor in op["tensors"] if tuple(tensor.shape) != (0,) or op.outputs[0].dim() == 1]
    join = np.stack if op.name == "stack" else np.concatenate
    return [join([op.labels_of(part) for part in parts], axis=op["dim"])]


def padded(op: Operation) -> Iterable[Labels]:
    widths = list(zip(op["pad"][::2], op["pad"][1::2], strict=True))[::-1]
    labels = op.labels("self")
    widths = [(0, 0)] * (labels.ndim - len(widths)) + widths
    grown = np.pad(labels, [(max(0, a), max(0, b)) for a, b in widths])
    return [
        grown[tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(widths, grown.shape, strict=True))]
    ]


def moved(op: Operation) -> Iterable[Labels]:
    """Operations that only move elements move their labels."""
    given = {
        name: torch.from_numpy(np.ascontiguousarray(op.labels_of(value))) if is_tensor(value) else value
        for name, value in op.arguments.items()
    }
    results = called(op.func, given)
    return [result.numpy() for result in tensors_in(results if isinstance(results, tuple) else [results])]
