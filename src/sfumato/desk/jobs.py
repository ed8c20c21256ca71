"""Jobs: work that takes longer than a question, in a queue of the database, which survives stops of the server.

A job is charged once, however often it has to begin anew: results of an interrupted try were never shown, so
that the one try that ends is the one release. The ledger knows the amounts that a job reserved by its origin,
which no other job of any desk has; they are settled before the end of the job is told.

Jobs of images are planned from declared facts alone: the training images of a data set are private, its test
images are public, and a plan is made without the private ones.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from sfumato import _validate
from sfumato.accounting import DpEvent
from sfumato.desk import accounts, grants
from sfumato.desk import database as db
from sfumato.desk.accounts import Account
from sfumato.desk.asking import grant_for
from sfumato.desk.config import SOURCES
from sfumato.desk.database import Database
from sfumato.desk.desk import Dataset, Desk
from sfumato.errors import InvalidInput, Refused
from sfumato.ledger.state import State
from sfumato.policy import Policy
from sfumato.query.table import RELATION

if TYPE_CHECKING:
    from sfumato import datasets
    from sfumato.pate import PateSettings

OF_TABLES, OF_IMAGES = ("train", "synthesize", "report"), ("pate", "images", "report")
KINDS = tuple(dict.fromkeys((*OF_TABLES, *OF_IMAGES)))
MODELS = ("boosted", "linear", "mlp")
MOST_CRASHES = 3
MOST_WAITING = 20
"""Jobs of one team that may wait or run."""
MOST_ROWS = 1_000_000
_SIDE = 28

QUEUED, RUNNING, CANCELLING = "queued", "running", "cancelling"
DONE, FAILED, REFUSED, CANCELLED = "done", "failed", "refused", "cancelled"
GOING = (QUEUED, RUNNING, CANCELLING)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The chosen options of a job; `target` is the column to learn, or that a synthetic table keeps related."""

    kind: str
    epsilon: float = 0.0
    target: str | None = None
    model: str = "boosted"
    rows: int = 1000
    teachers: int = 100
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate.one_of("kind", self.kind, KINDS)
        _validate.one_of("model", self.model, MODELS)
        if self.kind != "report":
            _validate.positive("epsilon", self.epsilon)
        if self.kind == "train" and not self.target:
            raise InvalidInput("expected a column to learn, got none")
        if not 1 <= self.rows <= MOST_ROWS:
            raise InvalidInput(f"expected 1 to {MOST_ROWS} rows, got rows={self.rows}")

    def to_json(self) -> dict[str, Any]:
        chosen = {"target": self.target, "model": self.model, "rows": self.rows}
        return {**chosen, "teachers": self.teachers, "leave_out": list(self.leave_out)}


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a job, from its plan alone."""

    epsilon: float = 0.0
    delta: float = 0.0
    event: DpEvent | None = None
    share: str | None = None
    fits: bool = True
    epsilon_left: float | None = None


def plan_of(job: Job, policy: Policy) -> tuple[float, float, DpEvent]:
    """Return ε, δ and the event of a job that spends."""
    delta, chosen = policy.budget.delta, {"epsilon": job.epsilon, "leave_out": job.leave_out}
    if job.kind == "pate":
        plan = pate_settings(policy, teachers=job.teachers, epsilon=job.epsilon).plan
        return plan.epsilon(delta), delta, plan.event()
    if job.kind == "images":
        drawn = image_request(policy, images=job.rows, epsilon=job.epsilon)
        return drawn.plan.epsilon(drawn.delta), drawn.delta, drawn.plan.event()
    if job.kind == "train":
        from sfumato.learn.table import TableTraining

        assert job.target is not None
        ready = TableTraining.prepare(policy, target=job.target, model=job.model, **chosen)  # type: ignore[arg-type]
        return ready.epsilon, ready.delta, ready.event
    from sfumato.synthesis import Request

    request = Request.of(policy, rows=job.rows, target=job.target, **chosen)  # type: ignore[arg-type]
    return request.plan.epsilon(request.delta), request.delta, request.plan.event()


def pate_settings(policy: Policy, *, teachers: int, epsilon: float) -> PateSettings:
    """Return the settings of a vote, all of which are fixed before a private image is read."""
    from sfumato.datasets.drawings import prior_for
    from sfumato.pate import Adaptation, PateSettings, TeacherConfig, VotePlan, queries_for

    public, delta, most = _public(policy.source), policy.budget.delta, _size(policy) // 2
    if not 2 <= teachers <= most:
        raise InvalidInput(f"expected 2 to {most} teachers, got teachers={teachers}")
    plan = VotePlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        mechanism="gnmax",
        teachers=teachers,
        queries=queries_for(teachers, epsilon=epsilon, delta=delta, most=len(public)),
        classes=public.classes or 2,
    )
    adaptation = Adaptation(prior=prior_for(policy.source))
    return PateSettings(plan=plan, teacher=TeacherConfig.of("head"), adaptation=adaptation)


def image_request(policy: Policy, *, images: int, epsilon: float) -> Any:
    """Return the plan of drawn images, from the shape, the classes and the declared size."""
    import numpy as np

    from sfumato.datasets import Dataset
    from sfumato.plugins import part

    public = _public(policy.source)
    declared = Dataset(
        name=policy.source,
        visibility="private",
        inputs=np.zeros((0, *public.shape), dtype=np.float32),
        targets=np.zeros(0, dtype=np.int64),
        classes=public.classes or 2,
        public_size=_size(policy),
    )
    return part("images").ImageRequest.of(declared, images=images, epsilon=epsilon, delta=policy.budget.delta)


@lru_cache(maxsize=len(SOURCES))
def _public(source: str) -> datasets.Dataset:
    return _loaded(source, "test")


def _loaded(source: str, split: Any) -> datasets.Dataset:
    from sfumato import datasets

    name = _validate.one_of("source", source, SOURCES)
    return datasets.load(name, split, side=_SIDE if name == "digits" else None)


def _size(policy: Policy) -> int:
    assert policy.public_size is not None  # the settings need it
    return policy.public_size


# For the pages


def price(desk: Desk, account: Account, dataset: Dataset, job: Job, grant: int | None) -> Price:
    """Return the price of a job, and whether the allocation would pay. Nothing is spent or read.

    Raises:
        InvalidInput: If it cannot be done with this policy.
        NoAllocation: If nothing was set aside.
    """
    _validate.one_of("kind", job.kind, OF_IMAGES if dataset.images else OF_TABLES)
    if job.kind == "report":
        return Price()
    epsilon, delta, event = plan_of(job, dataset.policy)
    _, allocated = grant_for(desk, account, dataset, grant)
    share = allocated.paying(event, relation=RELATION, unit=dataset.policy.budget.unit)
    left = allocated.epsilon_left
    return Price(
        epsilon=epsilon, delta=delta, event=event, share=share, fits=share is not None, epsilon_left=left
    )


def start(desk: Desk, account: Account, dataset: Dataset, job: Job, grant: int | None) -> int:
    """Put a job into the queue, and return its number.

    Raises:
        BudgetExceeded: If the allocation would not pay now. Nothing is spent.
    """
    cost = price(desk, account, dataset, job, grant)
    if not cost.fits:
        raise grant_for(desk, account, dataset, grant)[1].exceeded()
    waiting = select(db.jobs.c.id).where(db.jobs.c.team == account.team, db.jobs.c.state.in_(GOING))
    values = {"account": account.id, "team": account.team, "dataset": dataset.name, "words": job.to_json()}
    values |= {"kind": job.kind, "epsilon": job.epsilon, "share": cost.share, "state": QUEUED}
    with desk.database.write() as connection:
        if len(connection.execute(waiting).all()) >= MOST_WAITING:
            raise InvalidInput(f"expected at most {MOST_WAITING} jobs of a team to wait; wait for one to end")
        origin = grants.new_origin(desk, "job:")
        return db.inserted(connection, db.jobs, **values, origin=origin, created=time.time())


def cancel(desk: Desk, account: Account, number: int) -> None:
    """Stop a job of the team; the ε that it was charged stays spent."""
    mine = db.jobs.update().where(db.jobs.c.id == number, db.jobs.c.team == account.team)
    with desk.database.write() as connection:
        waits, runs = mine.where(db.jobs.c.state == QUEUED), mine.where(db.jobs.c.state == RUNNING)
        connection.execute(waits.values(state=CANCELLED, ended=time.time()))
        connection.execute(runs.values(state=CANCELLING))


def of_team(desk: Desk, team: str) -> list[Any]:
    return _newest(desk, db.jobs.c.team == team, count=50)


def failed(desk: Desk) -> list[Any]:
    """Return the newest jobs that failed, with the sentence that says why, for officers."""
    return _newest(desk, db.jobs.c.state == FAILED, count=20)


def one_of_team(desk: Desk, team: str, number: int) -> Any:
    found = _newest(desk, (db.jobs.c.id == number) & (db.jobs.c.team == team), count=1)
    return found[0] if found else None


def _newest(desk: Desk, condition: Any, *, count: int) -> list[Any]:
    with desk.database.read() as connection:
        query = select(db.jobs).where(condition).order_by(db.jobs.c.id.desc()).limit(count)
        return list(connection.execute(query))


# For the processes that do the work


def take(database: Database) -> Any:
    """Start the oldest waiting job of the team whose last job began first; None if none waits."""
    others = db.jobs.alias()
    last = select(func.max(others.c.started)).where(others.c.team == db.jobs.c.team).scalar_subquery()
    turn = (func.coalesce(last, 0.0), db.jobs.c.id)
    with database.write() as connection:
        next_ = select(db.jobs).where(db.jobs.c.state == QUEUED).order_by(*turn).limit(1)
        row = connection.execute(next_).first()
        if row is None:
            return None
        values = {"state": RUNNING, "tries": row.tries + 1, "started": time.time(), "progress": 0.0}
        values |= {"folder": f"{row.id}-{row.tries + 1}-{secrets.token_hex(8)}"}  # of this try alone
        connection.execute(db.jobs.update().where(db.jobs.c.id == row.id).values(**values))
        return connection.execute(select(db.jobs).where(db.jobs.c.id == row.id)).first()


def put_back(database: Database) -> None:
    """Put the jobs that ran when their worker ended back into the queue, however often that happens."""
    with database.write() as connection:
        _end_where(connection, (db.jobs.c.state == CANCELLING), CANCELLED)
        connection.execute(db.jobs.update().where(db.jobs.c.state == RUNNING).values(state=QUEUED))


def put_back_one(database: Database, number: int, tries: int) -> None:
    """Put a job back whose try ended without reporting how, a few times.

    The reason may depend on the rows; so the number of times that it can be seen is limited.
    """
    this = _try(number, tries)
    running = this & (db.jobs.c.state == RUNNING)
    with database.write() as connection:
        _end_where(connection, this & (db.jobs.c.state == CANCELLING), CANCELLED)
        connection.execute(db.jobs.update().where(running).values(crashes=db.jobs.c.crashes + 1))
        _end_where(connection, running & (db.jobs.c.crashes >= MOST_CRASHES), FAILED)
        connection.execute(db.jobs.update().where(running).values(state=QUEUED))


def _try(number: int, tries: int) -> Any:
    return (db.jobs.c.id == number) & (db.jobs.c.tries == tries)


def _end_where(connection: Connection, condition: Any, state: str) -> None:
    connection.execute(db.jobs.update().where(condition).values(state=state, ended=time.time()))


def end(
    database: Database,
    number: int,
    tries: int,
    state: str,
    *,
    result: dict[str, Any] | None = None,
    sentence: str | None = None,
) -> bool:
    """Write down the end of a try; False, and nothing is written, if another try has begun since."""
    values = {"state": state, "result": result, "sentence": sentence, "progress": None, "ended": time.time()}
    this = db.jobs.update().where(_try(number, tries), db.jobs.c.state == RUNNING)
    with database.write() as connection:
        return bool(connection.execute(this.values(**values)).rowcount)


def check_payable(database: Database, state: State, job: Any) -> None:
    """Refuse the charge of a job whose account was closed, or whose period ended, while it waited."""
    with database.read() as connection:
        if accounts.by_id(connection, job.account) is None:
            raise Refused(
                "expected a job of an account that is open, got one that was closed; start the job from another"
            )
        if not grants.is_live(connection, state, job.dataset, job.share):
            raise Refused(
                "expected a share of a period that goes on, got one that is over; start the job again"
            )


def progress(database: Database, number: int, tries: int, share: float) -> None:
    with database.write() as connection:
        connection.execute(db.jobs.update().where(_try(number, tries)).values(progress=share))


def state_of(database: Database, number: int) -> str | None:
    with database.read() as connection:
        return connection.execute(select(db.jobs.c.state).where(db.jobs.c.id == number)).scalar()
