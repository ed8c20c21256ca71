"""Allocations: by team, purpose and period, each a share of the ledger, which alone keeps them apart.

Every period's share is set aside when the allocation is approved, all of them in one transaction of the ledger,
so that what was promised for next year cannot be spent today, and all promises together fit the one lifetime
budget. What a period leaves unused stays in its share and does not come back.

A share cannot grow, as its filter was set up for its size. More for an allocation is one more share beside it;
an answer is paid from one share, the oldest with room for it.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, select

from sfumato import _validate
from sfumato.accounting import DpEvent, Relation
from sfumato.desk import database as db
from sfumato.desk.accounts import checked_line, checked_name
from sfumato.desk.periods import windows
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import ChargeRequest, Ledger
from sfumato.ledger.state import State

if TYPE_CHECKING:
    from sfumato.desk.datasets import Dataset
    from sfumato.desk.desk import Desk

_JOB = re.compile(r"desk job (\d+): ")
_COLUMNS = ("id", "dataset", "team", "purpose", "epsilon", "period")
DECIDING = threading.Lock()
"""Held from a plan of shares until the ledger has set them aside."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An allocation as somebody asks for it.

    Args:
        team: Who may spend it.
        purpose: What for.
        epsilon: How much in each period.
        period: "once", "month", "quarter" or "year".
        periods: How many of them, from this one on.
    """

    team: str
    purpose: str
    epsilon: float
    period: str = "once"
    periods: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "team", checked_name(self.team, "team"))
        object.__setattr__(self, "purpose", checked_line("purpose", self.purpose))
        _validate.positive("epsilon", self.epsilon)
        windows(self.period, self.periods, now=0.0)

    @property
    def total(self) -> float:
        return self.epsilon * (1 if self.period == "once" else self.periods)

    def in_words(self) -> str:
        """
        >>> Wanted(team="a", purpose="b", epsilon=1, period="quarter", periods=4).in_words()
        'ε 4 in all, 1 a quarter, unused does not come back'
        """
        if self.period == "once":
            return f"ε {self.epsilon:g}"
        return f"ε {self.total:g} in all, {self.epsilon:g} a {self.period}, unused does not come back"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """An allocation, and the shares of it that can be spent now."""

    id: int
    dataset: str
    team: str
    purpose: str
    epsilon: float
    period: str
    shares: tuple[str, ...]


def plan(
    connection: Connection,
    desk: Desk,
    dataset: Dataset,
    wanted: Wanted,
    *,
    said: str,
    grant: int | None = None,
    request: int | None = None,
) -> int:
    """Write down which shares the ledger is to set aside; `settle` then has it done."""
    now = time.time()
    if grant is None:
        values = {"dataset": dataset.name, "team": wanted.team, "purpose": wanted.purpose, "created": now}
        grant = db.inserted(connection, db.grants, **values, epsilon=wanted.epsilon, period=wanted.period)
    taken = set(
        connection.execute(select(db.shares.c.name).where(db.shares.c.dataset == dataset.name)).scalars()
    )
    for window in windows(wanted.period, wanted.periods, now=now):
        name = _unused(f"{wanted.team}: {wanted.purpose}" + (window.label and f", {window.label}"), taken)
        taken.add(name)
        values = {"dataset": dataset.name, "name": name, "grant": grant, "request": request, "said": said}
        values |= {"origin": _ours(desk) + secrets.token_hex(16), "epsilon": wanted.epsilon, "made": False}
        connection.execute(db.shares.insert().values(**values, begins=window.begins, ends=window.ends))
    return grant


def _ours(desk: Desk) -> str:
    """What the origins of this desk's shares begin with."""
    return f"desk:{desk.database.id}:"


def settle(desk: Desk, dataset: Dataset, grant: int) -> None:
    """Have the ledger set aside what was planned of an allocation, also what a crash left between the two.

    One allocation at a time: what the ledger refuses of one says nothing about another.

    Raises:
        InvalidInput: If so much is not left.
        BudgetExceeded: If the ledger was closed.
    """
    planned = (db.shares.c.dataset == dataset.name) & (db.shares.c.grant == grant) & db.shares.c.made.is_(False)
    with desk.database.write() as connection:
        state = dataset.ledger.state
        rows = [
            row
            for row in connection.execute(select(db.shares).where(planned))
            if not name_of(state, row.name, row.origin, row.epsilon)
        ]
        if rows:
            dataset.ledger.allocate_all(
                {row.name: row.epsilon for row in rows},
                purpose=rows[0].said,
                origins={row.name: row.origin for row in rows},
            )
        connection.execute(db.shares.update().where(planned).values(made=True))


def name_of(state: State, name: str, origin: str | None, epsilon: float) -> str | None:
    """The name of a share of the desk in the ledger; None unless the ledger made that share, of that size.

    A share is known by its origin. Its name may belong to the share of another desk, or of the command line.
    """
    called = name if origin is None else state.origins().get(origin, "")
    found = state.shares.get(called)
    return called if found is not None and (found.origin, found.epsilon) == (origin, epsilon) else None


def undo(desk: Desk, dataset: Dataset, grant: int) -> None:
    """Forget what was planned of an allocation and the ledger refused; who asked for it waits again."""
    planned = (db.shares.c.dataset == dataset.name) & (db.shares.c.grant == grant) & db.shares.c.made.is_(False)
    with desk.database.write() as connection:
        asked = connection.execute(select(db.shares.c.request).where(planned)).scalars().all()
        connection.execute(db.shares.delete().where(planned))
        waits = {"state": "open", "decided": None, "decided_by": None}
        connection.execute(db.requests.update().where(db.requests.c.id.in_(asked)).values(**waits))
        if connection.execute(select(db.shares.c.name).where(db.shares.c.grant == grant)).first() is None:
            connection.execute(db.tokens.delete().where(db.tokens.c.grant == grant))
            for table in (db.requests, db.questions):
                connection.execute(table.update().where(table.c.grant == grant).values(grant=None))
            connection.execute(db.grants.delete().where(db.grants.c.id == grant))


def finish(desk: Desk, dataset: Dataset) -> list[str]:
    """Do or forget what a crash left between the desk and the ledger; say where the two do not agree."""
    said = []
    left = select(db.shares.c.grant).where(db.shares.c.dataset == dataset.name, db.shares.c.made.is_(False))
    with desk.database.read() as connection:
        found = sorted(set(connection.execute(left).scalars()))
    for grant in found:
        try:
            settle(desk, dataset, grant)
        except (InvalidInput, BudgetExceeded) as error:
            undo(desk, dataset, grant)
            said.append(
                f"allocation {grant} of {dataset.name} was approved and cannot be set aside: {error}; it was "
                "taken out, and its request waits again"
            )
    return [*said, *_disagreements(desk, dataset)]


def _disagreements(desk: Desk, dataset: Dataset) -> Iterator[str]:
    """What one of desk and ledger knows and the other does not, as after an older copy was put back."""
    charges, state, _ = dataset.charges()
    with desk.database.read() as connection:
        rows = connection.execute(select(db.shares).where(db.shares.c.dataset == dataset.name)).all()
        questions = Counter(connection.execute(select(db.questions.c.grant)).scalars())
        jobs = set(connection.execute(select(db.jobs.c.id)).scalars())
    names = {row.name: name_of(state, row.name, row.origin, row.epsilon) for row in rows}
    for row in rows:
        if names[row.name] is None:
            yield (
                f"the ledger of {dataset.name} has no share {row.name!r} that this desk made: it is another "
                "ledger, or an older copy; the share cannot be spent"
            )
    known = {row.origin for row in rows}
    for origin, name in state.origins().items():
        if origin.startswith(_ours(desk)) and origin not in known:
            yield (
                f"the ledger of {dataset.name} has the share {name!r} of this desk, whose database does not "
                "know it: the database is an older copy; the share is not used"
            )
    grants = {names[row.name]: row.grant for row in rows}
    spent: Counter[int] = Counter()
    for charge in charges:
        job = _JOB.match(charge.purpose)
        if charge.allocation in grants and not (job and int(job[1]) in jobs):
            spent[grants[charge.allocation]] += 1
    for grant, count in sorted(spent.items()):
        if count > questions[grant]:
            yield (
                f"the ledger of {dataset.name} has {count} charges to allocation {grant}, and the desk's "
                f"database {questions[grant]} questions: it is an older copy, or the share was spent elsewhere"
            )


def give(desk: Desk, dataset: Dataset, wanted: Wanted, *, said: str) -> int:
    """Set an allocation aside at once, as whoever holds the ledger's file may."""
    with DECIDING:
        with desk.database.write() as connection:
            grant = plan(connection, desk, dataset, wanted, said=said)
        settle_or_undo(desk, dataset, grant)
    return grant


def settle_or_undo(desk: Desk, dataset: Dataset, grant: int) -> None:
    """Have the ledger set aside what was planned, or leave no trace of the plan."""
    try:
        settle(desk, dataset, grant)
    except (InvalidInput, BudgetExceeded):
        undo(desk, dataset, grant)
        raise


def of_team(desk: Desk, team: str | None, dataset: str | None = None) -> list[Grant]:
    """The allocations of a team, or of all, with the shares that the ledger made and that can be spent now."""
    query = (
        select(db.grants, db.shares.c.name, db.shares.c.origin, db.shares.c.epsilon.label("size"))
        .outerjoin(db.shares, (db.shares.c.grant == db.grants.c.id) & _live())
        .order_by(db.grants.c.id, db.shares.c.begins, db.shares.c.name)
    )
    if team is not None:
        query = query.where(db.grants.c.team == team)
    served = [one.name for one in desk.each() if dataset in (None, one.name)]
    with desk.database.read() as connection:
        rows = connection.execute(query.where(db.grants.c.dataset.in_(served))).all()
    states = {name: desk.dataset(name).ledger.state for name in {row.dataset for row in rows}}
    found: dict[int, Grant] = {}
    for row in rows:
        one = found.get(row.id) or Grant(**{name: getattr(row, name) for name in _COLUMNS}, shares=())
        share = None
        if row.name is not None:
            share = name_of(states[row.dataset], row.name, row.origin, row.size)
        found[one.id] = replace(one, shares=(*one.shares, *([] if share is None else [share])))
    return list(found.values())


def _live() -> ColumnElement[bool]:
    now = time.time()
    begun = db.shares.c.made.is_(True) & (db.shares.c.begins <= now)
    return begun & (db.shares.c.ends.is_(None) | (db.shares.c.ends > now))


def is_live(connection: Connection, state: State, dataset: str, share: str) -> bool:
    """Whether a share of the ledger is one of the desk that can be spent now."""
    rows = connection.execute(select(db.shares).where(db.shares.c.dataset == dataset, _live()))
    return any(name_of(state, row.name, row.origin, row.epsilon) == share for row in rows)


def _unused(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found


class Allocated:
    """A ledger as somebody sees it who may spend some shares of it and no more.

    Args:
        ledger: The ledger, which other threads use too.
        shares: The names of the shares, the one to spend first at the beginning.
        who: Put before what each charge says of itself.
    """

    def __init__(self, ledger: Ledger, shares: Sequence[str], *, who: str) -> None:
        self._ledger = ledger
        self._shares = tuple(shares)
        self._who = who

    @property
    def epsilon_spent(self) -> float:
        """Of these shares, each by the ledger's rule."""
        state = self._ledger.state
        return sum(state.spent_by(name) for name in self._shares)

    @property
    def epsilon_left(self) -> float:
        """The largest further pure ε that one of the shares would pay."""
        if self._ledger.exceeded is not None:
            return 0.0
        state = self._ledger.state
        return max((state.left(name) for name in self._shares), default=0.0)

    def request(self, event: DpEvent, *, purpose: str, relation: Relation, unit: str) -> ChargeRequest:
        """A charge to the first of the shares that has room."""
        said = f"{self._who}: {purpose}"
        return ChargeRequest(event=event, purpose=said, relation=relation, unit=unit, allocations=self._shares)

    def check(self, event: DpEvent, *, relation: Relation, unit: str) -> None:
        """Raise what `charge` would raise now, and write nothing."""
        for share in self._shares:
            try:
                self._ledger.check(event, relation=relation, unit=unit, allocation=share)
                return
            except BudgetExceeded:
                continue
        raise self.exceeded()

    def exceeded(self) -> BudgetExceeded:
        """A refusal that tells of nobody else's spending."""
        spent, left = self.epsilon_spent, self.epsilon_left
        return BudgetExceeded(
            f"expected a question that fits what is left of the allocation, epsilon_left={left:.6g}, got one "
            "that does not; ask with a smaller epsilon, or request more",
            epsilon_spent=spent,
            epsilon_left=left,
        )
