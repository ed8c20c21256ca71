"""To the provider, and back."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlalchemy import select

from sfumato.desk import accounts, openid
from sfumato.desk import database as db
from sfumato.desk.config import OpenId
from sfumato.desk.desk import Desk
from sfumato.desk.gate import Stopped, address_of, everybody
from sfumato.desk.openid import Attempt
from sfumato.desk.pages.page import Page, desk_of, go
from sfumato.desk.pages.sign_in import begin_session
from sfumato.desk.throttle import Turns

router = APIRouter()
PAGE = Page(router=router)
COOKIE = "desk_openid"
_ASKING = Turns(at_once=4, of_one=4)  # a provider that is slow holds up no more threads


def _provider(request: Request, desk: Desk) -> tuple[OpenId, str]:
    if desk.settings.openid is None:
        raise Stopped(404, "this desk has no provider to sign in with")
    if not desk.strangers.take(address_of(request)):
        raise Stopped(429, "too many people try to sign in from here; wait a minute", seconds=60)
    return desk.settings.openid, f"{desk.settings.address}/openid/back"


@router.get("/openid")
@everybody()
async def begin(request: Request) -> Response:
    return await _ASKING.run(address_of(request), _begin, request)


def _begin(request: Request) -> Response:
    desk = desk_of(request)
    provider, back = _provider(request, desk)
    attempt = Attempt.fresh()
    response = go(openid.address(provider, attempt, back=back))
    response.set_cookie(
        COOKIE, attempt.to_cookie(), httponly=True, samesite="lax", secure=desk.settings.secure, max_age=600
    )
    return response


@router.get("/openid/back")
@everybody()
async def back(request: Request, code: str = "", state: str = "") -> Response:
    """Whoever the provider names, and an account names too, is signed in."""
    return await _ASKING.run(address_of(request), _back, request, code, state)


def _back(request: Request, code: str, state: str) -> Response:
    desk = desk_of(request)
    provider, place = _provider(request, desk)
    attempt = Attempt.from_cookie(request.cookies.get(COOKIE, ""))
    found = openid.subject(provider, attempt, state=state, code=code, back=place)
    with desk.database.read() as connection:
        row = connection.execute(
            select(db.accounts).where(db.accounts.c.subject == found, db.accounts.c.disabled.is_(False))
        ).first()
    if row is None:
        raise Stopped(403, f"there is no account for {found}; ask an officer for one")
    response = begin_session(request, desk, accounts.account_of(row))
    response.delete_cookie(COOKIE)
    return response
