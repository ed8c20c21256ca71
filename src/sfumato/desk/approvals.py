"""Requests for more, and what officers decide: with a reason, once or by two, and a trace in the ledger."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, select

from sfumato.desk import accounts, grants
from sfumato.desk import database as db
from sfumato.desk.accounts import Account, checked_line
from sfumato.desk.datasets import Dataset
from sfumato.desk.desk import Desk
from sfumato.desk.grants import DECIDING, Wanted
from sfumato.errors import BudgetExceeded, InvalidInput, Refused

OPEN, SECONDED, APPROVED, DECLINED = "open", "seconded", "approved", "declined"
MOST_OPEN = 20
"""Requests of one team that may wait."""


def request(
    desk: Desk, account: Account, dataset: Dataset, wanted: Wanted, *, reason: str, grant: int | None = None
) -> int:
    """Ask for an allocation, or for more of one that the team has."""
    reason = checked_line("reason", reason)
    with desk.database.write() as connection:
        waiting = connection.execute(
            select(db.requests.c.id).where(
                db.requests.c.team == wanted.team, db.requests.c.state.in_((OPEN, SECONDED))
            )
        ).all()
        if len(waiting) >= MOST_OPEN:
            raise InvalidInput(f"expected at most {MOST_OPEN} requests of a team to wait; wait for a decision")
        if grant is not None:
            wanted = _more(connection, wanted, dataset, grant)
        return db.inserted(
            connection,
            db.requests,
            account=account.id,
            dataset=dataset.name,
            grant=grant,
            team=wanted.team,
            purpose=wanted.purpose,
            epsilon=wanted.epsilon,
            period=wanted.period,
            periods=wanted.periods,
            reason=reason,
            state=OPEN,
            created=time.time(),
        )


def _more(connection: Connection, wanted: Wanted, dataset: Dataset, grant: int) -> Wanted:
    """More of an allocation is for its purpose, and for the period that is now."""
    found = {one.id: one for one in grants.of_team(connection, wanted.team, dataset.name)}.get(grant)
    if found is None:
        raise InvalidInput("expected an allocation of your team")
    return Wanted(
        team=found.team, purpose=found.purpose, epsilon=wanted.epsilon, period=found.period, periods=1
    )


def approve(desk: Desk, officer: Account, number: int) -> str:
    """Approve a request; where the policy asks for four eyes, the first of two officers seconds it only.

    Returns:
        The state that it is in now.

    Raises:
        Refused: If it was decided already, or the same officer would be both, or asked for it.
        InvalidInput: If so much is not left. It stays open.
    """
    with DECIDING:
        with desk.database.write() as connection:
            row = _waiting(connection, number)
            dataset = desk.dataset(row.dataset)
            if _seconds(connection, row, officer, dataset):
                return SECONDED
            said = _said(connection, row, officer)
            wanted = _wanted(row)
            grant = grants.plan(connection, dataset.name, wanted, said=said, grant=row.grant)
            _decide(connection, number, officer, APPROVED, grant)
        try:
            grants.settle(desk.database, dataset.ledger, dataset.name, grant)
        except (InvalidInput, BudgetExceeded):
            with desk.database.write() as connection:
                _decide(connection, number, officer, row.state, row.grant)
            grants.undo(desk.database, dataset.name, grant)
            raise
    return APPROVED


def _seconds(connection: Connection, row: Any, officer: Account, dataset: Dataset) -> bool:
    """Whether this is the first of two approvals; nobody is both, or approves what they asked for."""
    if not dataset.policy.four_eyes:
        return False
    if row.first == officer.id:
        raise Refused("expected a second officer: the policy asks for four eyes")
    if row.first is not None:
        return False
    connection.execute(
        db.requests.update().where(db.requests.c.id == row.id).values(state=SECONDED, first=officer.id)
    )
    return True


def decline(desk: Desk, officer: Account, number: int) -> None:
    """Decline a request; the ledger gets a line that says so."""
    with desk.database.write() as connection:
        row = _waiting(connection, number)
        asker, words = accounts.names(connection).get(row.account, ""), _wanted(row).in_words()
        _decide(connection, number, officer, DECLINED, row.grant)
        desk.dataset(row.dataset).ledger.note(
            f"request {number} of {asker} for {words} declined by {officer.name}: {row.reason}"
        )


def set_aside(desk: Desk, officer: Account, dataset: Dataset, wanted: Wanted, *, reason: str) -> str:
    """An officer's own allocation: a request that the same officer approves, or is the first of two to."""
    return approve(desk, officer, request(desk, officer, dataset, wanted, reason=reason))


def waiting(desk: Desk, team: str | None = None) -> list[Any]:
    """Requests, those that wait for a decision first."""
    query = select(db.requests).order_by(db.requests.c.decided.is_not(None), db.requests.c.id.desc()).limit(100)
    if team is not None:
        query = query.where(db.requests.c.team == team)
    with desk.database.read() as connection:
        names = accounts.names(connection)
        rows = connection.execute(query).all()
    return [
        {
            **row._mapping,
            "asker": names.get(row.account),
            "seconder": names.get(row.first),
            "decider": names.get(row.decided_by),
            "words": _wanted(row).in_words(),
            "waits": row.state in (OPEN, SECONDED),
        }
        for row in rows
    ]


def _wanted(row: Any) -> Wanted:
    names = ("team", "purpose", "epsilon", "period", "periods")
    return Wanted(**{name: getattr(row, name) for name in names})


def _waiting(connection: Connection, number: int) -> Any:
    row = connection.execute(select(db.requests).where(db.requests.c.id == number)).first()
    if row is None or row.state not in (OPEN, SECONDED):
        raise Refused("expected a request that waits; it was decided already, or there is none")
    return row


def _decide(connection: Connection, number: int, officer: Account, state: str, grant: int | None) -> None:
    decided = state in (APPROVED, DECLINED)
    connection.execute(
        db.requests.update()
        .where(db.requests.c.id == number)
        .values(
            state=state,
            grant=grant,
            decided_by=officer.id if decided else None,
            decided=time.time() if decided else None,
        )
    )


def _said(connection: Connection, row: Any, officer: Account) -> str:
    """What the ledger says of it."""
    names = accounts.names(connection)
    by = officer.name if row.first is None else f"{names[row.first]} and {officer.name}"
    return f"request {row.id} of {names[row.account]} approved by {by}: {row.reason}"
