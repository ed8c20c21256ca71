"""The state of a running desk: settings, database, data sets with their ledgers, limits; its public facts."""

from __future__ import annotations

import functools
import math
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import select

from sfumato.accounting import Budget
from sfumato.desk import database as db
from sfumato.desk import decisions, grants, trail
from sfumato.desk.accounts import Visits
from sfumato.desk.config import Settings, load_settings
from sfumato.desk.database import Database, Together, Waiting
from sfumato.desk.limits import Buckets, Effort, Pace, Tries, Turns
from sfumato.display import visible
from sfumato.errors import InvalidInput, LedgerError, Refused, SfumatoError
from sfumato.ledger import Charge, Head, Ledger
from sfumato.ledger.charge import add_charges
from sfumato.ledger.state import State
from sfumato.ledger.statement import epsilon_alone
from sfumato.policy import Column, Policy
from sfumato.query import Table
from sfumato.query.answer import ledger_place, make_ledger

MOST_WAITING = 1000
"""Questions of one data set that may wait; later ones are refused before anything is spent."""


# Data sets


class Busy(Refused):
    """Too many questions wait already."""


@dataclass
class Dataset:
    """One policy with its ledger. One thread charges its questions, and another answers them, each in turn.

    The thread that charges has a planner and a connection of its own and never waits for rows: no charge tells
    how long the question before it took.

    Of `images` jobs are made, and no question reads them.
    """

    name: str
    policy: Policy
    place: Path
    ledger: Ledger
    images: bool = False
    ready: Future[None] = field(init=False, default_factory=Future)
    planner: Table = field(init=False)
    table: Table = field(init=False)
    charging: Together[Any] = field(init=False)
    asking: Together[Any] = field(init=False)
    beside: ThreadPoolExecutor = field(init=False)  # for noise that takes long, once rows are read
    _reading: Lock = field(init=False, default_factory=Lock)
    _known: dict[int, Charge] = field(init=False, default_factory=dict)
    _head: Head | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.planner, self.table = (Table(self.policy, self.ledger) for _ in range(2))
        self.beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"beside {self.name}")
        self.served_by(_unserved, _unserved)

    @classmethod
    def open(cls, place: Path, policy: Policy, *, images: bool = False, known: bool = False) -> Dataset:
        """Open it with its ledger, which is made if there is none, unless it is `known` that there was one."""
        if known:
            Ledger.open(ledger_place(policy, place), dataset=policy.dataset).close()
        return cls(policy.private_names[0], policy, place, make_ledger(policy, place), images)

    def charges(self) -> tuple[list[Charge], State, Head]:
        """Return all charges, their state and the head; only new entries of the ledger are read."""
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
        """Set the work of the thread that charges, and of the one that reads rows."""
        self.charging = Together(partial(charge, self), name=f"charge {self.name}")
        self.asking = Together(partial(answer, self), name=f"ask {self.name}")

    def submit(self, wanted: Any) -> Future[Any]:
        """Have a question charged, and then answered."""
        if len(self.charging) + len(self.asking) >= MOST_WAITING:
            raise Busy("expected fewer questions to be waiting; ask again in a minute")
        return self.charging.submit(wanted)

    def warm(self) -> Future[None]:
        """Open the file and plan a first question, so that no later one has to wait for it."""
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


def _unserved(dataset: Dataset, waiting: Sequence[Waiting[Any]]) -> None:
    raise Refused("expected a desk that is served, got one that is not: no question is answered here")


@functools.cache
def rehearse() -> None:
    """Ask a made-up table once, so that no real question has to wait for imports."""
    import pandas as pd

    column = Column(name="x", type="integer", lower=0, upper=1)
    policy = Policy(table="t", source="", columns={"x": column}, budget=Budget(epsilon=1))
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(f"{folder}/t.db", budget=policy.budget) as ledger,
    ):
        rows = pd.DataFrame({"x": [0, 1]})
        Table(policy, ledger, data=rows).ask("SELECT COUNT(*), AVG(x) FROM t", epsilon=1.0)


def open_datasets(
    policies: Mapping[Path, Policy], images: Collection[str], *, known: Collection[str]
) -> tuple[dict[str, Dataset], dict[str, str]]:
    """Open the data set of every policy.

    A new ledger is not made for data sets of which a ledger is `known` to have shares. `images` names the
    policies that are images.

    Returns:
        The data sets, by each of their tables in small letters, and the reasons why others are not served.

    Raises:
        LedgerError: If none can be opened.
    """
    found: dict[str, Dataset] = {}
    aside: dict[str, str] = {}
    for place, policy in policies.items():
        first, names = policy.private_names[0], [name.lower() for name in policy.private_names]
        try:
            dataset = Dataset.open(place, policy, images=policy.table in images, known=first in known)
        except Exception as error:
            if len(policies) == 1:
                raise
            reason = str(error) if isinstance(error, SfumatoError) else f"an unexpected {type(error).__name__}"
            aside |= dict.fromkeys(names, f"{first} is not served: {reason}")
        else:
            found |= dict.fromkeys(names, dataset)
    if not found:
        raise LedgerError("expected a ledger that can be opened; " + "; ".join(dict.fromkeys(aside.values())))
    return found, aside


# The desk


@dataclass
class Desk:
    """Settings, the desk's database, the data sets with their ledgers, and the limits."""

    settings: Settings
    database: Database
    datasets: dict[str, Dataset]
    aside: dict[str, str]  # reasons why other data sets are not served, by table
    pace: Pace
    tries: Tries
    # requests of one account; then, by network: attempts to sign in, wrong tokens and sessions, requests
    # without a token or session, requests with one
    buckets: Buckets = field(default_factory=partial(Buckets, size=120, rate=4.0))
    strangers: Buckets = field(default_factory=partial(Buckets, size=60, rate=1.0))
    guesses: Buckets = field(default_factory=partial(Buckets, size=60, rate=1.0))
    visitors: Buckets = field(default_factory=partial(Buckets, size=300, rate=10.0))
    arrivals: Buckets = field(default_factory=partial(Buckets, size=3000, rate=100.0))
    effort: Effort = field(default_factory=partial(Effort, size=60.0, rate=0.1))
    planning: Turns = field(default_factory=partial(Turns, at_once=2, of_one=MOST_WAITING))
    showing: Turns = field(default_factory=partial(Turns, at_once=2, of_one=6))
    hashing: Turns = field(default_factory=partial(Turns, at_once=2, of_one=6))  # 64 MiB and some .05 s each
    provider: Turns = field(default_factory=partial(Turns, at_once=4, of_one=4))  # it may be slow
    visits: Visits = field(default_factory=Visits)
    counted: trail.Counts = field(init=False)

    def __post_init__(self) -> None:
        self.counted = trail.Counts(self.database)

    @classmethod
    def open(cls, place: str | Path) -> Desk:
        settings = load_settings(place)
        database = Database(settings.database)
        with database.read() as connection:
            known = set(connection.execute(select(db.shares.c.dataset).where(db.shares.c.made)).scalars())
        datasets, aside = open_datasets(settings.policies, settings.images, known=known)
        return cls(settings, database, datasets, aside, Pace(database, settings.tick), Tries(database))

    def finish(self) -> None:
        """Complete or undo everything that a crash left; for the server alone, when it starts.

        Each finding is told on standard error and in the trail. None of them keeps the desk from starting.

        Raises:
            Refused: If another server has the desk.
        """
        self.database.lease()
        aside = dict.fromkeys(self.aside.values())
        said = [*aside, *self.database.orphans(), *decisions.finish(self.database)]
        for dataset in self.each():
            try:
                said += grants.finish(self, dataset)
            except Exception as error:
                said.append(f"the allocations of {dataset.name} could not be compared with the ledger: {error}")
        for one in said:
            print(f"sfumato: {visible(one)}", file=sys.stderr)
            trail.noted(self.database, "the desk", "start", one, "found").result()

    def four_eyes(self, dataset: str | None) -> bool:
        """Return whether two officers must agree to an act on a data set; None for any of them.

        Two policies may have one ledger: a demand of the one holds for the other. The ledger of a policy that
        is not served may be any.
        """
        chosen = None if dataset is None else self.dataset(dataset).ledger.id
        asking = (one.private_names[0].lower() for one in self.settings.policies.values() if one.four_eyes)
        return any(
            chosen is None or name in self.aside or self.datasets[name].ledger.id == chosen for name in asking
        )

    def each(self) -> list[Dataset]:
        """Return every data set once, in the order of their names."""
        return [self.datasets[name] for name in sorted({one.name.lower() for one in self.datasets.values()})]

    def tables(self) -> list[Dataset]:
        """Return the data sets that questions can read."""
        return [one for one in self.each() if not one.images]

    def dataset(self, name: str | None) -> Dataset:
        """Return the data set that has a table of this name; without a name, the only one."""
        if name is None and len(self.settings.policies) == 1:
            return self.each()[0]
        key = (name or "").lower()
        if key in self.aside:
            raise InvalidInput(self.aside[key])
        if key not in self.datasets:
            known = ", ".join(one.name for one in self.each())
            raise InvalidInput(f"expected a table of the desk, one of: {known}; got {name!r}")
        return self.datasets[key]

    def close(self) -> None:
        for dataset in self.each():
            dataset.close()
        self.counted.write()
        self.database.close()


# Facts of policies and ledgers, as plain values for pages and programs


def policy_in_words(policy: Policy) -> dict[str, Any]:
    """Return the declarations of a policy, without source, path or ledger."""
    return {
        "tables": {
            name: {
                "columns": {column.name: _column(column) for column in one.columns.values()},
                "public_size": one.public_size,
                "unit": one.budget.unit,
                "rows_of_a_unit": one.unit.rows,
                "groups_of_a_unit": one.unit.groups,
            }
            for name, one in (policy.tables or {policy.table: policy}).items()
        },
        "public_tables": {
            name: {column.name: _column(column) for column in one.columns.values()}
            for name, one in policy.public.items()
        },
        "epsilon": policy.budget.epsilon,
        "delta": policy.budget.delta,
    }


def _column(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"type": column.type}
    if column.lower is not None and column.upper is not None:
        for name, value in (("lower", column.lower), ("upper", column.upper)):
            found[name] = value.isoformat() if hasattr(value, "isoformat") else value
    if column.categories is not None:
        found["categories"] = list(column.categories)
    return found


def public_facts(desk: Desk) -> dict[str, Any]:
    """Return the public facts of the desk: promises, number of releases, and heads of the ledgers."""
    return {"name": desk.settings.name, "datasets": [_public(dataset) for dataset in desk.each()]}


def _public(dataset: Dataset) -> dict[str, Any]:
    ledger = dataset.ledger
    charges, state, head = dataset.charges()
    broken = ledger.exceeded
    spent = state.spent if broken is None else broken.owed
    return {
        "name": dataset.name,
        "promise": promise(ledger),
        "epsilon": ledger.budget.epsilon,
        "delta": ledger.budget.delta,
        "unit": ledger.budget.unit,
        "relation": str(ledger.budget.relation),
        "epsilon_spent": spent if math.isfinite(spent) else None,
        "broken": broken is not None,
        "releases": len(charges),
        "private": all(charge.private for charge in charges),
        "head": head.to_json(),
    }


def promise(ledger: Ledger) -> str:
    """Return the guarantee in words."""
    budget, broken = ledger.budget, ledger.exceeded
    if broken is not None:
        owed = f"ε = {broken.owed:.4g}" if math.isfinite(broken.owed) else "no finite ε"
        return (
            f"We promised ε ≤ {budget.epsilon:g} for any one {budget.unit}. That promise was broken by a "
            f"release outside this desk: {owed} is what holds. Nothing more is published from these data."
        )
    return (
        f"Whatever is published from these data, all of it together, shows almost the same with or without any "
        f"one {budget.unit}: ε ≤ {budget.epsilon:g}" + (f" at δ = {budget.delta:g}." if budget.delta else ".")
    )


def charge_in_words(ledger: Ledger, charge: Charge) -> dict[str, Any]:
    """Return one charge, as officers see it."""
    return {
        "entry": charge.head.sequence,
        "time": charge.time,
        "purpose": charge.purpose,
        "allocation": charge.allocation,
        "epsilon": epsilon_alone(charge, ledger.state.of_whole),
        "settled": charge.settled,
        "stopped_early": charge.stopped_early,
        "private": charge.private,
    }
