"""When an answer leaves: at a tick that follows from public facts, never from how long it took.

How long an engine works on rows depends on the rows. So an answer waits for the tick that its kind of question
has: the next one after it came, and as many more as the kind is allowed. The kind is a function of the question
and of the policy: what it reads, and how many noisy numbers it takes, to a power of four; a kind with many of
them begins with as many ticks as they take to compute. An answer that is not ready in time makes its whole kind
slower, for everybody and for good: it is allowed twice as many ticks, and leaves at the end of those.

*What that costs.* Time: between n and n + 1 ticks an answer, however quick it was. Privacy: that a kind became
slower is seen, and is the one thing about time that may depend on rows (or on a busy machine). It happens at
most log₂(longest / tick) times for a kind, in all, and kinds are few; choose a tick at which it never happens.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from concurrent.futures import Future
from typing import Any

from sqlalchemy import select

from sfumato.desk import database as db
from sfumato.desk.database import Database
from sfumato.policy import Policy
from sfumato.query.measures import Counted
from sfumato.query.pricing import Planned

FEW = 1024
"""Noisy numbers whose time is not noticed."""


def kind_of(planned: Planned, policy: Policy, dataset: str) -> str:
    """What a question's time may depend on: which tables it reads, how often, and how much noise it takes."""
    query = planned.query
    trees = sum(isinstance(one, Counted) for one in planned.price.measures)
    values = ""
    if planned.values > FEW:
        values = f", up to {4 ** math.ceil(math.log(planned.values, 4)):,} noisy numbers"
    tables = "joined tables" if query.joined is not None else "one table"
    people = ", by person" if query.per_person is not None else ""
    return f"{dataset}: {tables}{people}, " + ("one pass" if not trees else f"{1 + trees} passes") + values


class Pace:
    """How many ticks each kind of question takes; kept in the database.

    Args:
        database: The desk's.
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
        """Have a kind begin with ticks for so many seconds of computing, which follow from its questions."""
        ticks = 1 << max(0, math.ceil(math.log2(max(seconds, self.tick) / self.tick)))
        with self._lock:
            self._least[kind] = max(ticks, self._least.get(kind, 1))

    def due(self, arrived: float, kind: str) -> float:
        """When an answer to a question that came then is to leave."""
        return (math.floor(arrived / self.tick) + 1 + self.ticks(kind)) * self.tick

    def slower(self, kind: str, seen: int) -> None:
        """Allow a kind twice the ticks that were not enough, unless somebody just did."""
        with self._lock:
            if self.ticks(kind) > seen:
                return
            with self._database.write() as connection:
                connection.execute(db.paces.delete().where(db.paces.c.kind == kind))
                connection.execute(db.paces.insert().values(kind=kind, ticks=2 * seen))
            self._ticks[kind] = 2 * seen

    async def leave(self, arrived: float, kind: str, work: Future[Any]) -> float:
        """Wait until the answer may leave; the moment at which it was due."""
        while True:
            ticks, due = self.ticks(kind), self.due(arrived, kind)
            await asyncio.sleep(max(0.0, due - time.time()))
            if work.done():
                return due
            await asyncio.to_thread(self.slower, kind, ticks)

    def reset(self) -> None:
        """Begin with one tick again, as after a busy hour; it is an officer's decision, and in the trail."""
        with self._lock, self._database.write() as connection:
            connection.execute(db.paces.delete())
            self._ticks = {}

    def all(self) -> dict[str, int]:
        """Every kind that was slowed down, with its ticks."""
        return dict(sorted(self._ticks.items()))
