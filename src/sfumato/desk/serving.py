"""The server process: uvicorn around the application, a worker process for jobs beside it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sfumato.desk import asking
from sfumato.desk.app import create_app
from sfumato.desk.desk import Desk
from sfumato.desk.throttle import is_within, network_of

SLOWEST_REQUEST = 15
"""Seconds in which the whole of a request must have come, and for which a connection may be idle."""
MOST_CONNECTIONS, MOST_OF_ONE = 800, 250
"""In all, below the 1,024 files that a process may usually have open; and of one client."""


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
    """Says where it is as soon as it is there."""

    def __init__(self, config: uvicorn.Config, ready: Any) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            self._ready(port)


def serve(place: Path, *, host: str, port: int, ready: Any, jobs: bool = True) -> None:
    """Serve a desk until it is stopped.

    Args:
        place: The settings file.
        host: The address to listen at.
        port: The port; 0 for any that is free.
        ready: Called with the port when the first page can be had.
        jobs: Whether to run jobs too.
    """
    desk = Desk.open(place)
    desk.finish()
    asking.finish(desk)
    with _worker(place) if jobs else _nobody():
        server_of(desk, host=host, port=port, ready=ready).run()


def server_of(desk: Desk, *, host: str, port: int, ready: Any) -> uvicorn.Server:
    """The server of a desk, which is closed with it; otherwise as `serve`."""
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
    """A process that runs jobs; it ends with this one, and another begins if it ends before."""
    stopping = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        while not stopping.is_set():
            words = [sys.executable, "-m", "sfumato.desk.keeper", str(place)]
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


@contextmanager
def _nobody() -> Iterator[None]:
    yield
