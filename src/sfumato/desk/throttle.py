"""Not too often: a delay that doubles after wrong passwords, and a bucket of requests for each account."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict

from sqlalchemy import select

from sfumato.desk import database as db
from sfumato.desk.database import Database

FREE_TRIES = 5
LONGEST_DELAY = 300.0
"""Seconds. Whoever knows a name can keep its owner out for as long, and no longer."""


class Tries:
    """Wrong passwords by account, remembered across restarts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def wait(self, key: str) -> float:
        """Seconds until the next try is looked at; 0 for now."""
        with self._database.read() as connection:
            until = connection.execute(select(db.failures.c.until).where(db.failures.c.key == key)).scalar()
        return max(0.0, (until or 0.0) - time.time())

    def failed(self, key: str) -> None:
        with self._database.write() as connection:
            row = connection.execute(select(db.failures).where(db.failures.c.key == key)).first()
            count = 1 if row is None else row.tries + 1
            over = count - FREE_TRIES
            delay = min(LONGEST_DELAY, 2.0 ** min(over, 30)) if over >= 0 else 0.0
            connection.execute(db.failures.delete().where(db.failures.c.key == key))
            connection.execute(db.failures.insert().values(key=key, tries=count, until=time.time() + delay))

    def succeeded(self, key: str) -> None:
        with self._database.write() as connection:
            connection.execute(db.failures.delete().where(db.failures.c.key == key))


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
