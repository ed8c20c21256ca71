"""What an operation without a rule depends on, found by trying it on fresh values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.randomness import public_torch_generator
from sfumato.training.dependence.by_shape import everything
from sfumato.training.dependence.operation import (
    BITS,
    VARIES,
    Labels,
    Operation,
    called,
    numbers,
    tensors_in,
    united,
    written,
)

_BASES = 3  # zeros, ones, and values of all kinds
_CHANGES: tuple[float | None, ...] = (float("nan"), 1e30, -1e30, None)  # None: other ordinary values
_KNOWN_NAMESPACES = ("aten", "prims", "torchvision", "mkldnn", "mkl")


def tried(op: Operation) -> Iterable[Labels]:
    """Fresh values, changed where a row is: what changes in the result depends on it.

    Nothing of what the model computed is used but the range of whole numbers. What changes nowhere, and what
    belongs to another library than torch, whose code could look at values, depends on everything.
    """
    every = list(op.sources())
    labels = [op.labels_of(tensor) for tensor in every]
    present = united(labels)
    if op.func.namespace not in _KNOWN_NAMESPACES or torch.Tag.data_dependent_output in op.func.tags:
        return everything(op)
    found = [np.zeros(out.shape, np.uint8) for out in op.outputs]
    for bit in (1 << place for place in range(BITS) if present & (1 << place)):
        masks = [torch.from_numpy(np.asarray((mine & bit) != 0)) for mine in labels]
        masks = [mask.to(tensor.device) for mask, tensor in zip(masks, every, strict=True)]
        changed = _changed_by(masks, op, every)
        if not any(each.any() for each in changed):
            return everything(op)
        for each, where in zip(found, changed, strict=True):
            each |= np.where(where, np.uint8(bit), np.uint8(0))
    return [each | np.uint8(present & VARIES) for each in found]


def _changed_by(
    masks: Sequence[Tensor], op: Operation, tensors: Sequence[Tensor]
) -> list[npt.NDArray[np.bool_]]:
    """Where the results differ as the masked elements do, on any of the draws."""
    generator = public_torch_generator(29)
    found = [np.zeros(out.shape, bool) for out in op.outputs]
    for base in range(_BASES):
        values = [_fresh(tensor, base, generator) for tensor in tensors]
        before = _results(op, tensors, values)
        for change in _CHANGES if base == _BASES - 1 else (None,):
            others = [
                _changed(value, mask, tensor, change, base, generator)
                for value, mask, tensor in zip(values, masks, tensors, strict=True)
            ]
            for where, a, b in zip(found, before, _results(op, tensors, others), strict=True):
                where |= ~numbers((a == b) | ((a != a) & (b != b)))
    return found


def _fresh(tensor: Tensor, base: int, generator: torch.Generator) -> Tensor:
    """Public values of a tensor's shape and type, where it is: the operation that runs there is tried."""
    if tensor.is_floating_point() or tensor.is_complex():
        drawn = torch.rand(tensor.shape, generator=generator) * 0.8 + 0.1
        return drawn.to(tensor.device, tensor.dtype)
    highest = _highest(tensor)
    if base < 2:
        return torch.full(tensor.shape, base * highest, dtype=tensor.dtype, device=tensor.device)
    drawn = torch.randint(0, highest + 1, tensor.shape, generator=generator)
    return drawn.to(tensor.device, tensor.dtype)


def _changed(
    value: Tensor, mask: Tensor, tensor: Tensor, change: float | None, base: int, generator: torch.Generator
) -> Tensor:
    if change is not None and value.is_floating_point():
        return value.masked_fill(mask, change)
    kind = 1 - base if base < 2 else base
    return torch.where(mask, _fresh(tensor, kind, generator), value)


def _highest(tensor: Tensor) -> int:
    return 1 if tensor.dtype == torch.bool or not tensor.numel() else max(1, int(tensor.max()))


def _results(op: Operation, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    fresh = {id(tensor): value.clone() for tensor, value in zip(tensors, values, strict=True)}
    given = {name: _replaced(value, fresh) for name, value in op.arguments.items()}
    results = list(tensors_in(called(op.func, given)))
    kept = [tensor for name in written(op.func) for tensor in tensors_in(given[name])]
    results += [tensor for tensor in kept if not any(tensor is other for other in results)]
    return [result.detach() for result in results]


def _replaced(value: Any, fresh: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return fresh[id(value)] if id(value) in fresh else torch.empty_like(value)
    return [_replaced(part, fresh) for part in value] if isinstance(value, list | tuple) else value
