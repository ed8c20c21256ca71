"""A question: planned and checked, charged to an allocation, answered at its tick, kept for the team."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from sfumato import _validate
from sfumato.desk import database as db
from sfumato.desk import grants
from sfumato.desk.accounts import Account
from sfumato.desk.database import Waiting
from sfumato.desk.desk import Dataset, Desk
from sfumato.desk.gate import effort_of
from sfumato.desk.grants import Allocated, Grant
from sfumato.desk.limits import kind_of
from sfumato.errors import BudgetExceeded, InvalidInput, Refused, SfumatoError
from sfumato.ledger import Charge, ChargeRequest
from sfumato.query import Answer, QueryRefused
from sfumato.query.dry_run import ExpectedError
from sfumato.query.pricing import Planned, Ready
from sfumato.query.table import RELATION

LONGEST_QUESTION = 10_000
MOST_IN_PASSING = 20_000
"""Noisy numbers of an answer that the thread that reads rows draws itself: some hundredths of a second."""
SECONDS_A_VALUE = 2e-6
"""Time of an answer for each of them, with room for a busy machine."""
ASKED, ANSWERED = "asked", "answered"
_private_log = logging.getLogger("sfumato.private.desk")
_private_log.addHandler(logging.NullHandler())
_private_log.propagate = False


class NoAllocation(Refused):
    """The asker has nothing to spend on this table."""


class Unanswered(SfumatoError):
    """A failure that the asker can do nothing about; its cause is in the private log."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question in SQL, ε and δ of its answer, and the allocation that pays; None takes the team's first."""

    sql: str
    epsilon: float
    delta: float | None = None
    grant: int | None = None

    def __post_init__(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        if not self.sql.strip() or len(self.sql) > LONGEST_QUESTION or "\0" in self.sql:
            raise InvalidInput(f"expected a question of 1 to {LONGEST_QUESTION} letters in SQL")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The errors of an answer and whether it would be paid; from the question and the policy alone."""

    errors: tuple[ExpectedError, ...]
    fits: bool
    epsilon_left: float


def allocated_to(dataset: Dataset, account: Account, grant: Grant) -> Allocated:
    return Allocated(dataset.ledger, grant.shares, who=account.name)


def grant_for(desk: Desk, account: Account, dataset: Dataset, wanted: int | None) -> tuple[Grant, Allocated]:
    """Return the allocation that pays: the token's, the chosen one, or the team's first."""
    mine = grants.of_team(desk, account.team, dataset.name)
    chosen = account.grant if account.grant is not None else wanted
    fitting = [one for one in mine if one.shares and chosen in (None, one.id)]
    if not fitting:
        raise NoAllocation(
            f"there is no allocation of the team {account.team} for this table now; request one from an officer"
        )
    return fitting[0], allocated_to(dataset, account, fitting[0])


async def expect(desk: Desk, account: Account, dataset: Dataset, question: Question) -> Expected:
    """Return the expected errors of an answer, and whether it would be paid. Nothing is spent or read.

    Raises:
        QueryRefused: If it cannot be answered privately.
        NoAllocation: If nothing was set aside for the asker.
    """
    return await desk.planning.run(f"account {account.id}", _expected, desk, account, dataset, question)


def _expected(desk: Desk, account: Account, dataset: Dataset, question: Question) -> Expected:
    _, allocated = grant_for(desk, account, dataset, question.grant)
    with effort_of(desk, account, alone=False):
        planned = _planned(dataset, question)
        errors = dataset.table.expected(planned)
    fits = _fits(dataset, allocated, planned)
    return Expected(errors=errors, fits=fits, epsilon_left=allocated.epsilon_left)


def _planned(dataset: Dataset, question: Question) -> Planned:
    if dataset.images:
        raise QueryRefused("images are not asked in SQL; start a job with them")
    return dataset.table.plan(question.sql, epsilon=question.epsilon, delta=question.delta)


def _fits(dataset: Dataset, allocated: Allocated, planned: Planned) -> bool:
    event, unit = planned.price.event(), dataset.policy.budget.unit
    return allocated.paying(event, relation=RELATION, unit=unit) is not None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question that was planned and would be paid for, with its row of the history."""

    planned: Planned
    allocated: Allocated
    kind: str
    row: dict[str, Any]


def _ready_to_ask(desk: Desk, account: Account, dataset: Dataset, question: Question) -> Asked:
    grant, allocated = grant_for(desk, account, dataset, question.grant)
    with effort_of(desk, account, alone=False):
        planned = _planned(dataset, question)
    if not _fits(dataset, allocated, planned):
        raise allocated.exceeded()
    kind = kind_of(planned, dataset.policy, dataset.name)
    desk.pace.at_least(kind, SECONDS_A_VALUE * planned.values)
    row = {"account": account.id, "team": account.team, "dataset": dataset.name, "grant": grant.id}
    row |= {"sql": question.sql, "epsilon": question.epsilon, "state": ASKED, "asked": time.time()}
    return Asked(planned=planned, allocated=allocated, kind=kind, row=row)


async def ask(desk: Desk, account: Account, dataset: Dataset, question: Question) -> tuple[int, Answer]:
    """Answer a question at its tick; return its number in the history, and the answer.

    Before its tick the history shows a question as asked, even if it was refused or failed. A refusal of the
    plan follows from the question, the policy and the ledger, and so may leave at once.

    Raises:
        QueryRefused: If it cannot be answered privately. Nothing is charged.
        BudgetExceeded: If the allocation has no room. Nothing is charged.
        NoAllocation: If nothing was set aside for the asker.
        Unanswered: If it failed for a reason that must not be told.
    """
    await _opened(dataset)
    arrived = time.time()
    words = desk, account, dataset, question
    asked = await desk.planning.run(f"account {account.id}", _ready_to_ask, *words)
    number: int = await asyncio.wrap_future(
        desk.database.soon(lambda connection: db.inserted(connection, db.questions, **asked.row))
    )
    work = dataset.submit(Numbered(desk, number, asked))
    await desk.pace.leave(arrived, asked.kind, work)
    error = work.exception()
    state = ANSWERED if error is None else "failed" if isinstance(error, Unanswered) else "refused"
    desk.database.soon(_changed(number, state=state))  # on disk with the line of the trail, before it leaves
    return number, work.result()


async def _opened(dataset: Dataset) -> None:
    """Wait until the table is open, which happens once, for all questions."""
    try:
        await asyncio.wrap_future(dataset.ready)
    except Exception as error:
        _private_log.error("a table could not be opened", exc_info=error)
        raise Unanswered("the table cannot be opened now; nothing was charged: tell an officer") from None


@dataclass(frozen=True)
class Numbered:
    """A question on its way, with its number in the history of a desk."""

    desk: Desk
    number: int
    asked: Asked


@dataclass(frozen=True)
class Paid:
    """A question that was charged, on its way to the thread that reads rows.

    Its answer states the ε spent and left when it was charged: a later figure would tell how long it took.
    """

    one: Waiting[Numbered]
    ready: Ready
    charge: Charge
    epsilon_spent: float
    epsilon_left: float


def charge_all(dataset: Dataset, waiting: Sequence[Waiting[Numbered]]) -> None:
    """Charge all waiting questions in one transaction, in the thread that waits for no row."""
    ready: list[tuple[Waiting[Numbered], Ready]] = []
    for one in waiting:
        with _telling(one):
            ready.append((one, dataset.planner.ready(one.wanted.asked.planned)))
    try:
        charges = dataset.ledger.charge_each([_request(dataset, one.wanted.asked) for one, _ in ready])
    except Exception as error:
        for one, _ in ready:
            _fail(one, error)
        return
    for (one, compiled), charge in zip(ready, charges, strict=True):
        allocated = one.wanted.asked.allocated
        with _telling(one):
            if isinstance(charge, BudgetExceeded):
                raise allocated.exceeded()
            left = allocated.epsilon_spent, allocated.epsilon_left
            dataset.asking.submit(Paid(one, compiled, charge, *left))


def _request(dataset: Dataset, asked: Asked) -> ChargeRequest:
    event, unit = asked.planned.price.event(), dataset.policy.budget.unit
    return asked.allocated.request(event, purpose=asked.planned.purpose, relation=RELATION, unit=unit)


def answer_all(dataset: Dataset, waiting: Sequence[Waiting[Paid]]) -> None:
    """Answer all charged questions, in the thread that reads rows.

    Small questions go first, and the noise of dear ones is drawn in a thread beside: they hold up no other.
    """
    for paid in sorted((one.wanted for one in waiting), key=lambda paid: paid.ready.planned.values):
        with _telling(paid.one):
            _answer(dataset, paid)


def _answer(dataset: Dataset, paid: Paid) -> None:
    if paid.ready.planned.values <= MOST_IN_PASSING:
        _keep(paid.one, dataset.table.answer(paid.ready, paid.charge, ledger=paid))
        return
    exact = dataset.table.read(paid.ready, paid.charge)

    def beside() -> None:
        with _telling(paid.one):
            _keep(paid.one, dataset.table.released(paid.ready, paid.charge, exact, ledger=paid))

    dataset.beside.submit(beside)


def _keep(one: Waiting[Numbered], answer: Answer) -> None:
    """Write the answer into the history; no page shows it before its tick."""

    def tell(done: Future[Any]) -> None:
        error = done.exception()
        _fail(one, error) if error is not None else one.outcome.set_result(answer)

    one.wanted.desk.database.soon(_changed(one.wanted.number, answer=answer.to_json())).add_done_callback(tell)


@contextmanager
def _telling(one: Waiting[Numbered]) -> Iterator[None]:
    """Tell a question's asker that it failed, with a reason only if it follows from public facts."""
    try:
        yield
    except (BudgetExceeded, QueryRefused) as error:
        one.outcome.set_exception(error)
    except Exception as error:
        _fail(one, error)


def _fail(one: Waiting[Numbered], error: BaseException) -> None:
    _private_log.error("a question could not be answered", exc_info=error)
    sentence = "the question could not be answered; it may have been charged: tell an officer the time of day"
    one.outcome.set_exception(Unanswered(sentence))


def _changed(number: int, **values: Any) -> db.Change:
    change = db.questions.update().where(db.questions.c.id == number).values(**values)
    return lambda connection: connection.execute(change)


def finish(desk: Desk) -> None:
    """Show the answers that were ready when the server was stopped before their tick."""
    ready = (db.questions.c.state == ASKED) & db.questions.c.answer.is_not(None)
    with desk.database.write() as connection:
        connection.execute(db.questions.update().where(ready).values(state=ANSWERED))


def history(desk: Desk, account: Account, *, count: int = 50) -> list[Any]:
    """Return the newest questions of the asker's team, without their answers."""
    shown = [column for column in db.questions.columns if column is not db.questions.c.answer]
    query = select(*shown, db.accounts.c.name.label("asker")).where(db.questions.c.team == account.team)
    query = query.join(db.accounts, db.accounts.c.id == db.questions.c.account)
    with desk.database.read() as connection:
        return list(connection.execute(query.order_by(db.questions.c.id.desc()).limit(count)))


def answer_of(desk: Desk, account: Account, number: int) -> tuple[Any, Answer] | None:
    """Return a question of the asker's team with its answer, once its tick has come."""
    shown = (db.questions.c.team == account.team) & (db.questions.c.state == ANSWERED)
    with desk.database.read() as connection:
        row = connection.execute(select(db.questions).where(db.questions.c.id == number, shown)).first()
    return None if row is None else (row, Answer.from_json(row.answer))
