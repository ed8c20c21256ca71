"""A question: priced and checked, charged to an allocation, answered at its tick, kept for the team."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from sfumato import _validate
from sfumato.desk import database as db
from sfumato.desk import grants
from sfumato.desk.accounts import Account
from sfumato.desk.datasets import Dataset
from sfumato.desk.desk import Desk
from sfumato.desk.grants import Allocated, Grant
from sfumato.desk.pace import kind_of
from sfumato.errors import BudgetExceeded, InvalidInput, Refused, SfumatoError
from sfumato.query import Answer, QueryRefused
from sfumato.query.dry_run import ExpectedError
from sfumato.query.sql import parse_query
from sfumato.query.table import RELATION

LONGEST_QUESTION = 10_000
_private_log = logging.getLogger("sfumato.private.desk")
_private_log.addHandler(logging.NullHandler())
_private_log.propagate = False


class NoAllocation(Refused):
    """Somebody asks who has nothing to spend there."""


class Unanswered(SfumatoError):
    """Something failed that the asker can do nothing about; what it was is in the private log."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What somebody asks: the words, what the answer may cost, and the allocation that pays.

    Args:
        sql: The words.
        epsilon: The ε of the answer.
        delta: Its δ, where the groups are not declared.
        grant: The allocation; None takes the first of the team.
    """

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
    """What an answer would be like, before it is asked for; from the question and the policy alone."""

    kind: str
    errors: tuple[ExpectedError, ...]
    fits: bool
    epsilon_left: float


def grant_for(desk: Desk, account: Account, dataset: Dataset, wanted: int | None) -> Grant:
    """The allocation that pays: the token's, the one that was chosen, or the team's first."""
    with desk.database.read() as connection:
        mine = grants.of_team(connection, account.team, dataset.name)
    chosen = account.grant if account.grant is not None else wanted
    fitting = [one for one in mine if one.shares and chosen in (None, one.id)]
    if not fitting:
        raise NoAllocation(
            f"there is no allocation of the team {account.team} for this table now; request one from an officer"
        )
    return fitting[0]


def allocated_to(dataset: Dataset, account: Account, grant: Grant) -> Allocated:
    return Allocated(dataset.ledger, grant.shares, who=account.name)


def expect(desk: Desk, account: Account, dataset: Dataset, question: Question) -> Expected:
    """How wrong the answer would be, and whether it would be paid. Nothing is spent or read.

    Raises:
        QueryRefused: If it cannot be answered privately.
        NoAllocation: If nothing was set aside for the asker.
    """
    grant = grant_for(desk, account, dataset, question.grant)
    return _expected(dataset, allocated_to(dataset, account, grant), question)


def _expected(dataset: Dataset, allocated: Allocated, question: Question) -> Expected:
    table = dataset.planned(allocated)
    try:
        plan = parse_query(question.sql, dataset.policy)
        price = table.price(plan, epsilon=question.epsilon, delta=question.delta)
        errors = table.dry_run(plan, epsilon=question.epsilon, delta=question.delta)
    except RecursionError:
        raise QueryRefused("the question is nested too deeply; ask for less at a time") from None
    try:
        allocated.check(price.event(), relation=RELATION, unit=dataset.policy.budget.unit)
        fits = True
    except BudgetExceeded:
        fits = False
    kind = kind_of(plan, dataset.policy, dataset.name)
    return Expected(kind=kind, errors=errors, fits=fits, epsilon_left=allocated.epsilon_left)


async def ask(desk: Desk, account: Account, dataset: Dataset, question: Question) -> tuple[int, Answer]:
    """Answer a question at its tick; the number in the history, and the answer.

    A refusal follows from the question, the policy and the ledger, and so may leave at once.

    Raises:
        QueryRefused: If it cannot be answered privately. Nothing is charged.
        BudgetExceeded: If the allocation has no room. Nothing is charged.
        NoAllocation: If nothing was set aside for the asker.
        Unanswered: If it failed in a way that must not be told.
    """
    await _opened(dataset)
    arrived = time.time()
    grant = await asyncio.to_thread(grant_for, desk, account, dataset, question.grant)
    allocated = allocated_to(dataset, account, grant)
    expected = await asyncio.to_thread(_expected, dataset, allocated, question)
    if not expected.fits:
        raise await asyncio.to_thread(allocated.exceeded)
    number = await asyncio.to_thread(_remember, desk, account, dataset, grant, question)
    work = dataset.submit(lambda: _answered(desk, dataset, allocated, question, number))
    await desk.pace.leave(arrived, expected.kind, work)
    return number, work.result()


async def _opened(dataset: Dataset) -> None:
    """Wait until the table was looked through, which happens once, whatever is asked."""
    try:
        await asyncio.wrap_future(dataset.ready)
    except Exception as error:
        _private_log.error("a table could not be opened", exc_info=error)
        raise Unanswered("the table cannot be opened now; nothing was charged: tell an officer") from None


def _remember(desk: Desk, account: Account, dataset: Dataset, grant: Grant, question: Question) -> int:
    values = {"account": account.id, "team": account.team, "dataset": dataset.name, "grant": grant.id}
    asked = {"sql": question.sql, "epsilon": question.epsilon, "state": "asked", "asked": time.time()}
    with desk.database.write() as connection:
        return db.inserted(connection, db.questions, **values, **asked)


def _answered(desk: Desk, dataset: Dataset, allocated: Allocated, question: Question, number: int) -> Answer:
    """In the thread that asks: the answer is in the history before anybody gets it."""
    try:
        answer = dataset.answer(allocated, question.sql, epsilon=question.epsilon, delta=question.delta)
    except (BudgetExceeded, QueryRefused) as error:
        _close(desk, number, "refused")
        raise error
    except Exception as error:
        _private_log.error("a question could not be answered", exc_info=error)
        _close(desk, number, "failed")
        raise Unanswered(
            "the question could not be answered; it may have been charged: tell an officer the time of day"
        ) from None
    _close(desk, number, "answered", answer.to_json())
    return answer


def _close(desk: Desk, number: int, state: str, answer: dict[str, Any] | None = None) -> None:
    with desk.database.write() as connection:
        connection.execute(
            db.questions.update().where(db.questions.c.id == number).values(state=state, answer=answer)
        )


def history(desk: Desk, account: Account, *, count: int = 50) -> list[Any]:
    """The newest questions of the asker's team."""
    with desk.database.read() as connection:
        return list(
            connection.execute(
                select(db.questions, db.accounts.c.name.label("asker"))
                .join(db.accounts, db.accounts.c.id == db.questions.c.account)
                .where(db.questions.c.team == account.team)
                .order_by(db.questions.c.id.desc())
                .limit(count)
            )
        )


def answer_of(desk: Desk, account: Account, number: int) -> tuple[Any, Answer] | None:
    """An answer of the asker's team, with its question; None for any other."""
    with desk.database.read() as connection:
        row = connection.execute(
            select(db.questions).where(db.questions.c.id == number, db.questions.c.team == account.team)
        ).first()
    return None if row is None or row.answer is None else (row, Answer.from_json(row.answer))
