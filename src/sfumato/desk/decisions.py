"""Requests for allocations, and the acts of officers, with the second officer who must confirm them.

An act that spends, closes or hands over a budget is in `ACTS`. `submit` does it at once. Where a policy asks
for four eyes, `submit` keeps it as a proposal: the act, its parameters, its title, the digest of all three, the
first officer. A second officer confirms it, or submits the same act with the same parameters. The title is made
anew then: an act whose effect has changed meanwhile is not done. Nothing else calls `Act.do`.

A password that two officers make has two halves. Each of them is told one; its owner needs both.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, select

from sfumato.desk import accounts, grants
from sfumato.desk import database as db
from sfumato.desk.accounts import Account, Role, checked_line
from sfumato.desk.grants import DECIDING, Wanted
from sfumato.errors import InvalidInput, Refused
from sfumato.ledger.chain import canonical
from sfumato.ledger.rule import counted_event

if TYPE_CHECKING:
    from sfumato.desk.database import Database
    from sfumato.desk.desk import Dataset, Desk

Officers = Sequence[Account]
"""The officers who agree to an act: one, or two where the policy asks for four eyes."""
Words = Mapping[str, Any]
"""The parameters of an act, as JSON holds them. The policy of "dataset" says whether two must agree."""
LASTS = 7 * 24 * 3600.0
"""Seconds for which a proposal waits: its title may not hold for much longer."""
MOST_OPEN = 20
"""Requests of one team, and proposals of one officer, that may wait."""
OPEN, APPROVED, DECLINED = "open", "approved", "declined"
DOING, DONE, WITHDRAWN, UNCLEAR = "doing", "done", "withdrawn", "unclear"
DECIDED = (APPROVED, DECLINED)


# Requests


def request(
    desk: Desk, account: Account, dataset: Dataset, wanted: Wanted, *, reason: str, grant: int | None = None
) -> int:
    """Ask for an allocation; with `grant` for more of one that the team has, in the present period."""
    reason = checked_line("reason", reason)
    if grant is not None:
        found = {one.id: one for one in grants.of_team(desk, wanted.team, dataset.name)}.get(grant)
        if found is None:
            raise InvalidInput("expected an allocation of your team")
        wanted = replace(wanted, purpose=found.purpose, period=found.period, periods=1)
    grants.check_size(wanted)
    waits = (db.requests.c.team == wanted.team) & db.requests.c.state.not_in(DECIDED)
    with desk.database.write() as connection:
        if len(connection.execute(select(db.requests.c.id).where(waits)).all()) >= MOST_OPEN:
            raise InvalidInput(f"expected at most {MOST_OPEN} requests of a team to wait; wait for a decision")
        values = {"account": account.id, "dataset": dataset.name, "grant": grant, "reason": reason}
        return db.inserted(connection, db.requests, **values, **asdict(wanted), state=OPEN, created=time.time())


def approve(desk: Desk, officers: Officers, number: int) -> None:
    """Approve a request, and have the ledger set the allocation aside.

    Raises:
        Refused: If it was decided already.
        InvalidInput: If so much is not left. It stays open.
    """
    with _deciding(desk, number) as dataset:
        with desk.database.write() as connection:
            row = waiting_request(connection, number)
            asker = accounts.names(connection)[row.account]
            said = f"request {row.id} of {asker} approved by {_named(officers)}: {row.reason}"
            wanted = wanted_of(row)
            grant = grants.plan(connection, desk, dataset, wanted, said=said, grant=row.grant, request=number)
            grants.decide(connection, [number], OPEN, decided_by=officers[-1].id, grant=grant)
        grants.settle(desk, dataset, grant)


def decline(desk: Desk, officer: Account, number: int) -> None:
    """Decline a request, with a line in the ledger."""
    with _deciding(desk, number) as dataset:
        with desk.database.read() as connection:
            row = waiting_request(connection, number)
            asker, words = accounts.names(connection).get(row.account, ""), wanted_of(row).in_words()
        dataset.ledger.note(f"request {number} of {asker} for {words} declined by {officer.name}: {row.reason}")
        with desk.database.write() as connection:
            grants.decide(connection, [number], DECLINED, decided_by=officer.id, decided=time.time())


@contextmanager
def _deciding(desk: Desk, number: int) -> Iterator[Dataset]:
    """Yield the data set of a request: one decision at a time, once earlier ones are complete or undone."""
    with DECIDING:
        with desk.database.read() as connection:
            dataset = desk.dataset(waiting_request(connection, number).dataset)
        for grant in grants.planned(desk, dataset, of_requests=True):
            grants.resolve(desk, dataset, grant)
        yield dataset


def requests(desk: Desk, team: str | None = None) -> list[Any]:
    """Return the newest requests, those that wait for a decision first."""
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
    row = connection.execute(select(db.requests).where(db.requests.c.id == number)).first()
    if row is None or row.state in DECIDED:
        raise Refused("expected a request that waits; it was decided already, or there is none")
    return row


def _named(officers: Officers) -> str:
    return " and ".join(officer.name for officer in officers)


# Acts and proposals


@dataclass(frozen=True, kw_only=True)
class Act:
    """An act of officers.

    `title` checks the parameters, and states the present effect for the second officer. `do` does it, with a
    password for an account where the act makes one.
    """

    title: Callable[[Desk, Words], str]
    do: Callable[[Desk, Officers, Words, str], None]
    password: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Whether an act waits for a second officer, and a secret that is told once."""

    waits: bool
    told: tuple[str, str] | None = None


def submit(desk: Desk, officer: Account, act: str, words: Words) -> Outcome:
    """Do an act; where two officers must agree, propose it, or confirm the equal proposal of another officer.

    Raises:
        Refused: If the same officer would be both.
        InvalidInput: If it makes no sense, or too many proposals wait. Nothing is proposed.
    """
    deed = ACTS[act]
    if not desk.four_eyes(words.get("dataset")):
        password = accounts.fresh_password() if deed.password else ""
        deed.do(desk, [officer], words, password)
        return Outcome(waits=False, told=("password", password) if deed.password else None)
    title = deed.title(desk, words)
    digest = digest_of(act, words, title)
    half = secrets.token_urlsafe(9) if deed.password else None
    with desk.database.write() as connection:
        same = select(db.proposals.c.id).where(db.proposals.c.digest == digest, _waits())
        known: int | None = connection.execute(same).scalar()
        if known is None:
            mine = select(db.proposals.c.id).where(db.proposals.c.first == officer.id, _waits())
            if len(connection.execute(mine).all()) >= MOST_OPEN:
                raise InvalidInput(
                    f"expected at most {MOST_OPEN} proposals of an officer to wait; withdraw one"
                )
            values = {"act": act, "words": dict(words), "digest": digest, "title": title, "half": half}
            made = db.proposals.insert().values(**values, first=officer.id, state=OPEN, created=time.time())
            connection.execute(made)
            return Outcome(waits=True, told=None if half is None else ("first half of the password", half))
    return confirm(desk, officer, known, digest)


def confirm(desk: Desk, officer: Account, number: int, digest: str) -> Outcome:
    """Do an act that another officer proposed; `digest` is that of the proposal as the second officer saw it.

    Raises:
        Refused: If it does not wait, is not the one that was shown, would do something else by now, or was
            proposed by this officer.
    """
    with desk.database.read() as connection:
        row = _waiting(connection, number)
    title = ACTS[row.act].title(desk, row.words)
    with desk.database.write() as connection:
        row = _waiting(connection, number)
        if not row.digest == digest == digest_of(row.act, row.words, row.title):
            raise Refused("expected the proposal as the page showed it; load the page again")
        if row.title != title:
            raise Refused(
                f"expected a proposal with the effect of its title, got one that would now {title}; withdraw "
                "it, and propose it again"
            )
        if row.first == officer.id:
            raise Refused("expected a second officer: the policy asks for four eyes, and you proposed it")
        first = accounts.by_id(connection, row.first)
        if first is None or first.role is not Role.OFFICER:
            raise Refused(
                "expected a first officer whose account is open; withdraw the proposal, and repeat it"
            )
        _set(connection, number, state=DOING, second=officer.id)
    deed, half = ACTS[row.act], secrets.token_urlsafe(9)
    try:
        deed.do(desk, [first, officer], row.words, f"{row.half}-{half}" if deed.password else "")
    except (InvalidInput, Refused):  # nothing was done
        with desk.database.write() as connection:
            _set(connection, number, state=OPEN, second=None)
        raise
    with desk.database.write() as connection:
        _set(connection, number, state=DONE, half=None, decided=time.time())
    return Outcome(waits=False, told=("second half of the password", half) if deed.password else None)


def withdraw(desk: Desk, number: int) -> None:
    """Take a proposal back, as any one officer may."""
    with desk.database.write() as connection:
        _waiting(connection, number)
        _set(connection, number, state=WITHDRAWN, half=None, decided=time.time())


def proposals(desk: Desk) -> list[Any]:
    """Return the proposals that wait, newest first, each with the name of its first officer."""
    with desk.database.read() as connection:
        names = accounts.names(connection)
        query = select(db.proposals).where(_waits()).order_by(db.proposals.c.id.desc())
        rows = connection.execute(query).all()
    return [{**row._mapping, "proposer": names.get(row.first)} for row in rows]


def finish(database: Database) -> list[str]:
    """Mark proposals that were being carried out when the server ended: they are not carried out again."""
    with database.write() as connection:
        rows = connection.execute(select(db.proposals).where(db.proposals.c.state == DOING)).all()
        for row in rows:
            _set(connection, row.id, state=UNCLEAR, half=None, decided=time.time())
    return [
        f"proposal {row.id} was being carried out when the desk ended, and may be done: {row.title}; look, and "
        "propose it again if it is not"
        for row in rows
    ]


def digest_of(act: str, words: Words, title: str) -> str:
    """Return the digest to which a confirmation is bound."""
    return hashlib.sha256(canonical({"act": act, "words": dict(words), "title": title})).hexdigest()


def _waits() -> ColumnElement[bool]:
    return (db.proposals.c.state == OPEN) & (db.proposals.c.created > time.time() - LASTS)


def _waiting(connection: Connection, number: int) -> Any:
    row = connection.execute(select(db.proposals).where(db.proposals.c.id == number, _waits())).first()
    if row is None:
        raise Refused("expected a proposal that waits; it was decided, is too old, or there is none")
    return row


def _set(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(db.proposals.update().where(db.proposals.c.id == number).values(**values))


# The acts


def _title_approve(desk: Desk, words: Words) -> str:
    with desk.database.read() as connection:
        row = waiting_request(connection, words["request"])
    asked = f"{wanted_of(row).in_words()} of {row.dataset} for {row.team}: {row.purpose}"
    return f"approve request {row.id}, {asked}"


def _title_aside(desk: Desk, words: Words) -> str:
    wanted = Wanted(**words["wanted"])
    grants.check_size(wanted)
    asked = f"{wanted.in_words()} of {words['dataset']} for {wanted.team}: {wanted.purpose}"
    return f"set aside {asked}; {words['reason']}"


def _aside(desk: Desk, officers: Officers, words: Words, _: str) -> None:
    said = f"set aside by {_named(officers)}: {words['reason']}"
    grants.give(desk, desk.dataset(words["dataset"]), Wanted(**words["wanted"]), said=said)


def _plan(desk: Desk, words: Words) -> Any:
    from sfumato.governance import Plan

    return Plan.from_settings(dict(words["plan"]), policy=lambda name: desk.dataset(name).table)


def _title_charge(desk: Desk, words: Words) -> str:
    plan = _plan(desk, words)
    return f"charge the plan {plan.name!r} to {words['dataset']} as one, ε {plan.price().together:.4g}"


def _opinion(words: Words) -> Any:
    from sfumato.governance import opinion_of
    from sfumato.governance.settings import parse_settings

    return opinion_of(parse_settings(words["settings"], words["form"]))


def _title_record(desk: Desk, words: Words) -> str:
    found, ledger = _opinion(words), desk.dataset(words["dataset"]).ledger
    counted = counted_event(found.event, ledger.budget, relation=found.relation, unit=found.unit)
    closes = "; it does not fit, and closes the ledger" if ledger.state.take(counted) is None else ""
    return f"put on record: {words['purpose']}, of {words['dataset']}, ε {found.epsilon:.4g}{closes}"


def _record(desk: Desk, officers: Officers, words: Words, _: str) -> None:
    found, ledger = _opinion(words), desk.dataset(words["dataset"]).ledger
    ledger.record(found.event, purpose=words["purpose"], relation=found.relation, unit=found.unit)


def _title_add(desk: Desk, words: Words) -> str:
    _check_role(words["role"])
    with desk.database.read() as connection:
        accounts.check_free(connection, words["name"])
    return f"add {words['name']}, {words['role']}, in the team {_team(desk, words['team'])}"


def _add(desk: Desk, officers: Officers, words: Words, password: str) -> None:
    _check_role(words["role"])
    stored = accounts.hashed(password)
    with desk.database.write() as connection:
        accounts.add(connection, words["name"], role=words["role"], team=words["team"], stored=stored)


def _check_role(role: str) -> None:
    """Officers are made at the command line: one who could make another would be four eyes."""
    if role == Role.OFFICER:
        raise Refused("expected an analyst or a reader; officers are added with: sfumato desk user add")


def _team(desk: Desk, team: str) -> str:
    held = [f"ε {one.epsilon:g} of {one.dataset}" for one in grants.of_team(desk, team) if one.shares]
    return f"{team}, which may spend {', '.join(held)}" if held else f"{team}, which may spend nothing now"


def _password(desk: Desk, officers: Officers, words: Words, password: str) -> None:
    _account(desk, words)
    stored = accounts.hashed(password)
    with desk.database.write() as connection:
        accounts.set_password(connection, words["account"], stored)


def _open(desk: Desk, officers: Officers, words: Words, _: str) -> None:
    _account(desk, words)
    with desk.database.write() as connection:
        accounts.close(connection, words["account"], disabled=False)


def _account(desk: Desk, words: Words) -> str:
    """Describe an account that officers may change."""
    with desk.database.read() as connection:
        row = accounts.of_no_officer(connection, words["account"])
    return f"{row.name}, {row.role}, of the team {_team(desk, row.team)}"


ACTS: Mapping[str, Act] = {
    "approve": Act(
        title=_title_approve, do=lambda desk, officers, words, _: approve(desk, officers, words["request"])
    ),
    "aside": Act(title=_title_aside, do=_aside),
    "charge": Act(
        title=_title_charge,
        do=lambda desk, officers, words, _: _plan(desk, words).charge(desk.dataset(words["dataset"]).ledger),
    ),
    "record": Act(title=_title_record, do=_record),
    "add": Act(title=_title_add, do=_add, password=True),
    "password": Act(
        title=lambda desk, words: f"give a new password to {_account(desk, words)}", do=_password, password=True
    ),
    "open": Act(
        title=lambda desk, words: f"open the account of {_account(desk, words)} again",
        do=_open,
    ),
    "reset": Act(
        title=lambda desk, words: "begin with one tick for each kind of question again",
        do=lambda desk, officers, words, _: desk.pace.reset(),
    ),
}
"""Every act of an officer that spends, closes or hands over a budget, or lets time tell of rows anew."""
