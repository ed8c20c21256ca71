"""Who may say how much to a coordinator: checked before Flower reads a request, or where it does not check."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """Turns a request away by its headers: of a node that is not known, or larger than any letter.

    Flower reads and parses a whole request before it asks whose it is. Whether a node has the key that it names
    is for Flower to check.
    """

    def __init__(self, application: Application, *, known: Collection[bytes], largest: int) -> None:
        self._application, self._largest = application, largest
        self._known = frozenset(base64.b64encode(key) for key in known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            refused = self._refused(scope)
            await (self._application if refused is None else refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> JSONResponse | None:
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

        headers = dict(scope["headers"])
        if headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()) not in self._known:
            return JSONResponse({"detail": "not a holder of this study"}, status_code=401)
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:  # a body in chunks may be of any length
            return JSONResponse({"detail": "the length is missing"}, status_code=411)
        if len(length) > 15 or int(length) > self._largest:
            return JSONResponse({"detail": "larger than any letter"}, status_code=413)
        return None


class OwnAnswers(BaseHTTPMiddleware):
    """Lets a node answer letters to itself only; Flower knows who asks, and does not compare."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        asked: Any = getattr(request.state, "protobuf_request", None)
        answers = getattr(asked, "messages_list", ())
        if any(answer.metadata.src_node_id != asked.node.node_id for answer in answers):
            return JSONResponse({"detail": "the answer of another node"}, status_code=403)
        return await call_next(request)
