"""Limits: tries of a password, turns at hashing, seconds of computing, requests."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from sfumato.desk import database as db
from sfumato.desk.database import Database
from sfumato.errors import Refused

_T = TypeVar("_T")
FREE_TRIES = 5
LONGEST_DELAY = 300.0
"""Seconds. Strangers can use up a name's tries for ever; a browser that signed in to it has its own."""
FORGOTTEN = 3600.0
"""Seconds after which wrong passwords no longer count: fewer tries in an hour than the delays allow."""


def network_of(host: str) -> str:
    """An address as limits count it: of IPv6 the network of one customer, who has all addresses of it.

    >>> network_of("192.0.2.7"), network_of("2001:db8::7"), network_of("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    try:
        one = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(one, ipaddress.IPv4Address):
        return str(one)
    return str(one.ipv4_mapped or ipaddress.IPv6Network((one.packed, 64), strict=False))


def is_within(host: str, networks: Iterable[str]) -> bool:
    """Whether an address is one of some, or in one of some networks."""
    try:
        one = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(one in ipaddress.ip_network(network) for network in networks)


class Crowded(Refused):
    """A request that has to come again later.

    Args:
        sentence: What the asker is told.
        seconds: When.
    """

    def __init__(self, sentence: str, *, seconds: float) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class Tries:
    """Tries of a password by account, remembered across restarts. Each counts as wrong until it was right."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def reserve(self, key: str) -> float:
        """Count a try before its password is looked at; 0, or the seconds to wait, and nothing is counted.

        One transaction: of tries at the same moment no more are let through than of tries in turn.
        """
        with self._database.write() as connection:
            now = time.time()
            row = connection.execute(select(db.failures).where(db.failures.c.key == key)).first()
            if row is not None and row.until > now:
                return float(row.until - now)
            count = 1 if row is None or row.until < now - FORGOTTEN else row.tries + 1
            over = count - FREE_TRIES
            delay = min(LONGEST_DELAY, 2.0 ** min(over, 30)) if over >= 0 else 0.0
            old = (db.failures.c.key == key) | (db.failures.c.until < now - FORGOTTEN)
            connection.execute(db.failures.delete().where(old))
            connection.execute(db.failures.insert().values(key=key, tries=count, until=now + delay))
        return 0.0

    def succeeded(self, key: str) -> None:
        """Give the tries of a key back."""
        with self._database.write() as connection:
            connection.execute(db.failures.delete().where(db.failures.c.key == key))


class Turns:
    """Turns at long work: some clients have one at once, and the others one after another.

    Args:
        at_once: How many work at once, each in a thread.
        of_one: How many requests of one client may wait for a turn; they hold no thread.
    """

    def __init__(self, *, at_once: int, of_one: int) -> None:
        self._free, self._of_one = at_once, of_one
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, client: str, work: Callable[..., _T], *words: Any) -> _T:
        """Work in a thread when it is the client's turn.

        Raises:
            Crowded: If too many requests of the client wait.
        """
        if self._free:
            self._free -= 1
        else:
            queue = self._waiting.get(client, deque())
            if len(queue) >= self._of_one:
                sentence = "expected fewer such requests from here at this moment; try again in a few seconds"
                raise Crowded(sentence, seconds=2)
            queue.append(asyncio.get_running_loop().create_future())
            self._waiting[client] = queue
            await queue[-1]
        try:
            return await run_in_threadpool(work, *words)
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            client, queue = self._waiting.popitem(last=False)
            ticket = queue.popleft()
            if queue:
                self._waiting[client] = queue  # behind all others
            if not ticket.done():
                ticket.set_result(None)
                return
        self._free += 1


class Effort:
    """Seconds of computing for each key: `size` at once and `rate` more a second, in two threads at most."""

    MOST_THREADS = 2

    def __init__(self, *, size: float, rate: float, keys: int = 10_000) -> None:
        self._size, self._rate, self._keys = size, rate, keys
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._busy: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, key: str, *, alone: bool = True) -> bool:
        """Whether more may be computed now; `end` must follow. Not `alone`: in as many threads as there are."""
        with self._lock:
            if (alone and self._busy[key] >= self.MOST_THREADS) or self._level(key) <= 0:
                return False
            self._busy[key] += 1
            return True

    def end(self, key: str, seconds: float) -> None:
        with self._lock:
            self._busy -= Counter([key])  # a key that is not busy is not kept
            self._levels[key] = (self._level(key) - seconds, time.monotonic())
            self._levels.move_to_end(key)
            if len(self._levels) > self._keys:
                self._levels.popitem(last=False)

    def _level(self, key: str) -> float:
        now = time.monotonic()
        level, seen = self._levels.get(key, (self._size, now))
        return min(self._size, level + (now - seen) * self._rate)


class Buckets:
    """Each key has `size` requests at once, and `rate` more a second; the keys longest unused are forgotten."""

    def __init__(self, *, size: float, rate: float, keys: int = 10_000) -> None:
        self._size, self._rate, self._keys = size, rate, keys
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str) -> bool:
        """Whether one more is within the limit."""
        now = time.monotonic()
        with self._lock:
            level, seen = self._levels.pop(key, (self._size, now))
            level = min(self._size, level + (now - seen) * self._rate)
            self._levels[key] = (level - 1 if level >= 1 else level, now)
            if len(self._levels) > self._keys:
                self._levels.popitem(last=False)
        return level >= 1
