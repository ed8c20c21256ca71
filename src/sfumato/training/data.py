"""Rows of a step: columns in memory, or items of a map-style data set read one by one, grouped by unit.

A loader's sampling is not used, for the trainer samples by itself; its collate_fn and its workers are. A worker
reads as the process of the trainer does: item by item, random draws keyed from a secret stream of its own. Only
numbers come back, or that an item could not be read; the text of an error stays in the worker.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, default_convert

from sfumato.datasets import Chosen
from sfumato.errors import InvalidInput
from sfumato.randomness import FreshGenerators
from sfumato.training.losses import Views, random_rows
from sfumato.training.plan import RECORD, TrainingPlan

Bytes: TypeAlias = npt.NDArray[np.uint8]
Indices: TypeAlias = npt.NDArray[np.int64]
Collate: TypeAlias = Callable[[list[Any]], Any]
Taken: TypeAlias = tuple[Any, Any, npt.NDArray[np.bool_]]  # inputs, targets, which rows could be read

TARGETS = ("labels", "label", "targets", "target")
"""The fields that hold the target where an item is a dict."""
DIGEST = 16  # bytes
_TORCHS_OWN = (default_collate, default_convert)  # of loaders with and without batches
_SCALARS = (bool, int, float, complex, str, np.generic)
_TOGETHER = 32  # rows that a worker reads at a time


class ChosenRows(NamedTuple):
    """Inputs and targets, and the record of the draws that chose them."""

    inputs: Any
    targets: Any
    chosen: Chosen


def chosen_by(data: Any) -> Chosen:
    """Return the record of the draws that chose the rows; plain arrays and tensors have none."""
    found = getattr(data.dataset if isinstance(data, DataLoader) else data, "chosen", None)
    return found if isinstance(found, Chosen) else Chosen()


def source_of(data: Any, example: Any = None) -> Columns | Items:
    """Return a reader of the rows by number."""
    if (columns := columns_of(data)) is not None:
        return Columns(*columns)
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        collate = None if data.collate_fn in _TORCHS_OWN else data.collate_fn
        how = {"context": data.multiprocessing_context, "begin": data.worker_init_fn}
        return Items(data.dataset, example, collate, data.num_workers, **how)
    remedy = "streams cannot be Poisson-sampled: make a data set with __getitem__ and __len__"
    if isinstance(data, str | os.PathLike | Tensor) or hasattr(data, "__array__"):
        remedy = (
            "hand inputs and targets over as two columns, or read a file with sfumato.datasets.table_dataset"
        )
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Items(data, example)
    name = type(data.dataset if isinstance(data, DataLoader) else data).__name__
    raise InvalidInput(
        f"expected (inputs, targets), a map-style data set or a DataLoader of one, got {name}; {remedy}"
    )


def columns_of(data: Any) -> tuple[Any, Any] | None:
    """Return (inputs, targets) as trees of tensors, or None for data whose items are read one by one."""
    given = _given_columns(data)
    if given is None:
        return None
    inputs, targets = (pytree.tree_map(_column, part, is_leaf=_is_array) for part in given)
    return inputs, targets


def held_in(data: Any) -> list[Any]:
    """Return the objects that hold the rows: the columns as they were given, or a data set of items."""
    given = _given_columns(data)
    if given is None:
        return [data.dataset if isinstance(data, DataLoader) else data]
    return pytree.tree_leaves(given, is_leaf=_is_array)


def _given_columns(data: Any) -> tuple[Any, Any] | None:
    if isinstance(data, DataLoader) and data.collate_fn in _TORCHS_OWN:
        data = data.dataset
    if hasattr(data, "inputs") and hasattr(data, "targets"):
        data = (data.inputs, data.targets)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Mapping):
        data = pair_of(data)
    if not isinstance(data, tuple | list) or len(data) != 2:
        return None
    if isinstance(data, list) and isinstance(data[0], tuple | Mapping):
        return None  # of a list of two tuples each is an example
    return data[0], data[1]


def pair_of(item: Any) -> tuple[Any, Any]:
    """Return an item as (inputs, targets): it is a pair, or a dict one of whose fields is the target."""
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


class Columns:
    """Tensors with one entry a row."""

    shape_was_read = ahead = read_by_code = False

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
        inputs, targets = pytree.tree_map(
            lambda column: column.index_select(0, chosen.to(column.device)), self.held
        )
        return inputs, targets, np.ones(len(rows), dtype=bool)


class Items:
    """A map-style data set, whose items are read one by one, ahead of their step if there are `workers`.

    `collate` is shown the public example and one item, never two items: an item is padded to the length of the
    example, which says nothing about other items. Generators are keyed anew after each item that drew or
    seeded. That the data set makes item i of record i alone is taken on trust; the certificate says so.
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
        begin: Callable[[int], Any] | None = None,
    ) -> None:
        if collate is not None and example is None:
            raise InvalidInput(
                "expected example=..., a public item at least as long as any other, with a collate_fn: each "
                "item is padded to its length, since padding to the longest of a batch would tell who is in it"
            )
        self._items, self._declared, self._collate = items, example, collate
        self.rows, self.shape_was_read = len(items), example is None
        self._draws = False  # whether an item drew random numbers, or seeded
        self.ahead = bool(workers)
        if workers:
            make = partial(_reader, items, example, collate, self.example)
            self._workers = Workers(make, workers, blank=self._blanks(1), context=context, begin=begin)

    @cached_property
    def example(self) -> tuple[Any, Any]:
        """Return one row whose shapes and types all rows have."""
        pair = self._first() if self._declared is None else self._tensors(self._declared)
        return pytree.tree_map(lambda leaf: leaf[None], pair)

    def _first(self) -> tuple[Any, Any]:
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
        """Ask for rows; the function that is returned waits for them."""
        if not self.ahead or not len(rows):
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
        blank = pytree.tree_map(itemgetter(0), self._blanks(1))
        pairs = [blank if pair is None else pair for pair in read]
        if not pairs:
            return *self._blanks(0), readable
        return *pytree.tree_map(lambda *leaves: torch.stack(leaves), *pairs), readable

    def _blanks(self, rows: int) -> tuple[Any, Any]:
        return pytree.tree_map(lambda leaf: torch.zeros_like(leaf[:rows]), self.example)

    def _read(self, row: int) -> tuple[Any, Any] | None:
        try:
            pair = self._tensors(self._items[row])
        except KeyboardInterrupt:
            raise
        except BaseException:  # its text may quote the row: it is never shown
            return None
        return pair if _shapes(pair) == self._shape else None

    @cached_property
    def _shape(self) -> Any:
        return _shapes(pytree.tree_map(itemgetter(0), self.example))

    def _tensors(self, item: Any) -> tuple[Any, Any]:
        if self._collate is None:
            inputs, targets = (pytree.tree_map(_tensor, part, is_leaf=_is_numbers) for part in pair_of(item))
            return inputs, targets
        both = pair_of(self._collate([self._declared, item]))
        return pytree.tree_map(lambda leaf: torch.as_tensor(leaf)[1], both)


def _reader(items: Any, example: Any, collate: Collate | None, shown: tuple[Any, Any]) -> Items:
    """Return the reader of a worker: rows are made as the example that the process of the trainer saw."""
    reader = Items(items, example, collate)
    reader.example = shown
    return reader


def _is_numbers(value: Any) -> bool:
    """A list of numbers, or of such lists, is one tensor; a list of tensors is several."""
    return isinstance(value, list) and all(isinstance(one, bool | int | float | list) for one in value)


def _tensor(leaf: Any) -> Tensor:
    """Convert numbers of NumPy and Python to torch's usual types: float32, and int64 for whole numbers."""
    if isinstance(leaf, Tensor):
        return leaf
    try:
        tensor = torch.as_tensor(leaf)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"expected tensors, arrays or numbers in the items of the data set, got {type(leaf).__name__}; "
            "turn texts and images into numbers in the data set or in a collate_fn"
        ) from None
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _shapes(pair: Any) -> Any:
    leaves, tree = pytree.tree_flatten(pair)
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]


class Workers:
    """A pool of processes, each with a reader of its own, which `make` makes there.

    `begin(number)` is called in each worker first, as a DataLoader's `worker_init_fn` is; `blank` stands for a
    row that cannot be read. *Guarantees*: a row whose reading ends its worker is one that cannot be read; the
    others are read again by fresh workers. So no row depends on how many workers there are.
    """

    def __init__(
        self,
        make: Callable[[], Items],
        count: int,
        *,
        blank: tuple[Any, Any],
        context: Any,
        begin: Callable[[int], Any] | None,
    ) -> None:
        self._make, self._count, self._blank, self._begin = make, count, blank, begin
        if not hasattr(context, "Process"):
            usual = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
            context = multiprocessing.get_context(context or usual)
        self._context = context
        self._pool = self._started(count)
        self._lonely: ProcessPoolExecutor | None = None

    def ask(self, rows: Sequence[int]) -> Callable[[], Taken]:
        """Let the rows, at least one, be read; the function that is returned waits for them."""
        parts = [list(rows[start : start + _TOGETHER]) for start in range(0, len(rows), _TOGETHER)]
        waiting = [(self._submitted(part), part) for part in parts]
        return lambda: _joined([self._received(*each) for each in waiting])

    def _submitted(self, rows: list[int]) -> Future[Any]:
        try:
            return self._pool.submit(_read, rows)
        except BrokenProcessPool:
            self._pool = self._started(self._count)
            return self._pool.submit(_read, rows)

    def _received(self, future: Future[Any], rows: list[int]) -> Taken:
        try:
            return _unpacked(*future.result())
        except BrokenProcessPool:  # while these rows were read, or others
            return _joined([self._alone(row) for row in rows])

    def _alone(self, row: int) -> Taken:
        """Read a row beside which no other is read: if the worker ends, it is by this row."""
        self._lonely = self._started(1) if self._lonely is None else self._lonely
        try:
            return _unpacked(*self._lonely.submit(_read, [row]).result())
        except BrokenProcessPool:
            self._lonely = None
            return *self._blank, np.zeros(1, dtype=bool)

    def _started(self, count: int) -> ProcessPoolExecutor:
        """Start workers; a task that they cannot do at all is found now."""
        pool = ProcessPoolExecutor(
            count,
            mp_context=self._context,
            initializer=_begun,
            initargs=(self._make, self._begin, self._context.Value("i", 0)),
        )
        try:
            pool.submit(_ready).result()
        except Exception:  # its text may quote the data
            pool.shutdown(wait=False)
        else:
            # Before the interpreter takes modules apart: a pool that is found then complains on the way out.
            weakref.finalize(self, pool.shutdown, wait=False, cancel_futures=True)
            return pool
        raise InvalidInput(
            f"expected num_workers={self._count} worker processes to begin, but they could not; use "
            "num_workers=0, or a data set and a worker_init_fn that can be handed to another process"
        )


class _Packed:
    """A tensor as bytes: shared memory may be small, and NumPy does not know all of torch's types."""

    def __init__(self, tensor: Tensor) -> None:
        self.type, self.shape = tensor.dtype, tuple(tensor.shape)
        self.bytes = _as_bytes(tensor)

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.bytes).view(self.type).reshape(self.shape)


def _unpacked(packed: Any, readable: Any) -> Taken:
    return *pytree.tree_map(_Packed.tensor, packed), readable


def _joined(parts: Sequence[Taken]) -> Taken:
    inputs, targets = pytree.tree_map(lambda *leaves: torch.cat(leaves), *(part[:2] for part in parts))
    return inputs, targets, np.concatenate([part[2] for part in parts])


_in_worker: Items | None = None


def _begun(make: Callable[[], Items], begin: Callable[[int], Any] | None, counter: Any) -> None:
    global _in_worker
    torch.set_num_threads(1)
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    if begin is not None:
        begin(number)
    _in_worker = make()


def _ready() -> bool:
    return _in_worker is not None


def _read(rows: list[int]) -> tuple[Any, Any]:
    assert _in_worker is not None
    inputs, targets, readable = _in_worker.take(np.asarray(rows, dtype=np.int64))
    return pytree.tree_map(_Packed, (inputs, targets)), readable


# Units


@dataclass(frozen=True)
class Rows:
    """Inputs and targets of some rows, and which of the chunk's units each row belongs to."""

    inputs: Any
    targets: Any
    units: Tensor | None  # (rows,), or None where each row is a unit of its own
    numbers: Indices  # of the units, in the data


class TrainingData:
    """Rows grouped by the privacy unit that they belong to.

    `units` names each row's person, of whose rows the first `rows_per_unit` count; without it each row is a
    unit. `views(inputs)` gives K random views of each row, (rows, K, …), which are rows of the same unit.
    `example` is a public item (input, target) that says how items of a map-style data set are made; without it
    the first item is asked, which is a record: `shape_was_read` then says so.

    *Guarantees*: a unit with a row that cannot be read, or that has another shape or type, is left out by
    itself, from then on.
    """

    def __init__(
        self,
        data: Any,
        *,
        units: npt.ArrayLike | None = None,
        rows_per_unit: int | None = None,
        views: Views | None = None,
        example: Any = None,
    ) -> None:
        self._source = source_of(data, example)
        self.rows, self.held = self._source.rows, self._source.held
        self.ahead, self.read_by_code = self._source.ahead, self._source.read_by_code
        self.shape_was_read = self._source.shape_was_read
        if units is not None and rows_per_unit is None:
            raise InvalidInput(
                "expected plan.rows_per_unit with units=...; declare how many rows of one unit may count"
            )
        self._grouping, self.units = _grouping(units, self.rows, rows_per_unit or 1)
        self.views, self.rows_per_unit = views, rows_per_unit or 1
        self._left_out = np.zeros(self.units, dtype=bool)

    @cached_property
    def example(self) -> tuple[Any, Any]:
        """Return made-up rows with the shapes and types of the data; of a private row nothing else is used."""
        inputs, targets = self._source.example
        return random_rows(inputs, 1), random_rows(targets, 1)

    def ask(self, units: Indices) -> Callable[[], Rows]:
        """Let the rows of units that are not left out be read; the function returned waits for them."""
        units = units[~self._left_out[units]]
        rows, owner = self._rows_of(units)
        waiting = self._source.ask(rows)

        def received() -> Rows:
            if self._left_out[units].any():  # since
                return self.ask(units)()
            inputs, targets, readable = waiting()
            if readable.all():
                return Rows(inputs, targets, owner, units)
            self._left_out[units[~readable] if owner is None else units[owner.numpy()[~readable]]] = True
            return self.ask(units)()

        return received

    def _rows_of(self, units: Indices) -> tuple[Indices, Tensor | None]:
        """Return their rows in the data, and which of the units each row belongs to."""
        if self._grouping is None:
            return units, None
        order, starts, counts = self._grouping
        rows = [order[starts[unit] : starts[unit] + counts[unit]] for unit in units]
        owner = torch.from_numpy(np.repeat(np.arange(len(units)), counts[units]))
        return np.concatenate(rows or [order[:0]]), owner


def _grouping(
    units: npt.ArrayLike | None, rows: int, most: int
) -> tuple[tuple[Indices, Indices, Indices] | None, int]:
    """Return row numbers ordered by unit, each unit's first and how many count; and the number of units."""
    if units is None:
        return None, rows
    names = np.asarray(units)
    if names.shape != (rows,):
        raise InvalidInput("expected units to name one unit for each row; check its length")
    _, codes, counts = np.unique(names, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable").astype(np.int64)
    starts = np.cumsum(counts) - counts
    return (order, starts.astype(np.int64), np.minimum(counts, most).astype(np.int64)), len(counts)


def check_units(plan: TrainingPlan, data: Any, units: npt.ArrayLike | None) -> None:
    """Refuse a plan for another unit than the data declare, or about people without the person of each row."""
    declared = getattr(data, "unit", RECORD)
    if units is None and (plan.rows_per_unit is not None or plan.unit != RECORD):
        raise InvalidInput(
            f"expected units=..., which names the {plan.unit} of each row, with unit={plan.unit!r} and "
            f"rows_per_unit={plan.rows_per_unit}, got none; without it each row is a unit of its own: say "
            f"unit={RECORD!r} and no rows_per_unit, or units=range(number of rows) with rows_per_unit=1"
        )
    if declared not in (RECORD, plan.unit):
        raise InvalidInput(
            f"expected a plan for unit={declared!r}, as the data declare, got unit={plan.unit!r}; the price "
            "of a record is not the price of a person"
        )


# Digests


def names_of(units: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return one id for each unit, in the order in which training data number them."""
    return np.unique(np.asarray(units))


def name_digests(names: npt.NDArray[Any], key: bytes) -> Bytes:
    return _stacked([keyed(f"{names.dtype.kind} {name}".encode(), key) for name in names.tolist()])


def row_digests(data: Any, key: bytes) -> Bytes:
    columns = columns_of(data)
    if columns is None:
        raise InvalidInput(
            "expected units=... on several ranks with a map-style data set, whose rows cannot be compared; "
            "units=range(len(data)) with rows_per_unit=1 if each row is one unit"
        )
    leaves = pytree.tree_leaves(columns)
    parts = [_as_bytes(leaf).reshape(len(leaf), leaf.nbytes // max(1, len(leaf))) for leaf in leaves]
    return _stacked([keyed(b"".join(row.tobytes() for row in rows), key) for rows in zip(*parts, strict=True)])


def keyed(content: bytes, key: bytes = b"") -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=DIGEST).digest()


def _as_bytes(tensor: Tensor) -> Bytes:
    found: Bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found


def _stacked(digests: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), DIGEST)
