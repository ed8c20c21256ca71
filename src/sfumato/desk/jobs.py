"""Jobs: what takes longer than a question. A queue in the database, which survives whatever stops the server.

A job is charged once, however often it has to begin anew: what an interrupted try computed was never shown to
anybody, so that the one try that ends is the one release. What it reserved is found again by the job's origin,
which no other job of any desk has, and settled before it is told how the job ended.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from sfumato import _validate
from sfumato.accounting import DpEvent
from sfumato.desk import accounts, grants, image_jobs
from sfumato.desk import database as db
from sfumato.desk.accounts import Account
from sfumato.desk.asking import allocated_to, grant_for
from sfumato.desk.database import Database
from sfumato.desk.datasets import Dataset
from sfumato.desk.desk import Desk
from sfumato.errors import BudgetExceeded, InvalidInput, Refused
from sfumato.ledger.state import State
from sfumato.policy import Policy
from sfumato.query.table import RELATION

OF_TABLES, OF_IMAGES = ("train", "synthesize", "report"), ("pate", "images", "report")
KINDS = tuple(dict.fromkeys((*OF_TABLES, *OF_IMAGES)))
MODELS = ("boosted", "linear", "mlp")
MOST_CRASHES = 3
MOST_WAITING = 20
"""Jobs of one team that may wait or run."""
MOST_ROWS = 1_000_000

QUEUED, RUNNING, CANCELLING = "queued", "running", "cancelling"
DONE, FAILED, REFUSED, CANCELLED = "done", "failed", "refused", "cancelled"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be done, as somebody chose it.

    Args:
        kind: "train", "synthesize" or "report" of a table, "pate", "images" or "report" of images.
        epsilon: What it may cost; 0 for a report.
        target: The column to learn, or that a synthetic table keeps related.
        model: What learns it.
        rows: How many rows or images to draw.
        teachers: How many teachers vote on a label.
        leave_out: Columns that are not used, on purpose.
    """

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
    """What a job will cost, from its plan alone."""

    epsilon: float
    delta: float
    event: DpEvent | None
    share: str | None
    fits: bool
    epsilon_left: float | None


def check_kind(job: Job, dataset: Dataset) -> None:
    """Refuse what cannot be done with such data."""
    _validate.one_of("kind", job.kind, OF_IMAGES if dataset.images else OF_TABLES)


def plan_of(job: Job, policy: Policy) -> tuple[float, float, DpEvent] | None:
    """ε, δ and the event of a job; None for one that spends nothing."""
    if job.kind == "pate":
        plan = image_jobs.pate_settings(policy, teachers=job.teachers, epsilon=job.epsilon).plan
        return plan.epsilon(policy.budget.delta), policy.budget.delta, plan.event()
    if job.kind == "images":
        drawn = image_jobs.image_request(policy, images=job.rows, epsilon=job.epsilon)
        return drawn.plan.epsilon(drawn.delta), drawn.delta, drawn.plan.event()
    if job.kind == "train":
        from sfumato.learn.table import TableTraining

        assert job.target is not None
        ready = TableTraining.prepare(
            policy, target=job.target, epsilon=job.epsilon, model=job.model, leave_out=job.leave_out
        )
        return ready.epsilon, ready.delta, ready.event
    if job.kind == "synthesize":
        from sfumato.synthesis import Request

        request = Request.of(
            policy, rows=job.rows, epsilon=job.epsilon, target=job.target, leave_out=job.leave_out
        )
        return request.plan.epsilon(request.delta), request.delta, request.plan.event()
    return None


def price(desk: Desk, account: Account, dataset: Dataset, job: Job, grant: int | None) -> Price:
    """What a job would cost, and whether the allocation would pay. Nothing is spent or read.

    Raises:
        InvalidInput: If it cannot be done with this policy.
        NoAllocation: If nothing was set aside.
    """
    check_kind(job, dataset)
    if job.kind == "report":
        return Price(epsilon=0.0, delta=0.0, event=None, share=None, fits=True, epsilon_left=None)
    found = plan_of(job, dataset.policy)
    assert found is not None
    epsilon, delta, event = found
    chosen = grant_for(desk, account, dataset, grant)
    share = _paying(dataset, chosen.shares, event)
    left = allocated_to(dataset, account, chosen).epsilon_left
    return Price(
        epsilon=epsilon, delta=delta, event=event, share=share, fits=share is not None, epsilon_left=left
    )


def _paying(dataset: Dataset, shares: tuple[str, ...], event: DpEvent) -> str | None:
    """The first share that would pay."""
    for share in shares:
        try:
            dataset.ledger.check(event, relation=RELATION, unit=dataset.policy.budget.unit, allocation=share)
            return share
        except BudgetExceeded:
            continue
    return None


def start(desk: Desk, account: Account, dataset: Dataset, job: Job, grant: int | None) -> int:
    """Put a job into the queue.

    Raises:
        BudgetExceeded: If the allocation would not pay now. Nothing is spent.
    """
    cost = price(desk, account, dataset, job, grant)
    if not cost.fits:
        raise allocated_to(dataset, account, grant_for(desk, account, dataset, grant)).exceeded()
    active = (QUEUED, RUNNING, CANCELLING)
    with desk.database.write() as connection:
        waiting = connection.execute(
            select(db.jobs.c.id).where(db.jobs.c.team == account.team, db.jobs.c.state.in_(active))
        ).all()
        if len(waiting) >= MOST_WAITING:
            raise InvalidInput(f"expected at most {MOST_WAITING} jobs of a team to wait; wait for one to end")
        return db.inserted(
            connection,
            db.jobs,
            account=account.id,
            team=account.team,
            dataset=dataset.name,
            kind=job.kind,
            words=job.to_json(),
            share=cost.share,
            epsilon=job.epsilon,
            state=QUEUED,
            tries=0,
            crashes=0,
            origin=grants.new_origin(desk, "job:"),
            created=time.time(),
        )


def cancel(desk: Desk, account: Account, number: int) -> None:
    """Stop a job of the team; what it was charged stays spent."""
    mine = (db.jobs.c.id == number) & (db.jobs.c.team == account.team)
    with desk.database.write() as connection:
        connection.execute(
            db.jobs.update().where(mine, db.jobs.c.state == QUEUED).values(state=CANCELLED, ended=time.time())
        )
        connection.execute(db.jobs.update().where(mine, db.jobs.c.state == RUNNING).values(state=CANCELLING))


def of_team(desk: Desk, team: str) -> list[Any]:
    with desk.database.read() as connection:
        found = connection.execute(
            select(db.jobs).where(db.jobs.c.team == team).order_by(db.jobs.c.id.desc()).limit(50)
        )
        return list(found)


def failed(desk: Desk) -> list[Any]:
    """The newest jobs that failed, with the sentence that says why, for officers."""
    with desk.database.read() as connection:
        query = select(db.jobs).where(db.jobs.c.state == FAILED).order_by(db.jobs.c.id.desc()).limit(20)
        return list(connection.execute(query))


def one_of_team(desk: Desk, team: str, number: int) -> Any:
    with desk.database.read() as connection:
        return connection.execute(select(db.jobs).where(db.jobs.c.id == number, db.jobs.c.team == team)).first()


# For the processes that do the work


def take(database: Database) -> Any:
    """The oldest waiting job of the team whose last job began first, now running; None if none waits."""
    others = db.jobs.alias()
    last = select(func.max(others.c.started)).where(others.c.team == db.jobs.c.team).scalar_subquery()
    turn = (func.coalesce(last, 0.0), db.jobs.c.id)
    with database.write() as connection:
        row = connection.execute(
            select(db.jobs).where(db.jobs.c.state == QUEUED).order_by(*turn).limit(1)
        ).first()
        if row is None:
            return None
        values = {"state": RUNNING, "tries": row.tries + 1, "started": time.time(), "progress": 0.0}
        values |= {"folder": f"{row.id}-{row.tries + 1}-{secrets.token_hex(8)}"}
        connection.execute(db.jobs.update().where(db.jobs.c.id == row.id).values(**values))
        return connection.execute(select(db.jobs).where(db.jobs.c.id == row.id)).first()


def folder_of(job: Any) -> Path:
    """The folder of a job's newest try, below that of all runs. No other try has it."""
    return Path(job.folder or f"{job.id}/try-{job.tries}")


def put_back(database: Database) -> None:
    """What ran when its worker ended waits again, however often that happens."""
    with database.write() as connection:
        _end_where(connection, (db.jobs.c.state == CANCELLING), CANCELLED)
        connection.execute(db.jobs.update().where(db.jobs.c.state == RUNNING).values(state=QUEUED))


def put_back_one(database: Database, number: int, tries: int) -> None:
    """After a try that ended by itself without a word: it waits again, a few times.

    Why it ended may depend on the rows; so how often that can be seen is limited.
    """
    this = (db.jobs.c.id == number) & (db.jobs.c.tries == tries)
    running = this & (db.jobs.c.state == RUNNING)
    with database.write() as connection:
        _end_where(connection, this & (db.jobs.c.state == CANCELLING), CANCELLED)
        connection.execute(db.jobs.update().where(running).values(crashes=db.jobs.c.crashes + 1))
        _end_where(connection, running & (db.jobs.c.crashes >= MOST_CRASHES), FAILED)
        connection.execute(db.jobs.update().where(running).values(state=QUEUED))


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
    """Say how a try ended; False, and nothing is said, if another try has begun since."""
    this = (db.jobs.c.id == number) & (db.jobs.c.tries == tries) & (db.jobs.c.state == RUNNING)
    with database.write() as connection:
        done = connection.execute(
            db.jobs.update()
            .where(this)
            .values(state=state, result=result, sentence=sentence, progress=None, ended=time.time())
        )
    return bool(done.rowcount)


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
    this = (db.jobs.c.id == number) & (db.jobs.c.tries == tries)
    with database.write() as connection:
        connection.execute(db.jobs.update().where(this).values(progress=share))


def state_of(database: Database, number: int) -> str | None:
    with database.read() as connection:
        return connection.execute(select(db.jobs.c.state).where(db.jobs.c.id == number)).scalar()
