"""Losses and views: functions that are traced once, and how they are compared."""

from __future__ import annotations

import functools
import math
import signal
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput
from sfumato.randomness import fresh_seed, public_torch_generator

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
"""`loss_fn(outputs, targets)` returns one loss for each row."""
Views: TypeAlias = Callable[[Any], Any]
"""`views(inputs)` returns K views of each row, (rows, K, …)."""
_MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
_PLAIN = (bool, int, float, str, type(None))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The usual loss of a classifier, one value for each row.

    Args:
        outputs: (rows, classes, …) scores.
        targets: (rows, …) class numbers.

    Returns:
        (rows,) losses.

    Raises:
        InvalidInput: If there is one class only: this loss is then always 0.

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


def moved_by_a_pixel(images: Tensor) -> Tensor:
    """Look at each image five times: as it is, and moved by a pixel up, down, left and right.

    Pixels that leave on one side come in on the other, so that images should have a margin.

    Args:
        images: (rows, …, height, width).

    Raises:
        InvalidInput: If rows have no height and width.

    Returns:
        (rows, 5, …, height, width), as `views` of `sfumato.train` and `PrivateTrainer.batches`.

    >>> moved_by_a_pixel(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 5, 1, 28, 28])
    """
    if images.dim() < 3:
        raise InvalidInput(
            f"expected images (rows, …, height, width) to move by a pixel, got shape {tuple(images.shape)}"
        )
    return torch.stack([images.roll(move, (-2, -1)) for move in _MOVES], dim=1)


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


_DRAWN = 65521  # values by which weights are moved, again and again: a prime, so that no two lines are alike


def random_rows(like: Any, rows: int, seed: int = 21, *, most: int = 1) -> Any:
    """Public random rows with the shapes and types of the given data; whole numbers up to `most`."""
    generator = public_torch_generator(seed)

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        shape = (rows, *leaf.shape[1:])
        if leaf.is_floating_point():
            return torch.randn(shape, generator=generator).to(leaf)
        return torch.randint(0, most + 1, shape, generator=generator).to(leaf)

    return pytree.tree_map(draw, like)


def first(rows: Any, count: int) -> Any:
    return pytree.tree_map(lambda leaf: leaf[:count] if holds_rows(leaf) else leaf, rows)


def repeated(rows: Any, times: int) -> Any:
    """Each row as often as it has views."""
    return pytree.tree_map(lambda leaf: leaf.repeat_interleave(times, 0) if holds_rows(leaf) else leaf, rows)


def holds_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


@contextmanager
def other_weights(model: nn.Module, seed: int | None = None) -> Iterator[None]:
    """Within, every trainable weight is another one, of the usual size: zeros or huge ones would hide mixing.

    Half of the numbers are moved, half are replaced but for their signs, which models may rely on. All is drawn
    anew for each `seed`, and for each call without one: no model can be written to undo it.
    """
    generator = public_torch_generator(fresh_seed() if seed is None else seed)
    kept = {p: p.data for p in model.parameters() if p.requires_grad and p.is_floating_point()}
    try:
        for parameter, value in kept.items():
            parameter.data = _other_values(value, generator)
        yield
    finally:
        with undisturbed():
            for parameter, value in kept.items():
                parameter.data = value


def _other_values(value: Tensor, generator: torch.Generator) -> Tensor:
    inputs = value.numel() // max(1, len(value)) if value.dim() > 1 else 100
    drawn = torch.randn(2, min(value.numel(), _DRAWN), generator=generator).to(value)
    noise, coins = drawn.repeat(1, -(-value.numel() // _DRAWN))[:, : value.numel()].view(2, *value.shape)
    noise = noise / math.sqrt(max(1, inputs))
    replaced = torch.where(value == 0, noise, noise.abs().copysign(value))
    return torch.where(coins > 0, value + noise, replaced)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the block is over: weights that are put back are all put back."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
