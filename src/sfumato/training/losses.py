"""Losses and views: functions that are traced once, and what tells one from another."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
"""`loss_fn(outputs, targets)` returns one loss for each row."""
Views: TypeAlias = Callable[[Any], Any]
"""`views(inputs)` returns K views of each row, (rows, K, …)."""
_PLAIN = (bool, int, float, str, type(None))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss of a classifier, one value for each row.

    Args:
        outputs: (rows, classes, …) scores.
        targets: (rows, …) class numbers.

    Returns:
        (rows,) losses.

    Raises:
        InvalidInput: If there is one class only: this loss is then 0 whatever the scores are.

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1])).round(decimals=4).tolist()  # ln 2
    [0.6930999755859375, 0.6930999755859375]
    """
    if outputs.ndim > 1 and outputs.shape[1] == 1:
        raise InvalidInput(
            "expected outputs for two classes or more, got 1; pass a loss_fn, such as "
            "lambda outputs, targets: (outputs[:, 0] - targets) ** 2, or give each class an output"
        )
    return F.cross_entropy(outputs, targets, reduction="none")


def check_views(seen: Any, rows: int) -> int:
    """How many views each of so many rows has; anything but (rows, K, …) is refused."""
    shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(seen) if isinstance(leaf, Tensor)]
    found = {shape[1] if len(shape) > 1 and shape[0] == rows else 0 for shape in shapes}
    if len(found) == 1 and 0 not in found:
        return found.pop()
    raise InvalidInput(
        f"expected views to return (rows, K, …) for {rows} rows, got {shapes or type(seen).__name__}; return "
        "as many views of every row, beside each other, such as torch.stack([inputs, inputs.flip(-1)], 1)"
    )


def settings_of(model: nn.Module, *functions: Any) -> list[Any]:
    """All that a graph of the model and of these functions was made for, to be compared by `same_settings`.

    A lambda that is written in the body of a loop is the same function each time, as long as the values that it
    closes over are.
    """
    found: list[Any] = []
    for function in functions:
        parts = _parts(function)
        found += [len(parts), *parts]
    for module in [model, *(part for part in found if isinstance(part, nn.Module))]:
        for each in module.modules():
            found += [each, *_parts_of(each), *_read_by(type(each).forward)]
            found += [len(each._forward_hooks), len(each._forward_pre_hooks)]
        for tensor in module.parameters():
            found += [tensor, tensor.requires_grad, tensor.dtype, tuple(tensor.shape)]
        for name, buffer in module.named_buffers():
            found += [name, buffer.dtype, tuple(buffer.shape)]
    return found


def same_settings(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists of settings are the same: objects by identity, plain values by value."""
    return len(one) == len(other) and all(
        a is b or (type(a) is type(b) and _is_plain(a) and a == b) for a, b in zip(one, other, strict=True)
    )


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN or (kind is tuple and all(type(each) in _PLAIN for each in value))


def _parts(function: Any) -> Sequence[Any]:
    if isinstance(function, types.MethodType):
        return (function.__func__, function.__self__, *_parts_of(function.__self__))
    if isinstance(function, functools.partial):
        return (*_parts(function.func), *function.args, *function.keywords, *function.keywords.values())
    if isinstance(function, types.FunctionType):
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        named = (function.__kwdefaults__ or {}).values()
        return (function.__code__, *cells, *(function.__defaults__ or ()), *named, *_read_by(function))
    return (function, *_parts_of(function))


def _read_by(function: Any) -> list[Any]:
    """The plain values of the global names that a function reads itself."""
    if not isinstance(function, types.FunctionType):
        return []
    found = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [value for value in found if value is not None and _is_plain(value)]


def _parts_of(thing: Any) -> list[Any]:
    """The plain attributes of an object that computes a loss."""
    return [value for value in getattr(thing, "__dict__", {}).values() if _is_plain(value)]


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
