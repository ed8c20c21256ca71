"""Accounts, as officers manage them. Passwords are shown once.

Officers are made, and get new passwords, at the command line only: otherwise one of them could be four eyes.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk import accounts
from sfumato.desk.accounts import Role, checked_name
from sfumato.desk.gate import allow
from sfumato.desk.pages.page import Fields, Number, Page, desk_of, go, render, take
from sfumato.desk.people import people

router = APIRouter()
PAGE = Page(router=router, title="Users", path="/users", roles=(Role.OFFICER,), order=80)


@router.get("/users")
@allow(Role.OFFICER)
def page(request: Request) -> HTMLResponse:
    desk = desk_of(request)
    roles = [Role.ANALYST, Role.READER]
    return render(request, "users.html", people=people(desk), roles=roles, four_eyes=desk.four_eyes(None))


@router.post("/users")
@allow(Role.OFFICER, act="add")
def add(request: Request, fields: Fields) -> Response:
    name = checked_name(fields.get("name", ""))
    team = checked_name(fields.get("team") or name, "team")
    return take(request, {"name": name, "role": fields.get("role", ""), "team": team}, then="/users")


@router.post("/users/{number}/close")
@allow(Role.OFFICER, alone="takes a budget out of hands, and may be urgent")
def close(request: Request, number: Number) -> Response:
    with desk_of(request).database.write() as connection:
        accounts.of_no_officer(connection, number)
        accounts.close(connection, number)
    return go("/users")


@router.post("/users/{number}/open")
@allow(Role.OFFICER, act="open")
def open_again(request: Request, number: Number) -> Response:
    return take(request, {"account": number}, then="/users")


@router.post("/users/{number}/password")
@allow(Role.OFFICER, act="password")
def password(request: Request, number: Number) -> Response:
    """A new password for an account whose owner lost theirs."""
    return take(request, {"account": number}, then="/users")
