"""The tables that the desk answers for: policy, ledger, one thread that charges and one that reads rows."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from sfumato.accounting import Budget
from sfumato.desk.together import Together, Waiting
from sfumato.errors import LedgerError, Refused, SfumatoError
from sfumato.ledger import Charge, Head, Ledger
from sfumato.ledger.charge import add_charges
from sfumato.ledger.state import State
from sfumato.policy import Column, Policy
from sfumato.query import Table
from sfumato.query.answer import ledger_place, make_ledger

MOST_WAITING = 1000
"""Questions of one data set that may wait; later ones are refused before anything is spent."""


class Busy(Refused):
    """Too many questions wait already."""


@dataclass
class Dataset:
    """One policy with its ledger. Questions are charged by one thread and answered by another, each in turn.

    The one that charges plans them on a connection of its own and never waits for rows: no charge tells how
    long the question before it took.

    Args:
        name: The policy's first table, by which the desk calls it.
        policy: What is declared.
        place: The policy's file.
        ledger: Its ledger.
        images: Whether it is images, of which jobs are made and nothing is asked.
    """

    name: str
    policy: Policy
    place: Path
    ledger: Ledger
    images: bool = False
    ready: Future[None] = field(init=False, default_factory=Future)
    planner: Table = field(init=False)
    table: Table = field(init=False)
    charging: Together[Any] = field(init=False)  # of a desk that is served
    asking: Together[Any] = field(init=False)
    beside: ThreadPoolExecutor = field(init=False)  # of which the thread takes what needs no rows any more
    _reading: Lock = field(init=False, default_factory=Lock)
    _known: dict[int, Charge] = field(init=False, default_factory=dict)
    _head: Head | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.planner, self.table = (Table(self.policy, self.ledger) for _ in range(2))
        self.beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"beside {self.name}")
        self.served_by(_nobody, _nobody)

    @classmethod
    def open(cls, place: Path, policy: Policy, *, images: bool = False, known: bool = False) -> Dataset:
        """Open it with its ledger, which is made if there is none, unless it is `known` that there was one."""
        if known:
            Ledger.open(ledger_place(policy, place), dataset=policy.dataset).close()
        return cls(policy.private_names[0], policy, place, make_ledger(policy, place), images)

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

    def served_by(self, charge: Work, answer: Work) -> None:
        """Have the thread that charges, and the one that reads rows, do this with what waits."""
        self.charging = Together(functools.partial(charge, self), name=f"charge {self.name}")
        self.asking = Together(functools.partial(answer, self), name=f"ask {self.name}")

    def submit(self, wanted: Any) -> Future[Any]:
        """Have something charged, and then answered."""
        if len(self.charging) + len(self.asking) >= MOST_WAITING:
            raise Busy("expected fewer questions to be waiting; ask again in a minute")
        return self.charging.submit(wanted)

    def warm(self) -> Future[None]:
        """Look through the file and plan a first question, so that no later one has to wait for it."""
        self.asking.first(self._warmed)
        return self.ready

    def _warmed(self) -> None:
        try:
            if not self.images:
                rehearse()
                self.planner.prepare()
                self.table.prepare()
        except Exception as error:
            self.ready.set_exception(error)
        else:
            self.ready.set_result(None)

    def close(self) -> None:
        self.charging.close()
        self.asking.close()
        self.beside.shutdown(wait=True)
        self.ledger.close()


Work = Callable[[Dataset, Sequence[Waiting[Any]]], None]


def _nobody(dataset: Dataset, waiting: Sequence[Waiting[Any]]) -> None:
    raise Refused("expected a desk that is served, got one that is not: nobody answers here")


@functools.cache
def rehearse() -> None:
    """Ask a made-up table once, so that no real question has to wait for what is imported on the way."""
    import pandas as pd

    column = Column(name="x", type="integer", lower=0, upper=1)
    policy = Policy(table="nobody", source="", columns={"x": column}, budget=Budget(epsilon=1))
    rows = pd.DataFrame({"x": [0, 1]})
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(f"{folder}/nobody.db", budget=policy.budget) as ledger,
    ):
        Table(policy, ledger, data=rows).ask("SELECT COUNT(*), AVG(x) FROM nobody", epsilon=1.0)


def open_datasets(
    policies: Mapping[Path, Policy], images: Collection[str], *, known: Collection[str]
) -> tuple[dict[str, Dataset], dict[str, str]]:
    """Every policy's data set, under the name of each of its tables in small letters.

    Args:
        policies: By their files.
        images: The names of those that are images.
        known: The data sets of which a ledger is known to have shares: a new ledger is not made for them.

    Returns:
        The data sets, and why others cannot be opened, by the same names.

    Raises:
        LedgerError: If none can be opened.
    """
    found: dict[str, Dataset] = {}
    aside: dict[str, str] = {}
    for place, policy in policies.items():
        names = [name.lower() for name in policy.private_names]
        try:
            dataset = Dataset.open(
                place, policy, images=policy.table in images, known=policy.private_names[0] in known
            )
        except Exception as error:
            if len(policies) == 1:
                raise
            reason = str(error) if isinstance(error, SfumatoError) else f"an unexpected {type(error).__name__}"
            aside |= dict.fromkeys(names, f"{policy.private_names[0]} is not served: {reason}")
        else:
            found |= dict.fromkeys(names, dataset)
    if not found:
        raise LedgerError("expected a ledger that can be opened; " + "; ".join(dict.fromkeys(aside.values())))
    return found, aside
