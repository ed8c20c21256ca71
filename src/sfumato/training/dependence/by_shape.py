"""Which rows each element of a result depends on, by those of the arguments: a rule for each kind of operation.

A label is a byte: bits 0 to 6 stand for rows, `VARIES` for what is no row's and yet not constant (weights,
random draws). Rules look at shapes and arguments, never at the values of rows, so that what a model does on
rare values only is seen as well. An operation without a rule is tried on fresh values (`tried`); what cannot
be tried depends on everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sfumato.randomness import public_torch_generator

Labels: TypeAlias = npt.NDArray[np.uint8]
Bools: TypeAlias = npt.NDArray[np.bool_]
VARIES = 0x80
ROWS = 0x7F  # the bits of rows
EVERYTHING = VARIES | ROWS
BITS = 7


@dataclass(frozen=True)
class Operation:
    """One call of a torch operation: its arguments by name, and the labels they had before it."""

    func: Any
    arguments: dict[str, Any]
    labels_of: Callable[[Tensor], Labels]
    outputs: Sequence[Tensor]

    @property
    def name(self) -> str:
        return str(self.func.overloadpacket.__name__)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str) -> Any:
        return self.arguments.get(name)

    def labels(self, name: str) -> Labels:
        return self.labels_of(self.arguments[name])

    def sources(self) -> Iterator[Tensor]:
        """The tensors it reads."""
        written = _outs(self.func)
        for name, value in self.arguments.items():
            if name not in written:
                yield from tensors_in(value)

    def all_labels(self) -> list[Labels]:
        return [self.labels_of(tensor) for tensor in self.sources()]


def bound(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their names in the schema, defaults included."""
    found = _defaults(func).copy()
    found.update(zip(found, args, strict=False))
    found.update(kwargs)
    return found


@lru_cache(maxsize=4096)
def _defaults(func: Any) -> dict[str, Any]:
    return {argument.name: argument.default_value for argument in func._schema.arguments}


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


@lru_cache(maxsize=4096)
def _outs(func: Any) -> frozenset[str]:
    """Arguments that are only written."""
    return frozenset(
        a.name
        for a in func._schema.arguments
        if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
    )


@lru_cache(maxsize=4096)
def written(func: Any) -> tuple[str, ...]:
    """Arguments that the operation writes."""
    arguments = func._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


def views(func: Any, arguments: dict[str, Any], result: Any) -> Iterator[tuple[Tensor, Iterable[Tensor]]]:
    """Arguments, and the results that share their elements by the schema."""
    names = _shared(func)
    results = result if len(names) > 1 else (result,)
    for name, part in zip(names, results, strict=True):
        if name is not None and isinstance(arguments[name], Tensor):
            yield arguments[name], tensors_in(part)


@lru_cache(maxsize=4096)
def _shared(func: Any) -> tuple[str | None, ...]:
    """For each result the argument that it shares its elements with, for certain: `reshape` may copy."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return (None,) * len(func._schema.returns)
    owners = {
        letter: argument.name
        for argument in func._schema.arguments
        if argument.alias_info is not None
        for letter in argument.alias_info.before_set
    }
    return tuple(
        next((owners[letter] for letter in back.alias_info.before_set if letter in owners), None)
        if back.alias_info is not None
        else None
        for back in func._schema.returns
    )


def labels_after(operation: Operation) -> list[Labels]:
    """The labels of every output."""
    found = rule_of(operation.func)(operation)
    return [np.broadcast_to(labels, out.shape) for labels, out in zip(found, operation.outputs, strict=True)]


Rule: TypeAlias = Callable[[Operation], Iterable[Labels]]


def united(labels: Iterable[Labels]) -> np.uint8:
    """All labels as one."""
    found = np.uint8(0)
    for each in labels:
        found |= np.bitwise_or.reduce(each, axis=None)
    return found


def _over(labels: Labels, dims: Iterable[int]) -> Labels:
    """United along dimensions, which stay with length 1."""
    axes = tuple({dim % labels.ndim for dim in dims}) if labels.ndim else ()
    return np.bitwise_or.reduce(labels, axis=axes, keepdims=True) if axes else labels


def _joined(parts: Iterable[Labels]) -> Labels:
    found: Any = np.zeros((), np.uint8)
    for part in parts:
        found = found | part
    return np.asarray(found, np.uint8)


def nothing(op: Operation) -> Iterable[Labels]:
    return [np.zeros((), np.uint8) for _ in op.outputs]


def varying(op: Operation) -> Iterable[Labels]:
    return [np.full((), VARIES, np.uint8) for _ in op.outputs]


def pointwise(op: Operation) -> Iterable[Labels]:
    return [_joined(op.all_labels())] * len(op.outputs)


def pointwise_draw(op: Operation) -> Iterable[Labels]:
    return [_joined(op.all_labels()) | np.uint8(VARIES)] * len(op.outputs)


def overwritten(op: Operation) -> Iterable[Labels]:
    """copy_ and fill_: what was there before does not matter."""
    others = [self_or for self_or in op.sources() if self_or is not op["self"]]
    return [_joined(map(op.labels_of, others))]


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
    found = target | _over(op.labels("self"), [1])
    return [found.reshape(op.outputs[0].shape), np.asarray(united(op.all_labels()), np.uint8)]


def everything(op: Operation) -> Iterable[Labels]:
    return [np.asarray(united(op.all_labels()), np.uint8)] * len(op.outputs)


def reduced(op: Operation) -> Iterable[Labels]:
    labels = op.labels("self")
    dims = _dims(op.get("dim"), labels.ndim)
    kept = _over(labels, dims)
    return [kept.reshape(out.shape) for out in op.outputs]


def along(op: Operation) -> Iterable[Labels]:
    """Each element depends on the line through it: softmax, sort, running sums."""
    found = _joined(_over(labels, _dims(op["dim"], labels.ndim)) for labels in op.all_labels())
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
    found = _over(op.labels(first), [-1]) | _over(op.labels(second), [-2])
    return [found | op.labels("self") if first != "self" else found]


def windows(op: Operation) -> Iterable[Labels]:
    """Pools, padding and resizing: each plane by itself."""
    match = re.search(r"(\d)d", op.name)
    assert match is not None
    dims = range(-int(match[1]), 0)
    planes = [_over(labels, dims) for labels in op.all_labels() if labels.ndim > int(match[1])]
    return [_joined(planes)] * len(op.outputs)


def trailing(op: Operation) -> Iterable[Labels]:
    """Layer norms: over the last dimensions; gradients of weights depend on all."""
    lead = len(op["input"].shape) - len(op["normalized_shape"])
    lines = [_over(labels, range(lead, labels.ndim)) for labels in op.all_labels() if labels.ndim > lead]
    shared = united(labels for labels in op.all_labels() if labels.ndim <= lead)
    kept = _joined(lines) | shared
    return _first_by_row(op, kept)


def groups(op: Operation) -> Iterable[Labels]:
    """Group norm: each row's groups by themselves."""
    shape = op["N"], op["group"]
    weights = united(op.labels(name) for name in ("weight", "bias") if isinstance(op.get(name), Tensor))
    of_rows = [op.labels(n) for n in ("grad_out", "input", "mean", "rstd") if isinstance(op.get(n), Tensor)]
    found = _joined(np.bitwise_or.reduce(each.reshape(*shape, -1), axis=2) for each in of_rows) | weights
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
    by_row = [_over(labels, (1, 2, 3)).reshape(-1) for labels, has_rows in parts if has_rows]
    by_row += [_over(op.labels_of(t), (1, 2)).reshape(-1) for t in op.sources() if t.dim() == 3]
    shared = united(labels for labels, _ in parts if labels.ndim < 3)
    found = _joined(by_row) | shared
    return [found.reshape(-1, *[1] * (out.dim() - 1)) if out.dim() else found for out in op.outputs]


def embedded(op: Operation) -> Iterable[Labels]:
    return [_picked_lines(op.labels("weight"), op["indices"], op.labels("indices"), 0)]


def selected(op: Operation) -> Iterable[Labels]:
    return [
        _picked_lines(op.labels("self"), op["index"].reshape(-1), op.labels("index").reshape(-1), op["dim"])
    ]


def _picked_lines(labels: Labels, index: Tensor, chosen_by: Labels, dim: int) -> Labels:
    """Lines of a table: constant places pick their own labels, others may pick any."""
    dim %= max(1, labels.ndim)
    constant = np.take(labels, _numbers(index), axis=dim)
    anything = np.take(_over(labels, [dim]), np.zeros(index.shape, np.intp), axis=dim)
    by = chosen_by.reshape(*chosen_by.shape, *[1] * (labels.ndim - dim - 1))
    return np.where(by != 0, anything | by, constant)


def gathered(op: Operation) -> Iterable[Labels]:
    labels, by, dim = op.labels("self"), op.labels("index"), op["dim"]
    if not labels.ndim:
        return [labels | by]
    index = _numbers(op["index"])
    constant = labels[_line_places(index, dim % labels.ndim)]
    anything = _over(labels, [dim])[_line_places(np.zeros_like(index), dim % labels.ndim)]
    return [np.where(by != 0, anything | by, constant)]


def scattered(op: Operation) -> Iterable[Labels]:
    """What is there stays, and what is put may lie anywhere in its line, unless its place is constant."""
    labels, by, dim = op.labels("self").copy(), op.labels("index"), op["dim"]
    source = next((op.labels(name) for name in ("src", "source", "value") if _is_tensor(op.get(name))), None)
    put = by if source is None else by | source[tuple(map(slice, by.shape))] if source.ndim else by | source
    if not labels.ndim or by.any():
        spread = np.zeros(labels.shape, np.uint8)
        lines = _over(put, [dim])
        spread[tuple(map(slice, lines.shape))] = lines
        return [labels | _over(spread, [dim])]
    np.bitwise_or.at(labels, _line_places(_numbers(op["index"]), dim % labels.ndim), put)
    return [labels]


def _numbers(tensor: Tensor) -> npt.NDArray[Any]:
    """The values of a tensor, wherever it is."""
    return np.asarray(tensor.detach().cpu().numpy())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _line_places(index: npt.NDArray[Any], dim: int) -> tuple[Any, ...]:
    places: list[Any] = list(np.ogrid[tuple(map(slice, index.shape))])
    places[dim] = index
    return tuple(places)


def indexed(op: Operation) -> Iterable[Labels]:
    labels, places, by = _free_places(op, op.labels("self"))
    found = labels[places]
    return [found | _placed(by, places, found.ndim)]


def put_by_index(op: Operation) -> Iterable[Labels]:
    labels = op.labels("self")
    room, places, by = _free_places(op, np.zeros_like(labels))
    room = room.copy()
    np.bitwise_or.at(room, places, op.labels("values"))
    np.bitwise_or.at(room, places, _placed(by, places, room[places].ndim))
    return [labels | room]


class _NoRule(Exception):
    """What no rule covers counts as depending on everything."""


def _free_places(op: Operation, labels: Labels) -> tuple[Labels, tuple[Any, ...], Labels]:
    """Where an index is not constant it may be anything, so its dimension is united to one place."""
    places: list[Any] = [slice(None)] * labels.ndim
    by, dim = [np.zeros((), np.uint8)], 0
    for index in op["indices"]:
        if index is None:
            dim += 1
            continue
        mine = op.labels_of(index)
        constant = not mine.any()
        spans = index.dim() if index.dtype in (torch.bool, torch.uint8) else 1
        if spans > 1 or (not constant and index.dtype == torch.bool):
            raise _NoRule("a mask over several dimensions, or of rows")
        if not constant:
            labels = _over(labels, [dim])
        places[dim] = _numbers(index) if constant else np.zeros(index.shape, np.intp)
        by.append(mine if index.dtype not in (torch.bool, torch.uint8) else by[0])
        dim += 1
    return labels, tuple(places), _joined(by)


def _placed(by: Labels, places: Sequence[Any], ndim: int) -> Labels:
    """Labels of indices where their dimensions come to lie in the result."""
    taken = [dim for dim, place in enumerate(places) if not isinstance(place, slice)]
    adjacent = not taken or taken == list(range(taken[0], taken[-1] + 1))
    before = taken[0] if taken and adjacent else 0
    return by.reshape(*by.shape, *[1] * (ndim - before - by.ndim)) if by.ndim else by


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
        name: torch.from_numpy(np.ascontiguousarray(op.labels_of(value))) if _is_tensor(value) else value
        for name, value in op.arguments.items()
    }
    results = _called(op.func, given)
    return [result.numpy() for result in tensors_in(results if isinstance(results, tuple) else [results])]


def _called(func: Any, given: dict[str, Any]) -> Any:
    only_by_name = {a.name for a in func._schema.arguments if a.kwarg_only}
    args = [value for name, value in given.items() if name not in only_by_name]
    return func(*args, **{name: value for name, value in given.items() if name in only_by_name})


_BASES = 3  # zeros, ones, and values of all kinds
_CHANGES: tuple[float | None, ...] = (float("nan"), 1e30, -1e30, None)  # None: other ordinary values


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


_KNOWN_NAMESPACES = ("aten", "prims", "torchvision", "mkldnn", "mkl")


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
                where |= ~_numbers((a == b) | ((a != a) & (b != b)))
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
    results = list(tensors_in(_called(op.func, given)))
    kept = [tensor for name in written(op.func) for tensor in tensors_in(given[name])]
    results += [tensor for tensor in kept if not any(tensor is other for other in results)]
    return [result.detach() for result in results]


def _replaced(value: Any, fresh: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return fresh[id(value)] if id(value) in fresh else torch.empty_like(value)
    return [_replaced(part, fresh) for part in value] if isinstance(value, list | tuple) else value


_RULES: dict[Rule, str] = {
    nothing: (
        "empty_like zeros_like ones_like full_like new_empty new_zeros new_ones new_full "
        "new_empty_strided empty zeros ones full arange zero_ eye linspace scalar_tensor tril_indices "
        "triu_indices _assert_async _assert_tensor_metadata"
    ),
    varying: (
        "rand randn randint randperm rand_like randn_like randint_like uniform_ normal_ exponential_ "
        "geometric_ log_normal_ cauchy_ random_"
    ),
    pointwise_draw: "native_dropout bernoulli normal poisson rrelu_with_noise",
    overwritten: "copy_ fill_ copy",
    pointwise: (
        "_to_copy clone masked_fill masked_fill_ where gelu_ hardtanh_backward elu_backward "
        "leaky_relu_backward hardswish hardswish_ hardswish_backward hardsigmoid_backward mish_backward "
        "softplus_backward softshrink_backward hardshrink_backward log_sigmoid_forward "
        "log_sigmoid_backward _prelu_kernel eq_ ne_ lt_ gt_ le_ ge_ tril triu tril_ triu_ fill threshold_ "
        "native_dropout_backward lift_fresh_copy floor_divide floor_divide_ __and__ __or__ __iand__ "
        "__ior__"
    ),
    unreduced: (
        "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward "
        "binary_cross_entropy binary_cross_entropy_backward soft_margin_loss soft_margin_loss_backward"
    ),
    classes: "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
    reduced: (
        "sum mean any all amax amin prod var std var_mean std_mean logsumexp argmax argmin max min median "
        "mode kthvalue count_nonzero linalg_vector_norm norm nansum aminmax"
    ),
    along: (
        "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data cumsum "
        "cumsum_ cumprod cumprod_ logcumsumexp sort argsort topk _cummax_helper _cummin_helper glu "
        "glu_backward"
    ),
    product: "mm bmm addmm addmm_ baddbmm baddbmm_",
    windows: (
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward "
        "avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward "
        "upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d "
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_bilinear2d_backward "
        "upsample_bicubic2d_backward reflection_pad1d reflection_pad2d replication_pad1d "
        "replication_pad2d reflection_pad1d_backward reflection_pad2d_backward"
    ),
    trailing: "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    groups: "native_group_norm native_group_norm_backward",
    convolved: "convolution",
    convolved_back: "convolution_backward",
    everything: "mkldnn_rnn_layer_backward",
    attention: (
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    embedded: "embedding",
    selected: "index_select",
    gathered: "gather",
    scattered: "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_",
    indexed: "index _unsafe_index",
    put_by_index: "index_put index_put_ _index_put_impl_ _unsafe_index_put",
    concatenated: "cat stack",
    padded: "constant_pad_nd",
    moved: (
        "slice_backward select_backward diagonal_backward flip roll repeat pixel_shuffle pixel_unshuffle "
        "diag_embed expand_copy view_copy permute_copy slice_scatter select_scatter"
    ),
}
_BY_NAME = {name: rule for rule, names in _RULES.items() for name in names.split()}


@lru_cache(maxsize=4096)
def rule_of(func: Any) -> Rule:
    """By torch's own tag of pointwise operations, then by name, else by trial."""
    if func.namespace != "aten":
        return tried
    if torch.Tag.pointwise in func.tags:
        return pointwise
    return _BY_NAME.get(func.overloadpacket.__name__, tried)


def draws(func: Any) -> bool:
    """Whether it makes something that varies out of nothing."""
    return rule_of(func) in (varying, pointwise_draw)


def as_bits(rows: int, part: int = 0) -> Labels:
    """One label for each of a few rows; of many, labels of three bits, of which none holds another.

    There are 35 of those: row n has that of digit `part` of n in base 35. Two rows differ in some digit, and
    where they meet there, the label is none of theirs.

    >>> as_bits(3).tolist(), as_bits(36)[:2].tolist(), as_bits(36, 1)[[0, 35]].tolist()
    ([1, 2, 4], [7, 11], [7, 11])
    """
    numbers = np.arange(rows)
    if rows <= BITS:
        return np.left_shift(np.uint8(1), numbers.astype(np.uint8))
    return _CODES[numbers // len(_CODES) ** part % len(_CODES)]


def passes_for(rows: int) -> int:
    """How many digits the numbers of so many rows have.

    >>> passes_for(7), passes_for(35), passes_for(36)
    (1, 1, 2)
    """
    return 1 if rows <= len(_CODES) else 1 + passes_for(-(-rows // len(_CODES)))


_CODES = np.array([label for label in range(1 << BITS) if label.bit_count() == 3], np.uint8)


def tree_tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
