"""Allocations: by team, purpose and period, each a share of the ledger, which alone keeps them apart.

Every period's share is set aside when the allocation is approved, all of them in one transaction of the ledger,
so that what was promised for next year cannot be spent today, and all promises together fit the one lifetime
budget. What a period leaves unused stays in its share and does not come back.

A share cannot grow, as its filter was set up for its size. More for an allocation is one more share beside it;
an answer is paid from one share, the oldest with room for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from sfumato import _validate
from sfumato.accounting import DpEvent, Relation
from sfumato.desk import database as db
from sfumato.desk.accounts import checked_line, checked_name
from sfumato.desk.database import Database
from sfumato.desk.periods import windows
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import ChargeRequest, Ledger

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


def plan(connection: Connection, dataset: str, wanted: Wanted, *, said: str, grant: int | None = None) -> int:
    """Write down which shares the ledger is to set aside; `settle` then has it done."""
    now = time.time()
    if grant is None:
        values = {"dataset": dataset, "team": wanted.team, "purpose": wanted.purpose, "created": now}
        grant = db.inserted(connection, db.grants, **values, epsilon=wanted.epsilon, period=wanted.period)
    taken = set(connection.execute(select(db.shares.c.name).where(db.shares.c.dataset == dataset)).scalars())
    for window in windows(wanted.period, wanted.periods, now=now):
        name = _unused(f"{wanted.team}: {wanted.purpose}" + (window.label and f", {window.label}"), taken)
        taken.add(name)
        values = {"dataset": dataset, "name": name, "grant": grant, "epsilon": wanted.epsilon, "said": said}
        connection.execute(
            db.shares.insert().values(**values, begins=window.begins, ends=window.ends, made=False)
        )
    return grant


def settle(database: Database, ledger: Ledger, dataset: str, grant: int) -> None:
    """Have the ledger set aside what was planned of an allocation, also what a crash left between the two.

    One allocation at a time: what the ledger refuses of one says nothing about another.

    Raises:
        InvalidInput: If so much is not left.
        BudgetExceeded: If the ledger was closed.
    """
    planned = (db.shares.c.dataset == dataset) & (db.shares.c.grant == grant) & db.shares.c.made.is_(False)
    with database.write() as connection:
        rows = connection.execute(select(db.shares).where(planned)).all()
        known = ledger.state.shares
        missing = {row.name: row.epsilon for row in rows if row.name not in known}
        if missing:
            ledger.allocate_all(missing, purpose=rows[0].said)
        connection.execute(db.shares.update().where(planned).values(made=True))


def undo(database: Database, dataset: str, grant: int) -> None:
    """Forget what was planned of an allocation and the ledger refused; who asked for it waits again."""
    with database.write() as connection:
        connection.execute(
            db.shares.delete().where(
                db.shares.c.dataset == dataset, db.shares.c.grant == grant, db.shares.c.made.is_(False)
            )
        )
        if connection.execute(select(db.shares.c.name).where(db.shares.c.grant == grant)).first() is None:
            waits = {"grant": None, "state": "open", "first": None, "decided": None, "decided_by": None}
            connection.execute(db.requests.update().where(db.requests.c.grant == grant).values(**waits))
            connection.execute(db.grants.delete().where(db.grants.c.id == grant))


def finish(database: Database, ledger: Ledger, dataset: str) -> None:
    """Do or forget all that a crash left between the desk and the ledger."""
    with database.read() as connection:
        left = select(db.shares.c.grant).where(db.shares.c.dataset == dataset, db.shares.c.made.is_(False))
        found = sorted(set(connection.execute(left).scalars()))
    for grant in found:
        try:
            settle(database, ledger, dataset, grant)
        except (InvalidInput, BudgetExceeded):
            undo(database, dataset, grant)


def give(database: Database, ledger: Ledger, dataset: str, wanted: Wanted, *, said: str) -> int:
    """Set an allocation aside at once, as whoever holds the ledger's file may."""
    with DECIDING:
        with database.write() as connection:
            grant = plan(connection, dataset, wanted, said=said)
        try:
            settle(database, ledger, dataset, grant)
        except (InvalidInput, BudgetExceeded):
            undo(database, dataset, grant)
            raise
    return grant


def of_team(connection: Connection, team: str | None, dataset: str | None = None) -> list[Grant]:
    """The allocations of a team, or of all, with the shares that can be spent now."""
    now = time.time()
    live = (
        (db.shares.c.grant == db.grants.c.id)
        & db.shares.c.made.is_(True)
        & (db.shares.c.begins <= now)
        & (db.shares.c.ends.is_(None) | (db.shares.c.ends > now))
    )
    query = (
        select(db.grants, db.shares.c.name.label("share"))
        .outerjoin(db.shares, live)
        .order_by(db.grants.c.id, db.shares.c.begins, db.shares.c.name)
    )
    if team is not None:
        query = query.where(db.grants.c.team == team)
    if dataset is not None:
        query = query.where(db.grants.c.dataset == dataset)
    found: dict[int, Grant] = {}
    for row in connection.execute(query):
        one = found.get(row.id) or Grant(**{name: getattr(row, name) for name in _COLUMNS}, shares=())
        more = () if row.share is None else (row.share,)
        found[one.id] = replace(one, shares=(*one.shares, *more))
    return list(found.values())


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
                return self._ledger.check(event, relation=relation, unit=unit, allocation=share)
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
