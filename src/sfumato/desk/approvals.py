"""Requests for more, and what officers decide: with a reason, and a trace in the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from sfumato.desk import accounts, grants
from sfumato.desk import database as db
from sfumato.desk.accounts import Account, checked_line
from sfumato.desk.grants import DECIDING, Wanted
from sfumato.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from sfumato.desk.datasets import Dataset
    from sfumato.desk.desk import Desk

OPEN, APPROVED, DECLINED = "open", "approved", "declined"
DECIDED = (APPROVED, DECLINED)
Officers = Sequence[Account]
"""The officers who agree to an act: one, or two where the policy asks for four eyes."""
MOST_OPEN = 20
"""Requests of one team that may wait."""


def request(
    desk: Desk, account: Account, dataset: Dataset, wanted: Wanted, *, reason: str, grant: int | None = None
) -> int:
    """Ask for an allocation, or for more of one that the team has."""
    reason = checked_line("reason", reason)
    if grant is not None:
        wanted = _more(desk, wanted, dataset, grant)
    grants.check_size(wanted)
    with desk.database.write() as connection:
        waiting = connection.execute(
            select(db.requests.c.id).where(
                db.requests.c.team == wanted.team, db.requests.c.state.not_in(DECIDED)
            )
        ).all()
        if len(waiting) >= MOST_OPEN:
            raise InvalidInput(f"expected at most {MOST_OPEN} requests of a team to wait; wait for a decision")
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


def _more(desk: Desk, wanted: Wanted, dataset: Dataset, grant: int) -> Wanted:
    """More of an allocation is for its purpose, and for the period that is now."""
    found = {one.id: one for one in grants.of_team(desk, wanted.team, dataset.name)}.get(grant)
    if found is None:
        raise InvalidInput("expected an allocation of your team")
    return Wanted(
        team=found.team, purpose=found.purpose, epsilon=wanted.epsilon, period=found.period, periods=1
    )


def approve(desk: Desk, officers: Officers, number: int) -> None:
    """Approve a request, and have the ledger set it aside.

    Raises:
        Refused: If it was decided already.
        InvalidInput: If so much is not left. It stays open.
    """
    with _deciding(desk, number) as dataset:
        with desk.database.write() as connection:
            row = waiting_request(connection, number)
            said = _said(connection, row, officers)
            wanted = wanted_of(row)
            grant = grants.plan(connection, desk, dataset, wanted, said=said, grant=row.grant, request=number)
            grants.decide(connection, [number], OPEN, decided_by=officers[-1].id, grant=grant)
        grants.settle(desk, dataset, grant)


def decline(desk: Desk, officer: Account, number: int) -> None:
    """Decline a request; the ledger gets a line that says so."""
    with _deciding(desk, number) as dataset:
        with desk.database.read() as connection:
            row = waiting_request(connection, number)
            asker, words = accounts.names(connection).get(row.account, ""), wanted_of(row).in_words()
        dataset.ledger.note(f"request {number} of {asker} for {words} declined by {officer.name}: {row.reason}")
        with desk.database.write() as connection:
            grants.decide(connection, [number], DECLINED, decided_by=officer.id, decided=time.time())


@contextmanager
def _deciding(desk: Desk, number: int) -> Iterator[Dataset]:
    """The data set of a request, for one decision at a time, once all earlier ones are complete or undone."""
    with DECIDING:
        with desk.database.read() as connection:
            dataset = desk.dataset(waiting_request(connection, number).dataset)
        for grant in grants.planned(desk, dataset, of_requests=True):
            grants.resolve(desk, dataset, grant)
        yield dataset


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
            "decider": names.get(row.decided_by),
            "words": wanted_of(row).in_words(),
            "waits": row.state not in DECIDED,
        }
        for row in rows
    ]


def wanted_of(row: Any) -> Wanted:
    names = ("team", "purpose", "epsilon", "period", "periods")
    return Wanted(**{name: getattr(row, name) for name in names})


def waiting_request(connection: Connection, number: int) -> Any:
    """The request of a number; Refused if it was decided already."""
    row = connection.execute(select(db.requests).where(db.requests.c.id == number)).first()
    if row is None or row.state in DECIDED:
        raise Refused("expected a request that waits; it was decided already, or there is none")
    return row


def _said(connection: Connection, row: Any, officers: Officers) -> str:
    """What the ledger says of it."""
    by = " and ".join(officer.name for officer in officers)
    return f"request {row.id} of {accounts.names(connection)[row.account]} approved by {by}: {row.reason}"
