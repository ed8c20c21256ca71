"""One gate for every route: each says who may pass, and one that does not say so is not served.

Programs come with a token (Authorization: Bearer …) and may use /api only; browsers come with a cookie and may
use pages only. So no page of another site can make a browser use the API, and every form that changes something
carries the session's word.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import urllib.parse
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts

from sfumato.desk import accounts, sessions
from sfumato.desk.accounts import Account, Role
from sfumato.desk.acts import ACTS
from sfumato.desk.desk import Desk
from sfumato.desk.throttle import network_of

_F = TypeVar("_F", bound=Callable[..., Any])
SAFE = ("GET", "HEAD")
MOST_FIELDS = 1000
API = "/api/"


class Stopped(Exception):
    """A request that goes no further.

    Args:
        status: The HTTP status.
        sentence: What the asker is told.
    """

    def __init__(self, status: int, sentence: str, *, seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.seconds = seconds


@dataclass(frozen=True)
class Access:
    """Who may use a route: some roles, or everybody.

    Attributes:
        roles: The roles.
        everybody: Whether all may, signed in or not.
        act: What an officer does there, by its name in the table of acts.
        alone: Why an officer who changes something there needs no second one.
    """

    roles: frozenset[Role]
    everybody: bool = False
    act: str | None = None
    alone: str | None = None

    def allows(self, role: Role | None) -> bool:
        return self.everybody or role in self.roles


def allow(*roles: Role, act: str | None = None, alone: str | None = None) -> Callable[[_F], _F]:
    """Mark a route as for these roles; where officers change something, with the act, or why it is none."""
    return _marked(Access(frozenset(roles), act=act, alone=alone))


def everybody() -> Callable[[_F], _F]:
    """Mark a route as for anybody, signed in or not."""
    return _marked(Access(frozenset(), everybody=True))


def _marked(access: Access) -> Callable[[_F], _F]:
    def mark(function: _F) -> _F:
        function.desk_access = access  # type: ignore[attr-defined]
        return function

    return mark


def access_of(route: APIRoute) -> Access:
    found: Access = route.endpoint.desk_access  # type: ignore[attr-defined]
    return found


def table_of(app: FastAPI) -> dict[tuple[str, str], Access]:
    """Every route with who may use it; raises for one that does not say, or not what an officer does there."""
    found = {}
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if not isinstance(route, APIRoute):
            raise TypeError(f"expected every route to go through the gate, got {route}")
        access = access_of(route)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            changes = method not in SAFE and Role.OFFICER in access.roles
            if changes and (access.act in ACTS) == (access.alone is not None):
                raise TypeError(
                    f"expected an act of the table for {route.path}, or why an officer may do it alone"
                )
            found[method, route.path] = access
    return found


def effort(request: Request) -> AbstractContextManager[None]:
    """Compute something long in this thread, within what the account may have computed; 429 beyond it."""
    return effort_of(request.app.state.desk, request.state.account)


@contextmanager
def effort_of(desk: Desk, account: Account, *, alone: bool = True) -> Iterator[None]:
    """The same of an account; not `alone`, as many such things at once as come."""
    key = f"account {account.id}"
    if not desk.effort.begin(key, alone=alone):
        raise Stopped(429, "expected less to compute at once; wait a moment", seconds=30)
    began = time.thread_time()
    try:
        yield
    finally:
        desk.effort.end(key, time.thread_time() - began)


def address_of(request: Request) -> str:
    """Where a request comes from, as limits count it."""
    return network_of(request.client.host if request.client else "")


TOO_MANY = "expected fewer requests a minute from here; wait a moment"


def admits(desk: Desk, scope: MutableMapping[str, Any]) -> bool:
    """Count a request against what may come from its address, before anything else is done with it."""
    limit = desk.arrivals if _names_an_account(scope) else desk.visitors
    return limit.take(address_of(Request(scope)))


def _names_an_account(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request comes with a token or a session, be it right or wrong."""
    cookie = f"{sessions.COOKIE}=".encode()
    return any(
        name == b"authorization" or (name == b"cookie" and cookie in value) for name, value in scope["headers"]
    )


async def gate(request: Request) -> None:
    """Find out who asks, and stop what is not allowed. Runs before every route."""
    desk: Desk = request.app.state.desk
    access = access_of(request.scope["route"])
    request.state.account = request.state.session = None
    await _who(request, desk)
    account: Account | None = request.state.account
    if account is not None and not desk.buckets.take(f"account {account.id}"):
        raise Stopped(429, "expected fewer requests a minute; wait a moment", seconds=5)
    if account is None and _names_an_account(request.scope) and not desk.guesses.take(address_of(request)):
        raise Stopped(429, TOO_MANY, seconds=30)
    if access.everybody:
        return
    if account is None:
        raise Stopped(401, "expected a token that is valid, or somebody signed in; sign in again")
    if not access.allows(account.role):
        raise Stopped(403, f"this is not for the role {account.role}; ask an officer")


async def _who(request: Request, desk: Desk) -> None:
    if request.scope["path"].startswith(API):
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token:
            request.state.account = await asyncio.to_thread(_by_token, desk, token.strip())
        return
    cookie = request.cookies.get(sessions.COOKIE)
    asleep = request.headers.get("x-desk-refresh") is not None
    session = None
    if cookie:
        session = await asyncio.to_thread(sessions.find, desk.database, cookie, asleep=asleep)
    if request.method not in SAFE:
        await _check_form(request, desk, session)
    if session is not None:
        request.state.session, request.state.account = session, session.account


def _by_token(desk: Desk, token: str) -> Account | None:
    with desk.database.read() as connection:
        return accounts.by_token(connection, token)


async def _check_form(request: Request, desk: Desk, session: sessions.Session | None) -> None:
    """A form must come from a page of ours: by the browser's own word, and by a word in the form.

    Our pages send no referrer, and browsers then call the origin of their forms "null".
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    foreign = origin not in (None, "null", *_own_origins(request, desk)) or site in ("cross-site", "same-site")
    request.state.form = _form(await request.body())
    word = request.state.form.get("csrf", "")
    if session is not None:
        fits = hmac.compare_digest(word.encode(), session.csrf.encode())
    else:
        fits = desk.visits.fits(request.cookies.get(sessions.VISIT), word)
    if foreign or not fits:
        raise Stopped(403, "this form is no longer valid; go back, load the page again and repeat")


def _form(body: bytes) -> dict[str, str]:
    """The fields of a form, each once."""
    try:
        return dict(urllib.parse.parse_qsl(body.decode(), True, errors="strict", max_num_fields=MOST_FIELDS))
    except ValueError:  # among them one of decoding
        raise Stopped(400, f"expected a form in UTF-8 with at most {MOST_FIELDS} fields") from None


def _own_origins(request: Request, desk: Desk) -> tuple[str, ...]:
    host = request.headers.get("host", "")
    return (desk.settings.address or "", f"http://{host}", f"https://{host}")
