"""Where rows come from: columns in memory, a map-style data set, or a DataLoader around one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from sfumato.errors import InvalidInput
from sfumato.training.memory import Memory
from sfumato.training.sampling import Indices

_LARGEST = 1000  # entries of what is looked at for each item; of what is larger, only the length
Bools = npt.NDArray[np.bool_]
Collate = Callable[[list[Any]], Any]
TARGETS = ("labels", "label", "targets", "target")
"""The fields that hold the target where an item is a dict."""


class Source(Protocol):
    """Rows by number."""

    rows: int

    @property
    def example(self) -> tuple[Any, Any]:
        """One row (or none, where there are none) whose shapes and types all rows have."""

    @property
    def shape_was_read(self) -> bool:
        """Whether a record was asked for the shape of the rows."""

    def take(self, rows: Indices) -> tuple[Any, Any, Bools]:
        """Inputs, targets, and which rows could be read."""


def source_of(data: Any, example: Any = None) -> Source:
    """The rows of whatever a user hands over; a loader's sampling is not used, for we sample ourselves."""
    columns = columns_of(data)
    if columns is not None:
        return Columns(*columns)
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise _stream(data.dataset)
        collate = None if data.collate_fn is default_collate else data.collate_fn
        return Items(data.dataset, example, collate, data.num_workers)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Items(data, example)
    raise _stream(data)


def columns_of(data: Any) -> tuple[Any, Any] | None:
    """(inputs, targets) as trees of tensors, or None for data whose items are read one by one."""
    if isinstance(data, DataLoader) and data.collate_fn is default_collate:
        data = data.dataset
    if hasattr(data, "inputs") and hasattr(data, "targets"):
        data = (data.inputs, data.targets)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Mapping):
        data = pair_of(data)
    if not _is_columns(data):
        return None
    inputs, targets = (pytree.tree_map(_column, column, is_leaf=_is_array) for column in data)
    return inputs, targets


def _column(values: Any) -> Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):  # its text may quote a value
        pass
    raise InvalidInput(
        "expected inputs and targets to be tensors or arrays of numbers, got others (texts, objects or dates); "
        "turn them into numbers first, or hand over a data set whose items are"
    )


def _is_array(values: Any) -> bool:
    """Text in a list is one column that cannot be, not many tensors."""
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_columns(data: Any) -> bool:
    """A tuple of two is (inputs, targets), even if inputs are one; of a list of tuples each is an example."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return isinstance(data, tuple) or not isinstance(data[0], tuple | Mapping)


def pair_of(item: Any) -> tuple[Any, Any]:
    """An item as (inputs, targets): a pair, or a dict one of whose fields is the target."""
    if not isinstance(item, Mapping):
        inputs, targets = item
        return dict(inputs) if isinstance(inputs, Mapping) else inputs, targets
    names = [name for name in TARGETS if name in item]
    if not names:
        raise InvalidInput(
            f"expected a field {', '.join(TARGETS[:-1])} or {TARGETS[-1]} in each item that is a dict, got "
            f"{', '.join(map(str, item))}; or make items pairs of (inputs, target)"
        )
    return {name: value for name, value in item.items() if name not in names}, item[names[0]]


class Columns:
    """Tensors with one entry a row."""

    shape_was_read = False

    def __init__(self, inputs: Any, targets: Any) -> None:
        self._columns = inputs, targets
        lengths = {len(leaf) for leaf in pytree.tree_leaves(self._columns)}
        if len(lengths) != 1:
            raise InvalidInput("expected inputs and targets of equal length; each row needs one of both")
        self.rows = lengths.pop()

    @property
    def example(self) -> tuple[Any, Any]:
        return self.take(np.arange(min(1, self.rows)))[:2]

    def take(self, rows: Indices) -> tuple[Any, Any, Bools]:
        chosen = torch.from_numpy(rows)
        inputs, targets = pytree.tree_map(lambda column: column[chosen], self._columns)
        return inputs, targets, np.ones(len(rows), dtype=bool)


class Items:
    """A map-style data set, whose items are read one by one, by several threads if there are `workers`.

    `collate` is shown the public example and one item, never two items: what it pads an item to is the length
    of the example, and says nothing about other items. What data set and `collate` keep of an item is put back
    before they see another; where threads did keep something, items are read again, one by one.
    """

    def __init__(self, items: Any, example: Any, collate: Collate | None = None, workers: int = 0) -> None:
        if collate is not None and example is None:
            raise InvalidInput(
                "expected example=..., a public item at least as long as any other, with a collate_fn: each "
                "item is padded to its length, since padding to the longest of a batch would tell who is in it"
            )
        self._items, self._declared, self._collate = items, example, collate
        self._warned = False
        self._pool = ThreadPoolExecutor(workers) if workers else None
        self.rows = len(items)
        self._memory = Memory(items, collate, name="the data set", largest=_LARGEST)

    @property
    def shape_was_read(self) -> bool:
        return self._declared is None

    @cached_property
    def example(self) -> tuple[Any, Any]:
        pair = self._shown_first() if self._declared is None else self._tensors(self._declared)
        return pytree.tree_map(lambda leaf: leaf[None], pair)

    def _shown_first(self) -> tuple[Any, Any]:
        try:
            return self._tensors(self._items[0])
        except InvalidInput:
            raise
        except Exception:  # its text may quote the row
            pass
        finally:
            self._memory.put_back()
        raise InvalidInput(
            "expected to read the first item of the data set, to see how items are made, and could not; "
            "declare a public one: batches(data, example=(input, target))"
        )

    def take(self, rows: Indices) -> tuple[Any, Any, Bools]:
        read = self._read_all(rows.tolist())
        readable = np.array([pair is not None for pair in read], dtype=bool)
        blank = pytree.tree_map(lambda leaf: torch.zeros_like(leaf[0]), self.example)
        pairs = [blank if pair is None else pair for pair in read]
        if not pairs:
            return *pytree.tree_map(lambda leaf: leaf[:0], self.example), readable
        return *pytree.tree_map(lambda *leaves: torch.stack(leaves), *pairs), readable

    def _read_all(self, rows: Sequence[int]) -> list[tuple[Any, Any] | None]:
        self.example  # noqa: B018  (before threads ask for it)
        if self._pool is not None:
            found = [*self._pool.map(self._read, rows)]
            if not self._forgets():
                return found
            self._pool = None
        return [self._read_forgetting(row) for row in rows]

    def _read_forgetting(self, row: int) -> tuple[Any, Any] | None:
        try:
            return self._read(row)
        finally:
            self._forgets()

    def _forgets(self) -> bool:
        """Put back what was kept of items; whether there was something."""
        kept = self._memory.put_back()
        if kept and not self._warned:
            self._warned = True
            warnings.warn(
                "the data set or collate_fn keeps something from item to item; it is put back after each item, "
                "so that no item reaches another, and items are read one by one: prepare things in __init__",
                stacklevel=2,
            )
        return kept

    def _read(self, row: int) -> tuple[Any, Any] | None:
        try:
            pair = self._tensors(self._items[row])
        except Exception:  # its text may quote the row, so nobody sees it
            return None
        return pair if _shapes(pair) == _shapes(pytree.tree_map(lambda leaf: leaf[0], self.example)) else None

    def _tensors(self, item: Any) -> tuple[Any, Any]:
        if self._collate is None:
            inputs, targets = (pytree.tree_map(_tensor, part, is_leaf=_is_numbers) for part in pair_of(item))
            return inputs, targets
        both = pair_of(self._collate([self._declared, item]))
        return pytree.tree_map(lambda leaf: torch.as_tensor(leaf)[1], both)


def _is_numbers(value: Any) -> bool:
    """A list of numbers, or of such lists, is one tensor; a list of tensors is several."""
    return isinstance(value, list) and all(isinstance(one, bool | int | float | list) for one in value)


def _tensor(leaf: Any) -> Tensor:
    """NumPy's and Python's numbers as torch's usual ones: float32, and int64 for whole numbers."""
    if isinstance(leaf, Tensor):
        return leaf
    try:
        tensor = torch.as_tensor(leaf)
    except (TypeError, ValueError, RuntimeError):
        kind = type(leaf).__name__
        raise InvalidInput(
            f"expected tensors, arrays or numbers in the items of the data set, got {kind}; turn texts and "
            "images into numbers in the data set or in a collate_fn"
        ) from None
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _shapes(pair: Any) -> Any:
    leaves, tree = pytree.tree_flatten(pair)
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _stream(data: Any) -> InvalidInput:
    return InvalidInput(
        f"expected (inputs, targets), a map-style data set or a DataLoader of one, got {type(data).__name__}; "
        "streams cannot be Poisson-sampled: make a data set with __getitem__ and __len__"
    )
