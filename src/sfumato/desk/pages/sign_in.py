"""Signing in and out, the own account, and where each role begins."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from sfumato.desk import accounts, grants, sessions
from sfumato.desk import database as db
from sfumato.desk.accounts import Account, Role
from sfumato.desk.desk import Desk
from sfumato.desk.gate import Stopped, address_of, allow, everybody
from sfumato.desk.pages.page import Fields, Number, Page, account_of, desk_of, go, render, whole
from sfumato.desk.throttle import Crowded, Turns
from sfumato.errors import InvalidInput, Refused

router = APIRouter()
PAGE = Page(router=router)
EVERY_ROLE = tuple(Role)
HASHING = Turns(at_once=2, of_one=6)  # each takes 64 MiB and some hundredths of a second
BROWSER, BROWSER_KEPT = "desk_browser", 180 * 24 * 3600
HOME = {Role.OFFICER: "/requests", Role.ANALYST: "/ask", Role.READER: "/public"}


@router.get("/")
@everybody()
def home(request: Request) -> RedirectResponse:
    account: Account | None = request.state.account
    return go("/public" if account is None else HOME[account.role])


@router.get("/sign-in")
@everybody()
def form(request: Request) -> HTMLResponse:
    return _form(request)


def _form(request: Request, *, status: int = 200, sentence: str = "", name: str = "") -> HTMLResponse:
    desk = desk_of(request)
    visit = request.cookies.get(sessions.VISIT) or secrets.token_urlsafe(24)
    page = render(
        request,
        "sign_in.html",
        status=status,
        sentence=sentence,
        name=name,
        word=desk.visits.word(visit),
        openid=desk.settings.openid is not None,
    )
    page.set_cookie(
        sessions.VISIT, visit, httponly=True, samesite="strict", secure=desk.settings.secure, max_age=3600
    )
    return page


@router.post("/sign-in")
@everybody()
async def sign_in(request: Request, fields: Fields) -> Response:
    """A wrong name and a wrong password are told apart by nothing; too many make the next one wait."""
    client = address_of(request)
    if not desk_of(request).strangers.take(client):
        raise Stopped(429, "too many people try to sign in from here; wait a minute", seconds=60)
    return await HASHING.run(client, _sign_in, request, fields)


def _sign_in(request: Request, fields: dict[str, str]) -> Response:
    desk = desk_of(request)
    name, password = fields.get("name", ""), fields.get("password", "")
    try:
        found = accounts.signs_in(
            desk.database, desk.tries, name, password, browser=request.cookies.get(BROWSER)
        )
    except Crowded as error:
        page = _form(request, status=429, sentence=str(error), name=name)
        page.headers["retry-after"] = f"{math.ceil(error.seconds)}"
        return page
    if found is None:
        return _form(request, status=401, sentence="the name or the password is wrong", name=name)
    response = begin_session(request, desk, found[0])
    secure = desk.settings.secure
    response.set_cookie(
        BROWSER,
        found[1],
        httponly=True,
        samesite="strict",
        secure=secure,
        max_age=BROWSER_KEPT,
        path="/sign-in",
    )
    return response


def begin_session(request: Request, desk: Desk, account: Account) -> Response:
    """A new secret for the browser, whatever it came with."""
    request.state.account = account
    with desk.database.write() as connection:
        secret = sessions.begin(connection, account, before=request.cookies.get(sessions.COOKIE))
    response = go(HOME[account.role])
    response.set_cookie(
        sessions.COOKIE, secret, httponly=True, samesite="lax", secure=desk.settings.secure, path="/"
    )
    response.delete_cookie(sessions.VISIT)
    return response


@router.post("/sign-out")
@allow(*EVERY_ROLE, alone="ends the own session")
def sign_out(request: Request) -> Response:
    with desk_of(request).database.write() as connection:
        sessions.end(connection, request.cookies[sessions.COOKIE])
    response = go("/sign-in")
    response.delete_cookie(sessions.COOKIE)
    return response


@router.get("/account")
@allow(*EVERY_ROLE)
def account(request: Request) -> HTMLResponse:
    return _account(request)


def _account(request: Request, *, token: str | None = None, said: str = "", status: int = 200) -> HTMLResponse:
    desk, me = desk_of(request), account_of(request)
    mine = db.tokens.c.account == me.id
    with desk.database.read() as connection:
        tokens = connection.execute(
            select(db.tokens)
            .join(db.accounts, db.accounts.c.id == db.tokens.c.account)
            .where(mine, db.tokens.c.revoked.is_(False), accounts.of_now(db.tokens))
            .order_by(db.tokens.c.id)
        ).all()
    allocations = grants.of_team(desk, me.team) if me.role is Role.ANALYST else []
    allocations = [one for one in allocations if one.shares]
    values = {"tokens": tokens, "allocations": allocations, "token": token, "said": said}
    return render(request, "account.html", status=status, **values)


@router.post("/account/password")
@allow(*EVERY_ROLE, alone="the own password, for the old one")
async def change_password(request: Request, fields: Fields) -> Response:
    return await HASHING.run(f"account {account_of(request).id}", _change_password, request, fields)


def _change_password(request: Request, fields: dict[str, str]) -> Response:
    desk, me = desk_of(request), account_of(request)
    own = f"change\n{me.id}"  # no name has a line's end
    fits = accounts.signs_in(desk.database, desk.tries, me.name, fields.get("old", ""), counted_as=own)
    if fits is None:
        return _account(request, said="the old password is wrong", status=403)
    stored, epoch = accounts.hashed(fields.get("new", "")), fits[0].epoch
    with desk.database.write() as connection:
        if not accounts.set_password(connection, me.id, stored, epoch=epoch):
            raise Refused("expected the password that the account has now; it was changed meanwhile")
    return begin_session(request, desk, replace(me, epoch=epoch + 1))


@router.post("/account/tokens")
@allow(Role.ANALYST)
def add_token(request: Request, fields: Fields) -> HTMLResponse:
    desk, me = desk_of(request), account_of(request)
    grant = whole(fields, "grant")
    if grant not in {one.id for one in grants.of_team(desk, me.team) if one.shares}:
        raise InvalidInput("expected an allocation of your team that is set aside")
    with desk.database.write() as connection:
        token = accounts.add_token(connection, me, purpose=fields.get("purpose", ""), grant=grant)
    return _account(request, token=token)


@router.post("/account/tokens/{number}/revoke")
@allow(*EVERY_ROLE, alone="takes an own token back")
def revoke(request: Request, number: Number) -> Response:
    mine = (db.tokens.c.id == number) & (db.tokens.c.account == account_of(request).id)
    with desk_of(request).database.write() as connection:
        connection.execute(db.tokens.update().where(mine).values(revoked=True))
    return go("/account")
