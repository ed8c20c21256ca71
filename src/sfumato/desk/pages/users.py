"""Accounts, as officers manage them. Passwords and tokens are shown once.

Officers are made, and get new passwords, at the command line only: otherwise one of them could be four eyes.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import Connection, select

from sfumato.desk import accounts
from sfumato.desk import database as db
from sfumato.desk.accounts import Role, Secrets
from sfumato.desk.gate import allow
from sfumato.desk.pages.page import Fields, Number, Page, desk_of, go, render
from sfumato.desk.people import add_person, people
from sfumato.errors import Refused

router = APIRouter()
PAGE = Page(router=router, title="Users", path="/users", roles=(Role.OFFICER,), order=80)


@router.get("/users")
@allow(Role.OFFICER)
def page(request: Request) -> HTMLResponse:
    return _page(request)


def _page(request: Request, made: Secrets | None = None, fresh: tuple[str, str] | None = None) -> HTMLResponse:
    found, roles = people(desk_of(request)), [Role.ANALYST, Role.READER]
    return render(request, "users.html", people=found, made=made, fresh=fresh, roles=roles)


@router.post("/users")
@allow(Role.OFFICER)
def add(request: Request, fields: Fields) -> HTMLResponse:
    if fields.get("role") == Role.OFFICER:
        raise Refused("expected an analyst or a reader; officers are added with: sfumato desk user add")
    made = add_person(
        desk_of(request), fields.get("name", ""), role=fields.get("role", ""), team=fields.get("team") or None
    )
    return _page(request, made=made)


@router.post("/users/{number}/close")
@allow(Role.OFFICER)
def close(request: Request, number: Number) -> Response:
    with desk_of(request).database.write() as connection:
        _refuse_officers(connection, number)
        accounts.close(connection, number)
    return go("/users")


@router.post("/users/{number}/open")
@allow(Role.OFFICER)
def open_again(request: Request, number: Number) -> Response:
    with desk_of(request).database.write() as connection:
        _refuse_officers(connection, number)
        accounts.close(connection, number, disabled=False)
    return go("/users")


def _refuse_officers(connection: Connection, number: int) -> None:
    role = connection.execute(select(db.accounts.c.role).where(db.accounts.c.id == number)).scalar()
    if role is None or role == Role.OFFICER:
        raise Refused("expected the account of an analyst or a reader; officers: sfumato desk user close")


@router.post("/users/{number}/password")
@allow(Role.OFFICER)
def password(request: Request, number: Number) -> HTMLResponse:
    """A new password for somebody who lost theirs."""
    desk = desk_of(request)
    fresh = accounts.fresh_password()
    with desk.database.write() as connection:
        _refuse_officers(connection, number)
        name = accounts.names(connection)[number]
        accounts.set_password(connection, number, fresh)
    return _page(request, fresh=(name, fresh))
