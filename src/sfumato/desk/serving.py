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

from sfumato.desk.app import create_app
from sfumato.desk.desk import Desk

SLOWEST_HEADERS = 10.0
"""Seconds in which the head of a request must have come."""
MOST_CONNECTIONS = 1000


class ImpatientProtocol(H11Protocol):
    """Closes a connection on which a request begins and does not get past its headers."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        begun = self.cycle is not None and not self.cycle.response_complete
        if begun:
            self._rest()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(SLOWEST_HEADERS, self._give_up)

    def _rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
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
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=32 * 1024,
    )
    with _worker(place) if jobs else _nobody():
        _Server(config, ready).run()


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
