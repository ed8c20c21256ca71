"""Allocations: by team, purpose and period, each a share of the ledger, which alone keeps them apart.

Every period's share is set aside when the allocation is approved, all of them in one transaction of the ledger,
so that next year's share cannot be spent today, and all promises together fit the one lifetime budget. The
unused rest of a period stays in its share and does not come back.

A share cannot grow, as its filter was set up for its size. More for an allocation is one more share beside it;
an answer is paid from one share, the oldest with room for it.
"""

from __future__ import annotations

import itertools
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import ColumnElement, Connection, select, true

from sfumato import _validate
from sfumato.accounting import DpEvent, Relation
from sfumato.desk import database as db
from sfumato.desk.accounts import checked_line, checked_name
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import ChargeRequest, Ledger
from sfumato.ledger.state import State

if TYPE_CHECKING:
    from sfumato.desk.desk import Dataset, Desk

PERIODS = {"once": 0, "month": 1, "quarter": 3, "year": 12}
"""Months of each; "once" has no end."""
MOST_PERIODS = 120
SMALLEST = 1e-6
"""ε of the smallest share: an answer for less would be noise alone."""
DECIDING = threading.Lock()
"""Held from a plan of shares until the ledger has set them aside."""
_JOB = re.compile(r"desk job (\d+) \((desk:[^)]*)\): ")
_COLUMNS = ("id", "dataset", "team", "purpose", "epsilon", "period")


class Window(NamedTuple):
    """The time in which a share may be spent."""

    label: str
    begins: float
    ends: float | None


def windows(period: str, count: int, *, now: float) -> list[Window]:
    """Return the calendar period (UTC) that `now` is in, and those after it.

    >>> [one.label for one in windows("quarter", 3, now=1_800_000_000)]
    ['2027-Q1', '2027-Q2', '2027-Q3']
    """
    months = PERIODS[_validate.one_of("period", period, PERIODS)]
    if not months:
        return [Window("", 0.0, None)]
    count = _validate.integer("periods", count, least=1)
    _validate.one_of("periods", count, range(1, MOST_PERIODS + 1), remedy="choose fewer")
    today = datetime.fromtimestamp(now, UTC)
    first = (today.year * 12 + today.month - 1) // months * months
    starts = [divmod(first + months * place, 12) for place in range(count + 1)]
    times = [datetime(year, month + 1, 1, tzinfo=UTC).timestamp() for year, month in starts]
    labels = {"year": "{0}", "quarter": "{0}-Q{1}", "month": "{0}-{2:02}"}[period]
    return [
        Window(labels.format(year, month // 3 + 1, month + 1), begins, ends)
        for (year, month), (begins, ends) in zip(starts, itertools.pairwise(times), strict=False)
    ]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An allocation as it is asked for: so much in each of some periods, from the present one on."""

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

    def in_words(self) -> str:
        """
        >>> Wanted(team="a", purpose="b", epsilon=1, period="quarter", periods=4).in_words()
        'ε 4 in all, 1 a quarter, unused does not come back'
        """
        if self.period == "once":
            return f"ε {self.epsilon:g}"
        total = self.epsilon * self.periods
        return f"ε {total:g} in all, {self.epsilon:g} a {self.period}, unused does not come back"


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


def check_size(wanted: Wanted) -> None:
    """Refuse an allocation that is too small for a ledger to count in."""
    if wanted.epsilon < SMALLEST:
        raise InvalidInput(f"expected epsilon >= {SMALLEST:g}, got epsilon={wanted.epsilon:g}; ask for more")


# From a plan of shares to shares of the ledger


def give(desk: Desk, dataset: Dataset, wanted: Wanted, *, said: str) -> int:
    """Set an allocation aside at once, and return its number."""
    with DECIDING:
        with desk.database.write() as connection:
            grant = plan(connection, desk, dataset, wanted, said=said)
        settle(desk, dataset, grant)
    return grant


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
    """Write down the shares that the ledger is to set aside; `settle` has it done."""
    check_size(wanted)
    now = time.time()
    if grant is None:
        values = {"dataset": dataset.name, "team": wanted.team, "purpose": wanted.purpose, "created": now}
        grant = db.inserted(connection, db.grants, **values, epsilon=wanted.epsilon, period=wanted.period)
    mine = select(db.shares.c.name).where(db.shares.c.dataset == dataset.name)
    taken = set(connection.execute(mine).scalars())
    for window in windows(wanted.period, wanted.periods, now=now):
        wish = f"{wanted.team}: {wanted.purpose}" + (window.label and f", {window.label}")
        numbered = itertools.chain([wish], (f"{wish} ({number})" for number in itertools.count(2)))
        name = next(one for one in numbered if one not in taken)
        taken.add(name)
        values = {"dataset": dataset.name, "name": name, "grant": grant, "request": request, "said": said}
        values |= {"origin": new_origin(desk), "epsilon": wanted.epsilon}
        connection.execute(db.shares.insert().values(**values, begins=window.begins, ends=window.ends))
    return grant


def new_origin(desk: Desk, kind: str = "") -> str:
    """Return an id by which a ledger knows a share or a job of this desk, and of no other."""
    return f"desk:{desk.database.id}:{kind}{secrets.token_hex(16)}"


def settle(desk: Desk, dataset: Dataset, grant: int) -> None:
    """Have the ledger set aside the planned shares of an allocation, or leave no trace of the plan.

    Raises:
        InvalidInput: If so much is not left.
        BudgetExceeded: If the ledger was closed.
    """
    with desk.database.read() as connection:
        rows = connection.execute(select(db.shares).where(_planned(dataset, grant))).all()
    sizes, origins = {row.name: row.epsilon for row in rows}, {row.name: row.origin for row in rows}
    try:
        dataset.ledger.allocate_all(sizes, purpose=rows[0].said, origins=origins)
    except Exception:
        if not resolve(desk, dataset, grant):
            raise
    else:
        resolve(desk, dataset, grant)


def resolve(desk: Desk, dataset: Dataset, grant: int) -> bool:
    """Complete or undo a plan, as the ledger made its shares or not; return whether it did.

    A request is approved in the transaction in which its shares become spendable, and waits otherwise.
    """
    state, mine = dataset.ledger.state, _planned(dataset, grant)
    with desk.database.write() as connection:
        rows = connection.execute(select(db.shares).where(mine)).all()
        made = all(name_of(state, row.origin, row.epsilon) for row in rows)
        asked = [row.request for row in rows if row.request is not None]
        if made:
            connection.execute(db.shares.update().where(mine).values(made=True))
            decide(connection, asked, "approved", decided=time.time())
        else:
            decide(connection, asked, "open", decided_by=None, decided=None)
            _forget(connection, dataset, grant)
    return made


def _forget(connection: Connection, dataset: Dataset, grant: int) -> None:
    """Delete the plan of an allocation, and the allocation if no share of it is left."""
    connection.execute(db.shares.delete().where(_planned(dataset, grant)))
    if connection.execute(select(db.shares.c.name).where(db.shares.c.grant == grant)).first() is None:
        connection.execute(db.tokens.delete().where(db.tokens.c.grant == grant))
        for table in (db.requests, db.questions):
            connection.execute(table.update().where(table.c.grant == grant).values(grant=None))
        connection.execute(db.grants.delete().where(db.grants.c.id == grant))


def planned(desk: Desk, dataset: Dataset, *, of_requests: bool = False) -> list[int]:
    """Return the allocations with shares that are planned and that the ledger may have made or not.

    Those of requests are planned by the server alone; another process may be at work on others.
    """
    found = _planned(dataset) & (db.shares.c.request.is_not(None) if of_requests else true())
    whole = select(db.shares.c.grant).join(db.grants)  # not of a row that is gone
    with desk.database.read() as connection:
        return list(connection.execute(whole.where(found).distinct().order_by(db.shares.c.grant)).scalars())


def _planned(dataset: Dataset, grant: int | None = None) -> ColumnElement[bool]:
    found = (db.shares.c.dataset == dataset.name) & db.shares.c.made.is_(False)
    return found if grant is None else found & (db.shares.c.grant == grant)


def decide(connection: Connection, requests: Sequence[int], state: str, **values: object) -> None:
    """Write down a decision on requests; it ends the proposals to approve them."""
    mine = db.requests.c.id.in_(requests)
    connection.execute(db.requests.update().where(mine).values(state=state, **values))
    if state != "open":
        about = db.proposals.c.words["request"].as_integer().in_(requests)
        waits = (db.proposals.c.act == "approve") & (db.proposals.c.state == "open") & about
        ended = {"state": "withdrawn", "decided": time.time()}
        connection.execute(db.proposals.update().where(waits).values(**ended))


def name_of(state: State, origin: str, epsilon: float) -> str | None:
    """Return the ledger's name of a share of the desk; None unless the ledger made it, of that size.

    A share is known by its origin: its name may belong to a share of another desk, or of the command line.
    """
    name = state.origins().get(origin, "")
    found = state.shares.get(name)
    return name if found is not None and (found.origin, found.epsilon) == (origin, epsilon) else None


def finish(desk: Desk, dataset: Dataset) -> list[str]:
    """Complete or undo the plans that a crash left; describe where desk and ledger do not agree.

    One allocation at a time: a refusal of one does not concern another.
    """
    said = []
    for grant in planned(desk, dataset):
        try:
            settle(desk, dataset, grant)
        except Exception as error:
            said.append(
                f"allocation {grant} of {dataset.name} was approved and cannot be set aside: {error}; its "
                "request waits again"
            )
    return [*said, *_disagreements(desk, dataset)]


def _disagreements(desk: Desk, dataset: Dataset) -> Iterator[str]:
    """Describe shares and charges that only one of desk and ledger knows, as after a copy was restored."""
    charges, state, _ = dataset.charges()
    with desk.database.read() as connection:
        rows = connection.execute(select(db.shares).where(db.shares.c.dataset == dataset.name)).all()
        questions = Counter(connection.execute(select(db.questions.c.grant)).scalars())
        jobs = {(row.id, row.origin) for row in connection.execute(select(db.jobs.c.id, db.jobs.c.origin))}
    names = {row.name: name_of(state, row.origin, row.epsilon) for row in rows}
    for name in (name for name, known in names.items() if known is None):
        yield (
            f"the ledger of {dataset.name} has no share {name!r} that this desk made: it is another "
            "ledger, or an older copy; the share cannot be spent"
        )
    known = {row.origin for row in rows}
    for origin, name in state.origins().items():
        if origin.startswith(f"desk:{desk.database.id}:") and origin not in known:
            yield (
                f"the ledger of {dataset.name} has the share {name!r} of this desk, whose database does not "
                "know it: the database is an older copy; the share is not used"
            )
    grants = {names[row.name]: row.grant for row in rows}
    spent: Counter[int] = Counter()
    for charge in charges:
        job = _JOB.match(charge.purpose)
        if charge.allocation in grants and not (job and (int(job[1]), job[2]) in jobs):
            spent[grants[charge.allocation]] += 1
    for grant, count in sorted(spent.items()):
        if count > questions[grant]:
            yield (
                f"the ledger of {dataset.name} has {count} charges to allocation {grant}, and the desk's "
                f"database {questions[grant]} questions: it is an older copy, or the share was spent elsewhere"
            )


# Spending


def of_team(desk: Desk, team: str | None, dataset: str | None = None) -> list[Grant]:
    """Return the allocations of a team, or of all, with the shares of the ledger that can be spent now."""
    query = (
        select(db.grants, db.shares.c.origin, db.shares.c.epsilon.label("size"))
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
        share = None if row.origin is None else name_of(states[row.dataset], row.origin, row.size)
        found[one.id] = one if share is None else replace(one, shares=(*one.shares, share))
    return list(found.values())


def _live() -> ColumnElement[bool]:
    now = time.time()
    begun = db.shares.c.made.is_(True) & (db.shares.c.begins <= now)
    return begun & (db.shares.c.ends.is_(None) | (db.shares.c.ends > now))


def is_live(connection: Connection, state: State, dataset: str, share: str) -> bool:
    """Return whether a share of the ledger is one of the desk that can be spent now."""
    rows = connection.execute(select(db.shares).where(db.shares.c.dataset == dataset, _live()))
    return any(name_of(state, row.origin, row.epsilon) == share for row in rows)


class Allocated:
    """A ledger as an account sees it that may spend some shares of it and no more.

    Args:
        ledger: The ledger, which other threads use too.
        shares: The names of the shares, the one to spend first at the beginning.
        who: Put before the purpose of each charge.
    """

    def __init__(self, ledger: Ledger, shares: Sequence[str], *, who: str) -> None:
        self._ledger, self._shares, self._who = ledger, tuple(shares), who

    @property
    def epsilon_spent(self) -> float:
        """The ε spent of these shares, each by the ledger's rule."""
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
        """Return a charge to the first of the shares that has room."""
        said = f"{self._who}: {purpose}"
        return ChargeRequest(event=event, purpose=said, relation=relation, unit=unit, allocations=self._shares)

    def paying(self, event: DpEvent, *, relation: Relation, unit: str) -> str | None:
        """Return the first share that would pay now; nothing is written."""
        for share in self._shares:
            try:
                self._ledger.check(event, relation=relation, unit=unit, allocation=share)
                return share
            except BudgetExceeded:
                continue
        return None

    def exceeded(self) -> BudgetExceeded:
        """Return a refusal that does not tell of the spending of others."""
        spent, left = self.epsilon_spent, self.epsilon_left
        return BudgetExceeded(
            f"expected a question that fits the rest of the allocation, epsilon_left={left:.6g}, got one "
            "that does not; ask with a smaller epsilon, or request more",
            epsilon_spent=spent,
            epsilon_left=left,
        )
