"""Around the application: how many, how large and of which kind requests may be, browsers' rules, the trail."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sfumato.desk import gate, trail
from sfumato.desk.desk import Desk

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 256 * 1024
_KINDS = re.compile(rb'application/(json|x-www-form-urlencoded)(; ?charset="?utf-8"?)?', re.IGNORECASE)
"""Of bodies. Everything else, and every other encoding, is refused unread: parsing some takes seconds."""

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
STATIC = "/static/"


class TooMuch(Exception):
    """A body that is larger than any form of ours."""


class Shield:
    """Counts a request, reads the whole of it; sets headers; writes the trail before an answer leaves.

    Args:
        inner: The application.
        desk: Whose trail is written.
    """

    def __init__(self, inner: Application, desk: Desk) -> None:
        self.inner = inner
        self.desk = desk
        self._headers = dict(_HEADERS)
        if desk.settings.secure:
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.inner(scope, receive, send)
        scope["state"] = {**scope.get("state", {})}
        answer = self._answering(scope, send)
        if not gate.admits(self.desk, scope):
            return await _refuse(answer, 429, gate.TOO_MANY)
        try:
            body = await _whole(scope, receive)
        except TooMuch:
            return await _refuse(answer, 413, f"expected at most {LARGEST_BODY} bytes")
        if body is None:
            return None  # gone before it was all said
        kinds = [value for name, value in scope["headers"] if name == b"content-type"]
        if body and not all(map(_KINDS.fullmatch, kinds)):
            return await _refuse(answer, 415, "expected a form, as a page sends it, or JSON, each in UTF-8")
        await self.inner(scope, _again(body, receive), answer)
        return None

    def _answering(self, scope: Scope, send: Send) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                line = self._line(scope, message["status"])
                if line is not None:  # written also for an asker who went away meanwhile
                    await asyncio.shield(asyncio.wrap_future(trail.record(self.desk.database, **line)))
                own = [(name.encode(), value.encode()) for name, value in self._headers.items()]
                given = [pair for pair in message.get("headers", []) if pair[0].decode() not in self._headers]
                message = {**message, "headers": [*given, *own]}
            await send(message)

        return answer

    def _line(self, scope: Scope, status: int) -> dict[str, Any] | None:
        """A line of the trail about a request; None where it has none, or is counted only."""
        route = getattr(scope.get("route"), "path", None) or "unknown"
        if route.startswith(STATIC):
            return None
        account = scope["state"].get("account")
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
        if account is None or status == 429:  # a flood does not fill the disk
            self.desk.counted.add(None if account is None else account.name, method, route, status)
            return None
        params = scope.get("path_params", {})
        return {
            "who": account.name,
            "role": str(account.role),
            "method": method,
            "route": route,
            "numbers": {name: value for name, value in params.items() if isinstance(value, int)},
            "status": status,
        }


async def _whole(scope: Scope, receive: Receive) -> bytes | None:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit() or int(length[:20]) > LARGEST_BODY:
        raise TooMuch
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            raise TooMuch
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    told = False

    async def first_the_body() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return first_the_body


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 429:
        headers.append((b"retry-after", b"30"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
