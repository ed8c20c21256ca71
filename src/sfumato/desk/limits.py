"""Limits: tries of a password, turns at long work, seconds of computing, requests; and ticks for answers."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from sfumato.desk import database as db
from sfumato.desk.database import Database
from sfumato.errors import Refused
from sfumato.policy import Policy
from sfumato.query.measures import Counted
from sfumato.query.pricing import Planned

_T = TypeVar("_T")
FREE_TRIES = 5
LONGEST_DELAY = 300.0
"""Seconds. Strangers can use up a name's tries for ever; a browser that signed in to it has its own."""
FORGOTTEN = 3600.0
"""Seconds after which wrong passwords no longer count: fewer tries in an hour than the delays allow."""
FEW = 1024
"""Noisy numbers whose time is not noticed."""


def network_of(host: str) -> str:
    """Return an address as limits count it: of IPv6 the network of one customer, who has all its addresses.

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
    try:
        one = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(one in ipaddress.ip_network(network) for network in networks)


class Crowded(Refused):
    """A request that has to come again in some seconds."""

    def __init__(self, sentence: str, *, seconds: float) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class Tries:
    """Tries of a password by account, remembered across restarts. Each counts as wrong until it was right."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def reserve(self, key: str) -> float:
        """Count a try before its password is compared. Return 0, or the seconds to wait: nothing is counted.

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
        with self._database.write() as connection:
            connection.execute(db.failures.delete().where(db.failures.c.key == key))


class Turns:
    """Turns at long work: some clients have one at once, the others one after another.

    `at_once` threads work; `of_one` client may wait so many requests, which hold no thread.
    """

    def __init__(self, *, at_once: int, of_one: int) -> None:
        self._free, self._of_one = at_once, of_one
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, client: str, work: Callable[..., _T], *words: Any) -> _T:
        """Call `work` in a thread when it is the client's turn; Crowded if too many of its requests wait."""
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


class Buckets:
    """A level for each key: `size` at first and at most, `rate` more a second. Old keys are forgotten."""

    def __init__(self, *, size: float, rate: float, keys: int = 10_000) -> None:
        self._size, self._rate, self._keys = size, rate, keys
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.RLock()

    def take(self, key: str) -> bool:
        """Return whether one more request is within the limit, and count it."""
        with self._lock:
            enough = self.level(key) >= 1
            self.spend(key, 1.0 if enough else 0.0)
        return enough

    def level(self, key: str) -> float:
        now = time.monotonic()
        level, seen = self._levels.get(key, (self._size, now))
        return min(self._size, level + (now - seen) * self._rate)

    def spend(self, key: str, amount: float) -> None:
        with self._lock:
            self._levels[key] = (self.level(key) - amount, time.monotonic())
            self._levels.move_to_end(key)
            if len(self._levels) > self._keys:
                self._levels.popitem(last=False)


class Effort:
    """Seconds of computing for each key, in two threads at most."""

    MOST_THREADS = 2

    def __init__(self, *, size: float, rate: float) -> None:
        self._seconds = Buckets(size=size, rate=rate)
        self._busy: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, key: str, *, alone: bool = True) -> bool:
        """Return whether more may be computed now; `end` must follow. `alone` limits the number of threads."""
        with self._lock:
            if (alone and self._busy[key] >= self.MOST_THREADS) or self._seconds.level(key) <= 0:
                return False
            self._busy[key] += 1
            return True

    def end(self, key: str, seconds: float) -> None:
        with self._lock:
            self._busy -= Counter([key])  # a key that is not busy is not kept
            self._seconds.spend(key, seconds)


def kind_of(planned: Planned, policy: Policy, dataset: str) -> str:
    """Return the kind of a question: the tables it reads, how often, and its noisy numbers to a power of 4."""
    query = planned.query
    trees = sum(isinstance(one, Counted) for one in planned.price.measures)
    values = ""
    if planned.values > FEW:
        values = f", up to {4 ** math.ceil(math.log(planned.values, 4)):,} noisy numbers"
    tables = "joined tables" if query.joined is not None else "one table"
    people = ", by person" if query.per_person is not None else ""
    return f"{dataset}: {tables}{people}, " + ("one pass" if not trees else f"{1 + trees} passes") + values


class Pace:
    """The tick at which an answer leaves; it follows from public facts, not from the time that it took.

    The time that an engine works on rows depends on the rows. So an answer waits for the tick of its kind: the
    next one after it came, and as many more as the kind is allowed. A kind follows from the question and the
    policy (`kind_of`); one with many noisy numbers begins with the ticks that they take to compute. An answer
    that is not ready in time makes its whole kind slower, for all askers and for good: the kind is allowed
    twice as many ticks, and the answer leaves at the end of those.

    *Cost.* Time: between n and n + 1 ticks for every answer. Privacy: that a kind became slower can be seen,
    and is the only fact about time that may depend on rows (or on a busy machine). It happens at most
    log₂(longest / tick) times for each kind, and kinds are few; choose a tick at which it never happens.

    Args:
        database: The desk's database, which keeps the ticks.
        tick: Seconds of one tick.
    """

    def __init__(self, database: Database, tick: float) -> None:
        self.tick = tick
        self._database = database
        self._lock = threading.Lock()
        self._least: dict[str, int] = {}
        with database.read() as connection:
            self._ticks = {row.kind: int(row.ticks) for row in connection.execute(select(db.paces))}

    def ticks(self, kind: str) -> int:
        return max(self._ticks.get(kind, 1), self._least.get(kind, 1))

    def at_least(self, kind: str, seconds: float) -> None:
        """Let a kind begin with the ticks of so many seconds of computing, which follow from its questions."""
        ticks = 1 << max(0, math.ceil(math.log2(max(seconds, self.tick) / self.tick)))
        with self._lock:
            self._least[kind] = max(ticks, self._least.get(kind, 1))

    def due(self, arrived: float, kind: str) -> float:
        """Return the time at which the answer to a question that arrived then leaves."""
        return (math.floor(arrived / self.tick) + 1 + self.ticks(kind)) * self.tick

    def slower(self, kind: str, seen: int) -> None:
        """Allow a kind twice the ticks that were not enough, unless that was just done."""
        with self._lock:
            if self.ticks(kind) > seen:
                return
            with self._database.write() as connection:
                connection.execute(db.paces.delete().where(db.paces.c.kind == kind))
                connection.execute(db.paces.insert().values(kind=kind, ticks=2 * seen))
            self._ticks[kind] = 2 * seen

    async def leave(self, arrived: float, kind: str, work: Future[Any]) -> None:
        """Wait until the answer may leave."""
        while True:
            ticks, due = self.ticks(kind), self.due(arrived, kind)
            await asyncio.sleep(max(0.0, due - time.time()))
            if work.done():
                return
            await asyncio.to_thread(self.slower, kind, ticks)

    def reset(self) -> None:
        """Begin with one tick again, as after a busy hour; an officer decides it, and the trail shows it."""
        with self._lock, self._database.write() as connection:
            connection.execute(db.paces.delete())
            self._ticks = {}

    def all(self) -> dict[str, int]:
        """Return every kind that was slowed down, with its ticks."""
        return dict(sorted(self._ticks.items()))
