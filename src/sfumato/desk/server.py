"""The application (routers behind one gate, errors as one sentence) and the process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from sfumato import __version__
from sfumato.desk import api, asking, gate, pages, planner, trail
from sfumato.desk.asking import NoAllocation, Unanswered, answer_all, charge_all
from sfumato.desk.desk import Busy, Desk
from sfumato.desk.gate import Shield, Stopped
from sfumato.desk.limits import Crowded, is_within, network_of
from sfumato.errors import BudgetExceeded, InvalidInput, Refused, SfumatoError
from sfumato.query import QueryRefused

SLOWEST_REQUEST = 15
"""Seconds in which the whole of a request must have come, and for which a connection may be idle."""
MOST_CONNECTIONS, MOST_OF_ONE = 800, 250
"""In all, below the 1,024 files that a process may usually have open; and of one client."""
_WARM_AFTER = 0.5  # seconds, so that the first page does not wait for the tables
_STATUS: dict[type[SfumatoError], int] = {
    Busy: 503,
    NoAllocation: 403,
    Unanswered: 503,
    BudgetExceeded: 409,
    QueryRefused: 422,
    InvalidInput: 422,
    Refused: 409,
}
_private_log = logging.getLogger("sfumato.private.desk")


# The application


def create_app(desk: Desk) -> Shield:
    """Return the desk as an ASGI application, in its shield; the desk is closed with it."""
    app = FastAPI(
        title=desk.settings.name,
        version=__version__,
        description="Statistics under a privacy budget. Send `Authorization: Bearer TOKEN`.",
        dependencies=[Depends(gate.gate)],
        openapi_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,
    )
    app.state.desk = desk
    for dataset in desk.each():
        dataset.served_by(charge_all, answer_all)
    for router in (api.router, pages.router, planner.router):
        app.include_router(router)
    gate.table_of(app)  # raises for a route that does not say who may use it
    for kind in (Stopped, SfumatoError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _told)
    return Shield(app, desk)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    desk: Desk = app.state.desk
    later = asyncio.get_running_loop().call_later
    warming = [later(_WARM_AFTER, dataset.warm) for dataset in desk.each()]
    counting = asyncio.create_task(_write_counts(desk))
    yield
    counting.cancel()
    for one in warming:  # of a desk that ends before it begins
        one.cancel()
    desk.close()


async def _write_counts(desk: Desk) -> None:
    while True:
        await asyncio.sleep(trail.COUNTED_FOR)
        desk.counted.write()


def _told(request: Request, error: Any) -> Response:
    """Answer an error with one sentence: refusals that follow from public facts, and nothing of others."""
    program = request.scope["path"].startswith(gate.API)
    headers: dict[str, str] = {}
    more: dict[str, Any] = {}
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 0)
    sentence = str(error)
    if isinstance(error, Stopped | Crowded):
        status = error.status if isinstance(error, Stopped) else 429
        headers = {} if error.seconds is None else {"retry-after": f"{math.ceil(error.seconds)}"}
        if status == 401 and program:
            headers["www-authenticate"] = "Bearer"
    elif isinstance(error, BudgetExceeded):
        more = {"epsilon_left": error.epsilon_left}
    elif isinstance(error, QueryRefused):
        sentence, more = error.reason, {"nearest": error.nearest or None}
    elif isinstance(error, RequestValidationError):  # the part of a path or query, without its value
        first, status = error.errors()[0], 422
        sentence = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        words = {404: "there is no such page", 405: "this page takes no such request"}
        sentence = words.get(status, "this request cannot be read")
    elif not status:
        _private_log.error("a request failed", exc_info=error)
        status = 503 if isinstance(error, SfumatoError) else 500
        sentence = "this does not work now; tell an officer the time of day"
    if program:
        return JSONResponse({"error": sentence, **more}, status_code=status, headers=headers)
    page = pages.error_page(request, status, sentence)
    page.headers.update(headers)
    return page


# The process


class ImpatientProtocol(H11Protocol):
    """Closes a connection on which no whole request, head and body, comes in time.

    A connection is busy while the desk works on a whole request, and idle else: while a request is incomplete,
    and while an answer is not taken. Where there are too many, of one client or in all, the one of them that
    has been idle longest is closed for a new one; if all are busy, the new one is. A proxy is many clients.
    """

    _waiting: asyncio.TimerHandle | None = None
    _since = 0.0
    _network = ""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since, host = self.loop.time(), self.client[0] if self.client else ""
        self._network = network_of(host)
        open_now = [one for one in self.connections if isinstance(one, ImpatientProtocol)]
        mine = [one for one in open_now if one._network == self._network]
        if len(open_now) > MOST_CONNECTIONS:
            self._make_room(open_now)
        elif len(mine) > MOST_OF_ONE and not is_within(host, self.config.forwarded_allow_ips):
            self._make_room(mine)
        self._watch()

    def _make_room(self, among: list[ImpatientProtocol]) -> None:
        idle = [one for one in among if one is not self and not one._busy()]
        gone = min(idle, key=lambda one: one._since, default=self)
        gone.connections.discard(gone)  # it is closed a little later
        gone.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()
        self._watch()  # the next request may have begun

    def _busy(self) -> bool:
        now = self.cycle
        return now is not None and not (now.more_body or now.response_complete or self.flow.write_paused)

    def _watch(self) -> None:
        if self._busy():
            self._rest()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(SLOWEST_REQUEST, self._give_up)

    def _rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if not self._busy():
            self.transport.close()


class _Server(uvicorn.Server):
    """Calls `ready` with its port as soon as it listens."""

    def __init__(self, config: uvicorn.Config, ready: Any) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready(self.servers[0].sockets[0].getsockname()[1])


def serve(place: Path, *, host: str, port: int, ready: Any, jobs: bool = True) -> None:
    """Serve a desk until it is stopped; `ready` is called with the port when the first page can be had."""
    desk = Desk.open(place)
    desk.finish()
    asking.finish(desk)
    with _worker(place) if jobs else contextlib.nullcontext():
        server_of(desk, host=host, port=port, ready=ready).run()


def server_of(desk: Desk, *, host: str, port: int, ready: Any) -> uvicorn.Server:
    """Return the server of a desk, which is closed with it."""
    proxies = list(desk.settings.proxies)
    config = uvicorn.Config(
        create_app(desk),
        host=host,
        port=port,
        http=ImpatientProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=SLOWEST_REQUEST,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=32 * 1024,
    )
    return _Server(config, ready)


@contextmanager
def _worker(place: Path) -> Iterator[None]:
    """Run a process for jobs; it ends with this one, and another begins if it ends before."""
    stopping = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        while not stopping.is_set():
            words = [sys.executable, "-m", "sfumato.desk.runner", str(place)]
            running[:] = [subprocess.Popen(words, stdin=subprocess.PIPE)]
            running[0].wait()
            stopping.wait(1.0)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        for process in running:
            process.kill()  # its runner sees the end of its input; the job goes on when the desk is up again
        thread.join(10)
