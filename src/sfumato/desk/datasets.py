"""The tables that the desk answers for: policy, ledger, and one thread that asks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import TypeVar

import pandas as pd

from sfumato.accounting import Budget
from sfumato.desk.grants import Allocated
from sfumato.errors import Refused
from sfumato.ledger import Charge, Head, Ledger
from sfumato.ledger.charge import add_charges
from sfumato.ledger.state import State
from sfumato.policy import Column, Policy
from sfumato.query import Answer, Table
from sfumato.query.opening import open_ledger

_T = TypeVar("_T")
MOST_WAITING = 1000
"""Questions of one data set that may wait; later ones are refused before anything is spent."""


class Busy(Refused):
    """Too many questions wait already."""


@dataclass
class Dataset:
    """One policy with its ledger. Questions are answered one after another, by one thread.

    Args:
        name: The policy's first table, by which the desk calls it.
        policy: What is declared.
        place: The policy's file.
        ledger: Its ledger.
    """

    name: str
    policy: Policy
    place: Path
    ledger: Ledger
    ready: Future[None] = field(init=False, default_factory=Future)
    _table: Table = field(init=False)
    _thread: ThreadPoolExecutor = field(init=False)
    _room: BoundedSemaphore = field(init=False)
    _reading: Lock = field(init=False, default_factory=Lock)
    _known: dict[int, Charge] = field(init=False, default_factory=dict)
    _head: Head | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._table = Table(self.policy, None)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"ask {self.name}")
        self._room = BoundedSemaphore(MOST_WAITING)

    @classmethod
    def open(cls, place: Path, policy: Policy) -> Dataset:
        return cls(policy.private_names[0], policy, place, open_ledger(policy, place))

    def charges(self) -> tuple[list[Charge], State, Head]:
        """All charges, what they add up to and the head; of the ledger, only what is new is read."""
        with self._reading:
            if self._head is None:
                entries = list(self.ledger.entries())
                self._known = add_charges({}, entries, unit=self.ledger.budget.unit)
                self._head = entries[-1].head
            else:
                for entry in self.ledger.entries_after(self._head):
                    add_charges(self._known, [entry], unit=self.ledger.budget.unit)
                    self._head = entry.head
            return list(self._known.values()), self.ledger.state, self._head

    def planned(self, allocated: Allocated) -> Table:
        """A table for dry runs: nothing of it reads a row."""
        return Table(self.policy, allocated)

    def answer(self, allocated: Allocated, sql: str, *, epsilon: float, delta: float | None) -> Answer:
        """Charge and answer; only in the thread of `submit`, as a table has one ledger at a time."""
        self._table.ledger = allocated
        return self._table.ask(sql, epsilon=epsilon, delta=delta)

    def submit(self, work: Callable[[], _T]) -> Future[_T]:
        """Have something done by the thread that asks."""
        if not self._room.acquire(blocking=False):
            raise Busy("expected fewer questions to be waiting; ask again in a minute")
        future = self._thread.submit(work)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def warm(self) -> Future[None]:
        """Look through the file and plan a first question, so that no later one has to wait for it."""
        self.ready = self.submit(self._warmed)
        return self.ready

    def _warmed(self) -> None:
        rehearse()
        self._table.prepare()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.ledger.close()


@cache
def rehearse() -> None:
    """Ask a made-up table once, so that no real question has to wait for what is imported on the way."""
    column = Column(name="x", type="integer", lower=0, upper=1)
    policy = Policy(table="nobody", source="", columns={"x": column}, budget=Budget(epsilon=1))
    rows = pd.DataFrame({"x": [0, 1]})
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(f"{folder}/nobody.db", budget=policy.budget) as ledger,
    ):
        Table(policy, ledger, data=rows).ask("SELECT COUNT(*), AVG(x) FROM nobody", epsilon=1.0)


def open_datasets(policies: Mapping[Path, Policy]) -> dict[str, Dataset]:
    """Every policy's data set, under the name of each of its tables in small letters."""
    found: dict[str, Dataset] = {}
    for place, policy in policies.items():
        dataset = Dataset.open(place, policy)
        found.update({name.lower(): dataset for name in policy.private_names})
    return found
