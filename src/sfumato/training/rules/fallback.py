"""Any module at all: run it with a copy of its parameters for each row.

`expand` calls the module anew so that row n sees its own parameter copy θₙ (views of θ: no memory). The
gradient with respect to θₙ is then the gradient of row n, whatever the module does inside, dropout
included: the expanded call takes the place of the original one, so that nothing is computed twice with
different masks. By `vmap` where the module allows it (LSTM, attention, containers that own parameters), by
a loop over rows elsewhere (GRU). Where the rows lie in each argument and result, and which of the two ways is
taken, is a `CallLayout`, found on public rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from sfumato.errors import UnsupportedModel
from sfumato.training.rowwise import LOOP, VMAP, Axes, row_axes


@dataclass(frozen=True)
class Expanded:
    """The output of a call and, for every parameter, the row-wise leaves to differentiate."""

    output: Any
    leaves: Mapping[str, Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class CallLayout:
    """Where the rows of one call lie: a dimension for every leaf, or None for what all rows share."""

    arguments: Axes
    results: Axes
    how: str = VMAP


@dataclass(frozen=True)
class SeenCall:
    """One call of a module on public rows."""

    prefix: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def layout_of(few: SeenCall, more: SeenCall, rows: tuple[int, int]) -> CallLayout:
    """The layout of a call that was seen with two numbers of rows; the first must be able to run expanded."""
    where = f"{_name(few.module)} at {few.prefix.rstrip('.')!r}"
    arguments = row_axes((few.args, few.kwargs), (more.args, more.kwargs), rows, where)
    results = row_axes(few.result, more.result, rows, where)
    taken, returned = _entries((few.args, few.kwargs), arguments), _entries(few.result, results)
    shared = any(isinstance(leaf, Tensor) for leaf, n in zip(_flat(few.result), returned, strict=True) if not n)
    if shared or len({n for n in (*taken, *returned) if n}) != 1 or not any(taken):
        shapes = [tuple(leaf.shape) for leaf in _flat((few.args, few.kwargs)) if isinstance(leaf, Tensor)]
        raise UnsupportedModel(
            f"expected {where} to take and return rows in one dimension, got shapes {shapes} for {rows[0]} "
            "rows; expand what rows share: positions.expand(len(inputs), -1), and mask rows of attention by "
            "key_padding_mask"
        )
    layout = CallLayout(arguments, results)
    try:
        with _disable_current_modes():  # they can hinder vmap, and will not be there
            expand(few.module, few.args, few.kwargs, few.result, layout)
    except RuntimeError:  # an operation without a batching rule
        return CallLayout(arguments, results, LOOP)
    return layout


def expand(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], original: Any, layout: CallLayout
) -> Expanded:
    """Calls `module` with row-wise parameters; `original` is what the ordinary call returned."""
    call = _Call.of(module, args, kwargs, layout.arguments)
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    values = {name: module.get_parameter(name).detach() for name in names}
    by = _by_vmap if layout.how == VMAP else _by_loop
    return by(call, values, original, layout.results)


@dataclass(frozen=True)
class _Call:
    """A module's call with its tensors laid out flat, and the dimension of the rows in each."""

    module: nn.Module
    tensors: tuple[Tensor, ...]
    axes: Axes
    rows: int
    rebuild: Callable[[Sequence[Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Axes) -> _Call:
        values, tree = pytree.tree_flatten((args, kwargs))
        places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        if len(values) != len(axes):
            raise UnsupportedModel(f"expected {_name(module)} to be called the same way each time")
        tensors, axes = tuple(values[i] for i in places), tuple(axes[i] for i in places)
        rows = next(t.shape[a] for t, a in zip(tensors, axes, strict=True) if a is not None)

        def rebuild(new: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            filled = list(values)
            for place, tensor in zip(places, new, strict=True):
                filled[place] = tensor
            return pytree.tree_unflatten(filled, tree)

        return cls(module, tensors, axes, rows, rebuild)

    def __call__(self, parameters: dict[str, Tensor], tensors: Sequence[Tensor]) -> list[Any]:
        args, kwargs = self.rebuild(tensors)
        return _flat(functional_call(self.module, parameters, args, kwargs))


def _by_vmap(call: _Call, values: dict[str, Tensor], original: Any, out_axes: Axes) -> Expanded:
    copies = {k: v.expand(call.rows, *v.shape).requires_grad_() for k, v in values.items()}

    def one(parameters: dict[str, Tensor], tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
        whole = [t if a is None else t.unsqueeze(a) for t, a in zip(tensors, call.axes, strict=True)]
        results = zip(call(parameters, whole), out_axes, strict=True)
        return tuple(r if a is None else r.squeeze(a) for r, a in results if isinstance(r, Tensor))

    axes = [axis for value, axis in zip(_flat(original), out_axes, strict=True) if isinstance(value, Tensor)]
    mapped = vmap(one, in_dims=(0, call.axes), out_dims=tuple(a or 0 for a in axes), randomness="different")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # slow here is still correct
        return Expanded(_like(original, mapped(copies, call.tensors)), copies)


def _by_loop(call: _Call, values: dict[str, Tensor], original: Any, out_axes: Axes) -> Expanded:
    copies = {k: tuple(v.detach().requires_grad_() for _ in range(call.rows)) for k, v in values.items()}
    results = []
    for row in range(call.rows):
        pairs = zip(call.tensors, call.axes, strict=True)
        sliced = [tensor if axis is None else tensor.narrow(axis, row, 1) for tensor, axis in pairs]
        results.append(call({name: copy[row] for name, copy in copies.items()}, sliced))
    columns = zip(zip(*results, strict=True), out_axes, strict=True)
    joined = [torch.cat(parts, dim=axis or 0) for parts, axis in columns if isinstance(parts[0], Tensor)]
    return Expanded(_like(original, joined), copies)


def _entries(values: Any, axes: Axes) -> list[int]:
    """How many rows each leaf holds; 0 for what is shared."""
    pairs = zip(_flat(values), axes, strict=True)
    return [0 if axis is None else leaf.shape[axis] for leaf, axis in pairs]


def _flat(value: Any) -> list[Any]:
    return pytree.tree_flatten(value)[0]


def _like(original: Any, tensors: Sequence[Tensor]) -> Any:
    """`original` with its tensors replaced, in order."""
    values, tree = pytree.tree_flatten(original)
    fresh = iter(tensors)
    return pytree.tree_unflatten([next(fresh) if isinstance(v, Tensor) else v for v in values], tree)


def _name(module: nn.Module) -> str:
    return type(module).__name__
