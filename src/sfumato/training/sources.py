"""Where rows come from: columns in memory, a map-style data set, or a DataLoader around one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, default_convert

from sfumato.caveats import Code
from sfumato.datasets import Chosen
from sfumato.errors import InvalidInput
from sfumato.randomness import FreshGenerators
from sfumato.training.sampling import Indices
from sfumato.training.workers import Begin, Taken, Workers

ITEMS_BY_OWN_CODE = Code.ITEMS_BY_OWN_CODE()
Collate = Callable[[list[Any]], Any]
TARGETS = ("labels", "label", "targets", "target")
"""The fields that hold the target where an item is a dict."""
_TORCHS_OWN = (default_collate, default_convert)  # of loaders with and without batches


_SCALARS = (bool, int, float, complex, str, np.generic)


class Source(Protocol):
    """Rows by number."""

    rows: int

    @property
    def example(self) -> tuple[Any, Any]:
        """One row (or none, where there are none) whose shapes and types all rows have."""

    @property
    def shape_was_read(self) -> bool:
        """Whether a record was asked for the shape of the rows."""

    @property
    def ahead(self) -> bool:
        """Whether rows that are asked for are read while something else is done."""

    @property
    def read_by_code(self) -> bool:
        """Whether code of the holder's makes the items."""

    @property
    def held(self) -> Any:
        """The tensors that hold the rows; None where items are read one by one."""

    def ask(self, rows: Indices) -> Callable[[], Taken]:
        """Ask for rows; what is returned waits for them: inputs, targets, and which rows could be read."""


def source_of(data: Any, example: Any = None) -> Source:
    """The rows of whatever a user hands over; a loader's sampling is not used, for we sample ourselves."""
    given = _given_columns(data)
    if given is not None:
        return Columns(*map(_as_tensors, given))
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise _stream(data.dataset)
        collate = None if data.collate_fn in _TORCHS_OWN else data.collate_fn
        how = {"context": data.multiprocessing_context, "begin": data.worker_init_fn}
        return Items(data.dataset, example, collate, data.num_workers, **how)
    if isinstance(data, str | os.PathLike) or _is_one_array(data):
        raise _no_pair(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Items(data, example)
    raise _stream(data)


def columns_of(data: Any) -> tuple[Any, Any] | None:
    """(inputs, targets) as trees of tensors, or None for data whose items are read one by one."""
    given = _given_columns(data)
    return None if given is None else (_as_tensors(given[0]), _as_tensors(given[1]))


class ChosenRows(NamedTuple):
    """Inputs and targets, and by whose draws they were chosen, or what is done with them."""

    inputs: Any
    targets: Any
    chosen: Chosen


def chosen_by(data: Any) -> Chosen:
    """By whose draws the rows were chosen, where the data know it; plain arrays and tensors do not."""
    found = getattr(data.dataset if isinstance(data, DataLoader) else data, "chosen", None)
    return found if isinstance(found, Chosen) else Chosen()


def held_in(data: Any) -> list[Any]:
    """The objects that hold the rows, as the user made them: the columns, or a data set of items."""
    given = _given_columns(data)
    if given is None:
        return [data.dataset if isinstance(data, DataLoader) else data]
    return pytree.tree_leaves(given, is_leaf=_is_array)


def _given_columns(data: Any) -> tuple[Any, Any] | None:
    """The same as the user made them."""
    if isinstance(data, DataLoader) and data.collate_fn in _TORCHS_OWN:
        data = data.dataset
    if hasattr(data, "inputs") and hasattr(data, "targets"):
        data = (data.inputs, data.targets)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Mapping):
        data = pair_of(data)
    if not _is_columns(data):
        return None
    inputs, targets = data
    return inputs, targets


def _as_tensors(columns: Any) -> Any:
    return pytree.tree_map(_column, columns, is_leaf=_is_array)


def _column(values: Any) -> Tensor:
    if not isinstance(values, Tensor) and hasattr(values, "__array__"):
        values = np.asarray(values)  # of pandas too, and of memory-mapped files without reading them
    try:
        with warnings.catch_warnings():  # a file may be read-only: rows are copied out of it, never written
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            found = torch.as_tensor(values).as_subclass(Tensor)  # a class of the user's runs code of its own
    except (TypeError, ValueError, RuntimeError):  # its text may quote a value
        found = None
    if found is not None and found.dim():
        return found
    got = "others (texts, objects, dates or rows of several lengths)" if found is None else "a single number"
    raise InvalidInput(
        f"expected inputs and targets to be tensors, arrays or lists of numbers, one entry a row, got {got}; "
        "turn them into numbers first (torch.stack for a list of tensors), or hand over a data set whose items "
        "are"
    )


def _is_array(values: Any) -> bool:
    """A list of numbers or texts, or of such lists, is one column; of tensors, several columns side by side."""
    if not isinstance(values, list | tuple):
        return False
    return all(isinstance(value, _SCALARS) for value in values) or all(map(_is_array, values))


def _is_one_array(data: Any) -> bool:
    """A tensor, an array or a table, in which nothing says what is to be learned."""
    return isinstance(data, Tensor) or hasattr(data, "__array__")


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
    ahead = False
    read_by_code = False

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.held = inputs, targets
        lengths = {len(leaf) for leaf in pytree.tree_leaves(self.held)}
        if len(lengths) != 1:
            raise InvalidInput("expected inputs and targets of equal length; each row needs one of both")
        self.rows = lengths.pop()

    @property
    def example(self) -> tuple[Any, Any]:
        return self.take(np.arange(min(1, self.rows)))[:2]

    def ask(self, rows: Indices) -> Callable[[], Taken]:
        return lambda: self.take(rows)

    def take(self, rows: Indices) -> Taken:
        chosen = torch.from_numpy(rows)
        inputs, targets = pytree.tree_map(partial(_chosen, chosen), self.held)
        return inputs, targets, np.ones(len(rows), dtype=bool)


def _chosen(rows: Tensor, column: Tensor) -> Tensor:
    return column.index_select(0, rows.to(column.device))


class Items:
    """A map-style data set, whose items are read one by one, ahead of their step if there are `workers`.

    `collate` is shown the public example and one item, never two items: what it pads an item to is the length
    of the example, and says nothing about other items. What is random in them is keyed anew after each item
    that drew or seeded. That they make item i of record i alone is taken on trust; the certificate says so.
    """

    read_by_code = True
    held = None

    def __init__(
        self,
        items: Any,
        example: Any,
        collate: Collate | None = None,
        workers: int = 0,
        *,
        context: Any = None,
        begin: Begin | None = None,
    ) -> None:
        if collate is not None and example is None:
            raise InvalidInput(
                "expected example=..., a public item at least as long as any other, with a collate_fn: each "
                "item is padded to its length, since padding to the longest of a batch would tell who is in it"
            )
        self._items, self._declared, self._collate = items, example, collate
        self.rows = len(items)
        self._draws = False  # whether an item drew random numbers, or seeded
        self._workers = None
        if workers:
            make = partial(_reader, items, example, collate, self.example)
            blank = pytree.tree_map(torch.zeros_like, self.example)
            self._workers = Workers(make, workers, blank=blank, context=context, begin=begin)

    @property
    def ahead(self) -> bool:
        return self._workers is not None

    @property
    def shape_was_read(self) -> bool:
        return self._declared is None

    @cached_property
    def example(self) -> tuple[Any, Any]:
        pair = self._shown_first() if self._declared is None else self._tensors(self._declared)
        return pytree.tree_map(lambda leaf: leaf[None], pair)

    def _shown_first(self) -> tuple[Any, Any]:
        try:
            with FreshGenerators():
                return self._tensors(self._items[0])
        except InvalidInput:
            raise
        except Exception:  # its text may quote the row
            pass
        raise InvalidInput(
            "expected to read the first item of the data set, to see how items are made, and could not; "
            "declare a public one: batches(data, example=(input, target))"
        )

    def ask(self, rows: Indices) -> Callable[[], Taken]:
        if self._workers is None or not len(rows):
            return lambda: self.take(rows)
        return self._workers.ask(rows.tolist())

    def take(self, rows: Indices) -> Taken:
        """Read in this process; where items draw or seed, the generators are keyed anew after each."""
        with FreshGenerators() as generators:
            read = [] if self._draws else [self._read(row) for row in rows.tolist()]
            if self._draws or generators.moved:
                self._draws, read = True, []
                for row in rows.tolist():
                    generators.refresh()
                    read.append(self._read(row))
        readable = np.array([pair is not None for pair in read], dtype=bool)
        blank = pytree.tree_map(lambda leaf: torch.zeros_like(leaf[0]), self.example)
        pairs = [blank if pair is None else pair for pair in read]
        if not pairs:
            return *pytree.tree_map(lambda leaf: leaf[:0], self.example), readable
        return *pytree.tree_map(lambda *leaves: torch.stack(leaves), *pairs), readable

    def _read(self, row: int) -> tuple[Any, Any] | None:
        try:
            pair = self._tensors(self._items[row])
        except KeyboardInterrupt:  # somebody wants to stop
            raise
        except BaseException:  # its text may quote the row, so nobody sees it
            return None
        return pair if _shapes(pair) == self._shape else None

    @cached_property
    def _shape(self) -> Any:
        return _shapes(pytree.tree_map(lambda leaf: leaf[0], self.example))

    def _tensors(self, item: Any) -> tuple[Any, Any]:
        if self._collate is None:
            inputs, targets = (pytree.tree_map(_tensor, part, is_leaf=_is_numbers) for part in pair_of(item))
            return inputs, targets
        both = pair_of(self._collate([self._declared, item]))
        return pytree.tree_map(lambda leaf: torch.as_tensor(leaf)[1], both)


def _reader(items: Any, example: Any, collate: Collate | None, shown: tuple[Any, Any]) -> Items:
    """What a worker reads with: rows are made as the example that the process of the trainer saw."""
    reader = Items(items, example, collate)
    reader.example = shown
    return reader


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


def _no_pair(data: Any) -> InvalidInput:
    return InvalidInput(
        f"expected (inputs, targets), a map-style data set or a DataLoader of one, got {type(data).__name__}; "
        "hand inputs and targets over as two columns, or read a file with sfumato.datasets.table_dataset"
    )


def _stream(data: Any) -> InvalidInput:
    return InvalidInput(
        f"expected (inputs, targets), a map-style data set or a DataLoader of one, got {type(data).__name__}; "
        "streams cannot be Poisson-sampled: make a data set with __getitem__ and __len__"
    )
