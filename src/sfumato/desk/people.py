"""Adding people with what they may spend, from the command line or by an officer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from sfumato.desk import accounts, grants
from sfumato.desk import database as db
from sfumato.desk.accounts import Account, Role, Secrets
from sfumato.desk.grants import Wanted
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.desk.desk import Desk


def add_person(
    desk: Desk,
    name: str,
    *,
    role: str,
    team: str | None = None,
    purpose: str = "questions",
    wanted: Wanted | None = None,
    table: str | None = None,
    subject: str | None = None,
) -> Secrets:
    """A new account with a token; with an allocation, if one is wanted, that the token then is for.

    Args:
        desk: The desk.
        name: The name to sign in with.
        role: officer, analyst or reader.
        team: The team; a team of one by default.
        purpose: What the token is for.
        wanted: The allocation to set aside.
        table: The table of the allocation.
        subject: Who they are for the OpenID provider.

    Returns:
        The account with its password and its token, which nobody can look up later.
    """
    if wanted is not None and role != Role.ANALYST:
        raise InvalidInput(f"expected role=analyst with an allocation, got role={role!r}; others do not spend")
    dataset = None if wanted is None else desk.dataset(table)
    password = accounts.fresh_password()
    stored = accounts.hashed(password)
    with desk.database.write() as connection:
        account = accounts.add(connection, name, role=role, team=team, stored=stored)
        if subject is not None:
            _link(desk, connection, account, subject)
    try:
        grant = None
        if dataset is not None and wanted is not None:
            said = f"set aside for {account.name} at the command line"
            grant = grants.give(desk, dataset, wanted, said=said)
        with desk.database.write() as connection:
            token = accounts.add_token(connection, account, purpose=purpose, grant=grant)
    except BaseException:
        with desk.database.write() as connection:
            connection.execute(db.accounts.delete().where(db.accounts.c.id == account.id))
        raise
    return Secrets(account=account, token=token, password=password)


def _link(desk: Desk, connection: Connection, account: Account, subject: str) -> None:
    """Let somebody sign in with the provider."""
    if desk.settings.openid is None:
        raise InvalidInput("expected a section [openid] in the desk's settings for --subject, got none")
    named = f"{desk.settings.openid.issuer}#{subject}"
    if connection.execute(select(db.accounts.c.id).where(db.accounts.c.subject == named)).first():
        raise InvalidInput(f"expected a subject that no account has yet, got subject={subject!r}")
    connection.execute(db.accounts.update().where(db.accounts.c.id == account.id).values(subject=named))


def people(desk: Desk) -> list[dict[str, Any]]:
    """Every account, without its secrets."""
    with desk.database.read() as connection:
        rows = connection.execute(select(db.accounts).order_by(db.accounts.c.key)).all()
    return [
        {"id": row.id, "name": row.name, "role": row.role, "team": row.team, "closed": bool(row.disabled)}
        for row in rows
    ]
