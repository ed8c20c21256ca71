"""The gate of every route, and the shield around the application.

Each route says who may pass, and one that does not say so is not served. Programs come with a token
(Authorization: Bearer …) and may use /api only; browsers come with a cookie and may use pages only. So no page
of another site can make a browser use the API, and every form that changes something carries a word of its
session.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts

from sfumato.desk import accounts, trail
from sfumato.desk.accounts import Account, Role, Session
from sfumato.desk.decisions import ACTS
from sfumato.desk.desk import Desk
from sfumato.desk.limits import network_of

_F = TypeVar("_F", bound=Callable[..., Any])
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = ("GET", "HEAD")
MOST_FIELDS = 1000
LARGEST_BODY = 256 * 1024
API, STATIC = "/api/", "/static/"
TOO_MANY = "expected fewer requests a minute from here; wait a moment"
_KINDS = re.compile(rb'application/(json|x-www-form-urlencoded)(; ?charset="?utf-8"?)?', re.IGNORECASE)
"""Of bodies. Others, and other encodings, are refused unread: parsing some takes seconds."""
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Stopped(Exception):
    """A request that goes no further, with the status and the sentence of its answer."""

    def __init__(self, status: int, sentence: str, *, seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.seconds = seconds


# Access to routes


@dataclass(frozen=True)
class Access:
    """The roles that may use a route, or all visitors.

    `act` is the act of an officer there, by its name in the table of acts; `alone` the reason why an officer
    who changes something there needs no second one.
    """

    roles: frozenset[Role]
    everybody: bool = False
    act: str | None = None
    alone: str | None = None


def allow(*roles: Role, act: str | None = None, alone: str | None = None) -> Callable[[_F], _F]:
    """Mark a route as for these roles; where officers change something, with the act, or why it is none."""
    return _marked(Access(frozenset(roles), act=act, alone=alone))


def everybody() -> Callable[[_F], _F]:
    """Mark a route as for all visitors, signed in or not."""
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
    """Return the access to every route; raise for a route without one, or of officers without an act."""
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


# The gate


def effort(request: Request) -> AbstractContextManager[None]:
    """Run something long in this thread, within the account's limit of computing; 429 beyond it."""
    return effort_of(request.app.state.desk, request.state.account)


@contextmanager
def effort_of(desk: Desk, account: Account, *, alone: bool = True) -> Iterator[None]:
    """The same for an account; `alone` limits the number of threads."""
    key = f"account {account.id}"
    if not desk.effort.begin(key, alone=alone):
        raise Stopped(429, "expected less to compute at once; wait a moment", seconds=30)
    began = time.thread_time()
    try:
        yield
    finally:
        desk.effort.end(key, time.thread_time() - began)


def address_of(request: Request) -> str:
    """Return the network that a request comes from, as limits count it."""
    return network_of(request.client.host if request.client else "")


def _names_an_account(scope: Scope) -> bool:
    """Return whether a request comes with a token or a session, be it right or wrong."""
    cookie = f"{accounts.COOKIE}=".encode()
    return any(
        name == b"authorization" or (name == b"cookie" and cookie in value) for name, value in scope["headers"]
    )


async def gate(request: Request) -> None:
    """Find the account of a request, and stop it if its route is not for that. Runs before every route."""
    desk: Desk = request.app.state.desk
    access = access_of(request.scope["route"])
    request.state.account = request.state.session = None
    await _authenticate(request, desk)
    account: Account | None = request.state.account
    if account is not None and not desk.buckets.take(f"account {account.id}"):
        raise Stopped(429, "expected fewer requests a minute; wait a moment", seconds=5)
    if account is None and _names_an_account(request.scope) and not desk.guesses.take(address_of(request)):
        raise Stopped(429, TOO_MANY, seconds=30)
    if access.everybody:
        return
    if account is None:
        raise Stopped(401, "expected a token that is valid, or a session; sign in again")
    if account.role not in access.roles:
        raise Stopped(403, f"this is not for the role {account.role}; ask an officer")


async def _authenticate(request: Request, desk: Desk) -> None:
    if request.scope["path"].startswith(API):
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token:
            request.state.account = await asyncio.to_thread(_by_token, desk, token.strip())
        return
    cookie = request.cookies.get(accounts.COOKIE)
    asleep = request.headers.get("x-desk-refresh") is not None
    session = None
    if cookie:
        session = await asyncio.to_thread(accounts.find_session, desk.database, cookie, asleep=asleep)
    if request.method not in SAFE:
        await _check_form(request, desk, session)
    if session is not None:
        request.state.session, request.state.account = session, session.account


def _by_token(desk: Desk, token: str) -> Account | None:
    with desk.database.read() as connection:
        return accounts.by_token(connection, token)


async def _check_form(request: Request, desk: Desk, session: Session | None) -> None:
    """Refuse a form that comes from no page of ours: by the browser's own headers, and by a word in the form.

    Our pages send no referrer, and browsers then call the origin of their forms "null".
    """
    host, site = request.headers.get("host", ""), request.headers.get("sec-fetch-site")
    own = (None, "null", desk.settings.address or "", f"http://{host}", f"https://{host}")
    foreign = request.headers.get("origin") not in own or site in ("cross-site", "same-site")
    body, limit = await request.body(), f"expected a form in UTF-8 with at most {MOST_FIELDS} fields"
    try:
        fields = urllib.parse.parse_qsl(body.decode(), True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:  # among them one of decoding
        raise Stopped(400, limit) from None
    request.state.form = dict(fields)
    word = request.state.form.get("csrf", "")
    if session is not None:
        fits = hmac.compare_digest(word.encode(), session.csrf.encode())
    else:
        fits = desk.visits.fits(request.cookies.get(accounts.VISIT), word)
    if foreign or not fits:
        raise Stopped(403, "this form is no longer valid; go back, load the page again and repeat")


# The shield


class TooMuch(Exception):
    """A body that is larger than any form of ours."""


class Shield:
    """Counts a request, and reads the whole of it; sets headers; writes the trail before an answer leaves.

    Args:
        inner: The application.
        desk: The desk whose trail is written.
    """

    def __init__(self, inner: Application, desk: Desk) -> None:
        self.inner, self.desk = inner, desk
        secure = {"strict-transport-security": "max-age=31536000"} if desk.settings.secure else {}
        self._headers = {**_HEADERS, **secure}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        scope["state"] = {**scope.get("state", {})}
        answer = self._answering(scope, send)
        limit = self.desk.arrivals if _names_an_account(scope) else self.desk.visitors
        if not limit.take(address_of(Request(scope))):
            await _refuse(answer, 429, TOO_MANY)
            return
        try:
            body = await _whole(scope, receive)
        except TooMuch:
            await _refuse(answer, 413, f"expected at most {LARGEST_BODY} bytes")
            return
        if body is None:
            return  # the client left before the request was complete
        kinds = [value for name, value in scope["headers"] if name == b"content-type"]
        if body and not all(map(_KINDS.fullmatch, kinds)):
            await _refuse(answer, 415, "expected a form, as a page sends it, or JSON, each in UTF-8")
            return
        await self.inner(scope, _again(body, receive), answer)

    def _answering(self, scope: Scope, send: Send) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                line = self._line(scope, message["status"])
                if line is not None:  # written also for an asker who left meanwhile
                    await asyncio.shield(asyncio.wrap_future(trail.record(self.desk.database, **line)))
                own = [(name.encode(), value.encode()) for name, value in self._headers.items()]
                given = [pair for pair in message.get("headers", []) if pair[0].decode() not in self._headers]
                message = {**message, "headers": [*given, *own]}
            await send(message)

        return answer

    def _line(self, scope: Scope, status: int) -> dict[str, Any] | None:
        """Return a line of the trail about a request; None where it has none, or is counted only."""
        route = getattr(scope.get("route"), "path", None) or "unknown"
        if route.startswith(STATIC):
            return None
        account = scope["state"].get("account")
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
        if account is None or status == 429:  # a flood does not fill the disk
            self.desk.counted.add(None if account is None else account.name, method, route, status)
            return None
        numbers = {name: value for name, value in scope.get("path_params", {}).items() if type(value) is int}
        told = {"method": method, "route": route, "numbers": numbers, "status": status}
        return {"who": account.name, "role": str(account.role), **told}


async def _whole(scope: Scope, receive: Receive) -> bytes | None:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit() or int(length[:20]) > LARGEST_BODY:
        raise TooMuch
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise TooMuch
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body first."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def first_the_body() -> Message:
        return messages.pop() if messages else await receive()

    return first_the_body


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 429:
        headers.append((b"retry-after", b"30"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
