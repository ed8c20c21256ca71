"""Worker processes that read items of a data set ahead of the step that needs them.

A worker reads as the process of the trainer does: item by item, whatever is random keyed by a secret stream of
its own. What comes back is numbers, or that an item could not be read: the
text of an error stays in the worker. So no row depends on how many workers there are.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput

_TOGETHER = 32  # rows that a worker reads at a time
Taken: TypeAlias = tuple[Any, Any, npt.NDArray[np.bool_]]
Begin: TypeAlias = Callable[[int], Any]


class Reader(Protocol):
    """What a worker reads with."""

    def take(self, rows: Any) -> Taken:
        """Inputs, targets, and which rows could be read."""


class Workers:
    """A pool of processes, each with a reader of its own, which `make` makes there.

    `begin(number)` is called in each worker first, as a DataLoader's `worker_init_fn` is. `blank` is what
    stands for a row that cannot be read. *Guarantees*: a row whose reading ends its worker is one that cannot
    be read; the others are read again by fresh workers.
    """

    def __init__(
        self,
        make: Callable[[], Reader],
        count: int,
        *,
        blank: tuple[Any, Any],
        context: Any = None,
        begin: Begin | None = None,
    ) -> None:
        self._make, self._count, self._blank, self._begin = make, count, blank, begin
        known = hasattr(context, "Process")
        self._context = context if known else multiprocessing.get_context(context or _usual())
        self._pool = self._started(count)
        self._lonely: ProcessPoolExecutor | None = None

    def ask(self, rows: Sequence[int]) -> Callable[[], Taken]:
        """Let the rows, at least one, be read; what is returned waits for them."""
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
        """A row beside which no other is read: if its worker ends, it is by this row."""
        if self._lonely is None:
            self._lonely = self._started(1)
        try:
            return _unpacked(*self._lonely.submit(_read, [row]).result())
        except BrokenProcessPool:
            self._lonely = None
            return *self._blank, np.zeros(1, dtype=bool)

    def _started(self, count: int) -> ProcessPoolExecutor:
        """Fresh workers; what they cannot do at all is found now."""
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


def _usual() -> str | None:
    """How a DataLoader starts its workers where nobody chose: by a fork, where there is one."""
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else None


class _Packed:
    """A tensor as bytes: shared memory may be small, and NumPy does not know all of torch's types."""

    def __init__(self, tensor: Tensor) -> None:
        self.type, self.shape = tensor.dtype, tuple(tensor.shape)
        self.bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.bytes).view(self.type).reshape(self.shape)


def _unpacked(packed: Any, readable: Any) -> Taken:
    inputs, targets = pytree.tree_map(_Packed.tensor, packed)
    return inputs, targets, readable


def _joined(parts: Sequence[Taken]) -> Taken:
    inputs, targets = pytree.tree_map(lambda *leaves: torch.cat(leaves), *(part[:2] for part in parts))
    return inputs, targets, np.concatenate([part[2] for part in parts])


# In a worker

_reader: Reader | None = None


def _begun(make: Callable[[], Reader], begin: Begin | None, counter: Any) -> None:
    global _reader
    torch.set_num_threads(1)
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    if begin is not None:
        begin(number)
    _reader = make()


def _ready() -> bool:
    return _reader is not None


def _read(rows: list[int]) -> tuple[Any, Any]:
    assert _reader is not None
    inputs, targets, readable = _reader.take(np.asarray(rows, dtype=np.int64))
    return pytree.tree_map(_Packed, (inputs, targets)), readable
