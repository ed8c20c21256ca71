"""One call of a torch operation, with the labels of its arguments; and what its schema says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Labels: TypeAlias = npt.NDArray[np.uint8]
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


Rule: TypeAlias = Callable[[Operation], Iterable[Labels]]


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


def united(labels: Iterable[Labels]) -> np.uint8:
    """All labels as one."""
    found = np.uint8(0)
    for each in labels:
        found |= np.bitwise_or.reduce(each, axis=None)
    return found


def over(labels: Labels, dims: Iterable[int]) -> Labels:
    """United along dimensions, which stay with length 1."""
    axes = tuple({dim % labels.ndim for dim in dims}) if labels.ndim else ()
    return np.bitwise_or.reduce(labels, axis=axes, keepdims=True) if axes else labels


def joined(parts: Iterable[Labels]) -> Labels:
    found: Any = np.zeros((), np.uint8)
    for part in parts:
        found = found | part
    return np.asarray(found, np.uint8)


def numbers(tensor: Tensor) -> npt.NDArray[Any]:
    """The values of a tensor, wherever it is."""
    return np.asarray(tensor.detach().cpu().numpy())


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def called(func: Any, given: dict[str, Any]) -> Any:
    only_by_name = {a.name for a in func._schema.arguments if a.kwarg_only}
    args = [value for name, value in given.items() if name not in only_by_name]
    return func(*args, **{name: value for name, value in given.items() if name in only_by_name})


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
