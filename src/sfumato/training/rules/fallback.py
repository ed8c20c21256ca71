"""Any module at all: run it with a copy of its parameters for each row.

`expand` calls the module anew so that row n sees its own parameter copy θₙ (views of θ: no memory). The
gradient with respect to θₙ is then the gradient of row n, whatever the module does inside, dropout
included: the expanded call takes the place of the original one, so that nothing is computed twice with
different masks. By `vmap` where the module allows it (LSTM, attention, containers that own parameters), by
a loop over rows elsewhere (GRU).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from sfumato.errors import UnsupportedModel

# Where the rows of an argument or result lie: a dimension, or None for what all rows share.
Axes = Sequence[int | None]


@dataclass(frozen=True)
class Expanded:
    """The output of a call and, for every parameter, the row-wise leaves to differentiate."""

    output: Any
    leaves: Mapping[str, Tensor | tuple[Tensor, ...]]


def expand(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], original: Any) -> Expanded:
    """Calls `module` with row-wise parameters; `original` is what the ordinary call returned."""
    call, outputs = _Call.of(module, args, kwargs), _flat(original)
    out_axes = _output_axes(module, outputs, call.rows)
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    values = {name: module.get_parameter(name).detach() for name in names}
    try:
        return _by_vmap(call, values, original, out_axes)
    except RuntimeError:  # an operation without a batching rule
        return _by_loop(call, values, original, out_axes)


@dataclass(frozen=True)
class _Call:
    """A module's call with its tensors laid out flat, and the dimension of the rows in each."""

    module: nn.Module
    tensors: tuple[Tensor, ...]
    axes: tuple[int | None, ...]
    rows: int
    rebuild: Callable[[Sequence[Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        values, tree = pytree.tree_flatten((args, kwargs))
        axes = _input_axes(module, args, kwargs)
        places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        tensors, axes = tuple(values[i] for i in places), [axes[i] for i in places]
        rows = next(
            (t.shape[a] for t, a in zip(tensors, axes, strict=True) if a is not None and t.dim() > a), None
        )
        if rows is None or (isinstance(module, nn.RNNBase) and tensors[0].dim() != 3):
            raise UnsupportedModel(f"expected {_name(module)} to be called with batches of rows, got neither")

        def rebuild(new: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            filled = list(values)
            for place, tensor in zip(places, new, strict=True):
                filled[place] = tensor
            return pytree.tree_unflatten(filled, tree)

        return cls(module, tensors, tuple(axes), rows, rebuild)

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


def _input_axes(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | None]:
    """The dimension of the rows for every leaf of the arguments, None for what rows share or is no tensor."""
    leaves = _flat((args, kwargs))
    if isinstance(module, nn.RNNBase):
        return [(_sequence_axis(module), 1)[min(i, 1)] for i in range(len(leaves))]
    if isinstance(module, nn.MultiheadAttention):
        names = _flat((_ATTENTION_ARGUMENTS[: len(args)], {name: name for name in kwargs}))
        return [_attention_axis(module, name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    rows = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)
    return [0 if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == rows else None for leaf in leaves]


_ATTENTION_ARGUMENTS = tuple(inspect.signature(nn.MultiheadAttention.forward).parameters)[1:]


def _attention_axis(module: nn.MultiheadAttention, name: str, leaf: Any) -> int | None:
    if name in ("query", "key", "value"):
        return _sequence_axis(module)
    if name == "attn_mask" and isinstance(leaf, Tensor) and leaf.dim() == 3:
        raise UnsupportedModel(
            "expected attn_mask of MultiheadAttention to be shared by all rows (2-D), got a 3-D mask; "
            "mask rows by key_padding_mask"
        )
    return 0 if name == "key_padding_mask" else None


def _sequence_axis(module: nn.RNNBase | nn.MultiheadAttention) -> int:
    return 0 if module.batch_first else 1


def _output_axes(module: nn.Module, outputs: Sequence[Any], rows: int) -> Axes:
    if isinstance(module, nn.RNNBase):
        return (_sequence_axis(module), *[1] * (len(outputs) - 1))
    if isinstance(module, nn.MultiheadAttention):
        return (_sequence_axis(module), *[0] * (len(outputs) - 1))
    for output in outputs:
        if isinstance(output, Tensor) and (output.dim() == 0 or output.shape[0] != rows):
            raise UnsupportedModel(
                f"expected every output of {_name(module)} to have the {rows} rows first, got shape "
                f"{tuple(output.shape)}"
            )
    return (0,) * len(outputs)


def _flat(value: Any) -> list[Any]:
    return pytree.tree_flatten(value)[0]


def _like(original: Any, tensors: Sequence[Tensor]) -> Any:
    """`original` with its tensors replaced, in order."""
    values, tree = pytree.tree_flatten(original)
    fresh = iter(tensors)
    return pytree.tree_unflatten([next(fresh) if isinstance(v, Tensor) else v for v in values], tree)


def _name(module: nn.Module) -> str:
    return type(module).__name__
