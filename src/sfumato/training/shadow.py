"""A shadow of memory: for every element that a forward and a backward pass compute, the rows it depends on.

`Shadow` watches each operation of torch and keeps labels (see `dependence`) for storages, so that views, writes
in place and tensors that share memory need no rules. It also notes whether Python is told what is in a tensor
that depends on rows or weights: what the code does next may then be anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato.training import dependence
from sfumato.training.dependence import EVERYTHING, ROWS, VARIES, Labels, Operation
from sfumato.training.moving import moves_rows


class Labelled:
    """The labels of storages: one byte for each byte of theirs."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, Labels, int]] = {}  # storage, labels, smallest element
        self._bases: dict[int, tuple[Any, Any]] = {}  # a storage, and the one that it stands for
        self._varying: dict[int, Any] = {}  # storages all of whose elements vary, and nothing else

    def has(self, tensor: Tensor) -> bool:
        where = self.storage(tensor)._cdata
        return where in self._kept or where in self._varying

    def vary(self, tensor: Tensor) -> None:
        """Note that a tensor, with all that shares its storage, may be another one tomorrow."""
        storage = self.storage(tensor)
        self._varying[storage._cdata] = storage

    def storage(self, tensor: Tensor) -> Any:
        """Where a tensor's elements are."""
        own = tensor.untyped_storage()
        return self._bases.get(own._cdata, (own, own))[1]

    def view(self, tensor: Tensor, base: Tensor) -> None:
        """Note that two tensors share their elements: those that wrap others do not say so by their storage."""
        own, shared = tensor.untyped_storage(), self.storage(base)
        if own._cdata != shared._cdata:
            self._bases[own._cdata] = own, shared

    def of(self, tensor: Tensor) -> Labels:
        """The labels of a tensor's elements; zero for what was never labelled."""
        where = self.storage(tensor)._cdata
        found = self._kept.get(where)
        if found is None or not tensor.numel():
            label = VARIES if where in self._varying else 0
            return np.broadcast_to(np.uint8(label), tuple(tensor.shape))
        storage, labels, smallest = found
        if storage.nbytes() != len(labels):  # resized
            return np.full(tuple(tensor.shape), EVERYTHING, np.uint8)
        if tensor.itemsize <= smallest:
            return _laid_out(labels, tensor)
        return np.asarray(np.bitwise_or.reduce(_laid_out(labels, tensor, whole=True), axis=-1), np.uint8)

    def put(self, tensor: Tensor, labels: Labels) -> None:
        if not tensor.numel():
            return
        storage = self.storage(tensor)
        known = self._kept.get(storage._cdata)
        if known is None:
            if not labels.any():
                return
            label = VARIES if storage._cdata in self._varying else 0
            known = storage, np.full(storage.nbytes(), label, np.uint8), tensor.itemsize
        self._kept[storage._cdata] = (*known[:2], min(known[2], tensor.itemsize))
        _laid_out(known[1], tensor, whole=True)[...] = labels[..., None]


def _laid_out(labels: Labels, tensor: Tensor, *, whole: bool = False) -> Labels:
    """The labels of a storage, seen as a tensor is: its elements' first bytes, or all in a last dimension."""
    size = tensor.itemsize
    shape, strides = tuple(tensor.shape), tuple(size * step for step in tensor.stride())
    if whole:
        shape, strides = (*shape, size), (*strides, 1)
    return np.ndarray(shape, np.uint8, labels, size * tensor.storage_offset(), strides)


class Shadow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, labels follow what is computed.

    `reads` says whether Python was told values; `mixing` names operations that brought rows together; `moves`
    says whether one put rows elsewhere by fixed numbers. Of many rows, `part` of their numbers is followed.
    """

    def __init__(self, model: nn.Module, part: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.labels = Labelled()
        self.reads = False
        self.mixing: list[str] = []
        self.moves = False
        self._heeds = True
        self._part = part
        for tensor in (*model.parameters(), *model.buffers()):  # each may be another one tomorrow
            self.labels.vary(tensor)

    def mark(self, rows: Any) -> None:
        """Label each row of the given tensors as its own."""
        for tensor in dependence.tree_tensors(rows):
            if tensor.dim():
                mine = dependence.as_bits(len(tensor), self._part).reshape(-1, *[1] * (tensor.dim() - 1))
                self.labels.put(tensor, np.broadcast_to(mine, tuple(tensor.shape)))

    def apart(self, values: Tensor, rows: int) -> bool:
        """Whether each of some rows, in the first dimension, depends on itself only."""
        if not values.numel():
            return True
        found = self.labels.of(values).reshape(rows, -1) & np.uint8(ROWS)
        return not bool((found & ~dependence.as_bits(rows, self._part)[:, None]).any())

    @contextmanager
    def not_heeding(self) -> Iterator[None]:
        """Within, Python may look at values: the code sees one row only."""
        self._heeds = False
        try:
            yield
        finally:
            self._heeds = True

    def told(self, tensors: Sequence[Tensor]) -> None:
        """Python was told what is in these tensors."""
        if self._heeds and any(self.labels.of(tensor).any() for tensor in tensors):
            self.reads = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            arguments = dependence.bound(func, args, kwargs)
            sources = [tensor for value in arguments.values() for tensor in dependence.tensors_in(value)]
            if kwargs.get("generator") is not None:
                self.reads |= self._heeds
            self.told(_tells(func, arguments, sources))
            labelled = any(self.labels.has(tensor) for tensor in sources)
            if not labelled and not dependence.draws(func):
                return self._called(func, args, kwargs, arguments)
            writes = bool(dependence.written(func))
            before = {id(tensor): self._before(tensor, writes) for tensor in sources}
            if self._heeds and not self.moves:
                self.moves = moves_rows(Operation(func, arguments, lambda t: before[id(t)], ()))
            result = self._called(func, args, kwargs, arguments)
            self._follow(func, arguments, before, result, sources)
            return result

    def _before(self, tensor: Tensor, writes: bool) -> Labels:
        found = self.labels.of(tensor)
        return found.copy() if writes else found

    def _called(self, func: Any, args: Any, kwargs: Any, arguments: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        for base, views in dependence.views(func, arguments, result):
            for view in views:
                self.labels.view(view, base)
        return result

    def _follow(self, func: Any, arguments: Any, before: Any, result: Any, sources: Sequence[Tensor]) -> None:
        """Label what an operation returned or wrote; views have their labels already."""
        changed = [t for name in dependence.written(func) for t in dependence.tensors_in(arguments[name])]
        known = {self.labels.storage(tensor)._cdata for tensor in sources}
        outputs = list(dependence.tensors_in(result if isinstance(result, list | tuple) else [result]))
        fresh = [t for t in outputs if self.labels.storage(t)._cdata not in known or _is_one(t, changed)]
        fresh += [t for t in changed if not _is_one(t, outputs)]
        if not fresh or func.overloadpacket.__name__ in _LAYING_OUT:
            return
        operation = Operation(func, arguments, lambda tensor: before[id(tensor)], fresh)
        try:
            found = dependence.labels_after(operation)
        except Exception:  # a rule that does not fit, or fresh values that the operation refuses
            united = dependence.united(before.values())
            found = [np.full(tuple(t.shape), united, np.uint8) for t in fresh]
        for tensor, labels in zip(fresh, found, strict=True):
            self.labels.put(tensor, labels)
            if _OF_SEVERAL[labels].any():
                self.mixing.append(operation.name)


_OF_SEVERAL = np.array([(label & ROWS).bit_count() > 1 for label in range(256)])
_LAYING_OUT = frozenset(  # they write where elements lie, not the elements
    ["transpose_", "t_", "squeeze_", "unsqueeze_", "swapdims_", "swapaxes_", "as_strided_", "detach_", "set_"]
)


def _is_one(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    return any(tensor is other for other in others)


def _tells(func: Any, arguments: dict[str, Any], sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors of which Python learns something from the result: a number, or how long the result is."""
    if func.overloadpacket.__name__ in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return [t for t in dependence.tensors_in(arguments["indices"]) if t.dtype in (torch.bool, torch.uint8)]
    return sources if _is_read(func) else ()


@lru_cache(maxsize=4096)
def _is_read(func: Any) -> bool:
    return func.overloadpacket.__name__ in _READING or not _READING_TAGS.isdisjoint(func.tags)


_READING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_READING = frozenset(["_local_scalar_dense", "equal", "is_nonzero", "allclose"])


class Told(TorchFunctionMode):
    """Notes what leaves torch past its operations: lists, arrays, addresses, text."""

    def __init__(self, shadow: Shadow) -> None:
        super().__init__()
        self._shadow = shadow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) or _describes(func):
            return result
        if not all(map(_is_torchs, pytree.tree_leaves(result))):
            with torch._C.DisableTorchFunction():
                self._shadow.told(dependence.tree_tensors((args, kwargs)))
        return result


def _describes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name in _DESCRIBING or (name.startswith("is_") and name != "is_nonzero")


_DESCRIBING = frozenset(
    [
        *("__get__", "__set__", "__delete__", "__len__", "__hash__", "dim", "ndimension", "size", "stride"),
        *("numel", "nelement", "element_size", "storage_offset", "get_device", "type", "has_names", "_is_view"),
        *("requires_grad_", "result_type", "can_cast", "broadcast_shapes", "_has_compatible_shallow_copy_type"),
        *("register_hook", "register_post_accumulate_grad_hook"),
    ]
)


def _is_torchs(value: Any) -> bool:
    return value is None or isinstance(
        value, Tensor | torch.dtype | torch.device | torch.layout | torch.memory_format | torch.Size
    )
