"""The trail: every request in a chain like the ledger's, with its account, route and status.

No question and no answer is in it: these are in the ledger and in the history of the team.

Requests without an account, and those beyond an account's limit, are counted, in one line a minute. The oldest
lines are thinned: requests that changed nothing are taken out, and decisions, spending and the acts of the
command line are kept. A line of the trail then states up to where, with a hash of all that was kept, so that
no change or removal there goes unnoticed later.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from sfumato.desk import database as db
from sfumato.desk.database import Database
from sfumato.errors import LedgerTampered
from sfumato.ledger.chain import Entry, Head, Row, linked, seal, unseal

MOST_LINES = 1_000_000
"""Number of newest lines that are kept in full, about 300 MB."""
STEP = 1000
"""After so many lines the oldest ones are thinned."""
COUNTED_FOR = 60.0
"""Seconds of requests that share a line."""
THINNED, COUNTED = "thinned", "counted"
"""Routes of the lines about other lines, and the names of their contents."""
_TELLING = ("/ask", "/jobs", "/api/v1/tables/{name}/expect")
"""Routes by which a POST with status 200 shows a price or an error, and changes nothing."""
_SIGNED_IN = "/openid/back"
"""The route by which a GET begins a session."""


class Counts:
    """Requests that have no line of their own, by account, route and status; used by one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: Counter[str] = Counter()
        self._since = ""

    def add(self, who: str | None, method: str, route: str, status: int) -> None:
        self._since = self._since or _now()
        self._counts[f"{who or 'not signed in'}: {method} {route} {status}"] += 1

    def write(self) -> None:
        """Write one line about all requests that were counted since the last one, if there were any."""
        if self._counts:
            record(self._database, **_about(COUNTED), since=self._since, counted=dict(self._counts))
            self._counts, self._since = Counter(), ""


def record(database: Database, **line: Any) -> Future[Head]:
    """Add one line; the future has its place once it is on disk."""
    line = {"time": _now(), **line}
    return database.soon(lambda connection: _add(connection, line))


def noted(database: Database, who: str, method: str, route: str, status: str) -> Future[Head]:
    """Add a line about an act of the desk itself or of the command line."""
    return record(database, who=who, role=None, method=method, route=route, numbers={}, status=status)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _about(route: str) -> dict[str, Any]:
    return {"who": None, "role": None, "method": "several", "route": route, "numbers": {}, "status": None}


def _add(connection: Connection, line: dict[str, Any]) -> Head:
    found = connection.execute(select(db.trail).order_by(db.trail.c.sequence.desc()).limit(1)).first()
    last = None if found is None else unseal(_row(found)).head
    if last is not None and (last.sequence + 1) % STEP == 0 and last.sequence >= MOST_LINES:
        last = _insert(connection, {**_about(THINNED), "time": _now(), THINNED: _thin(connection, last)}, last)
    return _insert(connection, line, last)


def _insert(connection: Connection, line: dict[str, Any], after: Head | None) -> Head:
    entry, row = seal(line, after=after)
    connection.execute(db.trail.insert().values(sequence=row.sequence, digest=row.digest, text=row.text))
    return entry.head


def _thin(connection: Connection, last: Head) -> dict[str, Any]:
    """Take out old requests that changed nothing. Return the last line looked at, and a hash of those kept.

    Some at a time, so that no writer waits long: those after the end of the thinning before this one.
    """
    columns = db.trail.c.sequence
    before = connection.execute(select(db.trail).where(columns == last.sequence + 1 - STEP)).first()
    said = {} if before is None else unseal(_row(before)).body.get(THINNED, {})
    begin, kept = said.get("through", -1), said.get("kept", "")
    end = min(last.sequence - MOST_LINES, begin + 5 * STEP)
    found = connection.execute(select(db.trail).where(columns > begin, columns <= end).order_by(columns)).all()
    entries = [unseal(_row(one)) for one in found]
    idle = [one.sequence for one in entries if not _changes(one.body)]
    connection.execute(db.trail.delete().where(columns.in_(idle)))
    through = entries[-1].head if entries else Head(sequence=begin, hash=said.get("hash", ""))
    kept = _hash_of([one for one in entries if _changes(one.body)], after=kept)
    return {"through": through.sequence, "hash": through.hash, "kept": kept}


def _changes(line: Mapping[str, Any]) -> bool:
    """Return whether a line is about a change; lines about other lines are not."""
    status = line["status"]
    if line["route"] == _SIGNED_IN:
        return status == 303
    if line["method"] in ("GET", "HEAD", "several", "other"):
        return False
    if isinstance(status, int) and 400 <= status < 500:  # after any other error it may have been done
        return False
    return not (status == 200 and line["route"] in _TELLING)


def _hash_of(entries: Sequence[Entry], *, after: str = "") -> str:
    for one in entries:
        after = hashlib.sha256(f"{after}{one.hash}".encode()).hexdigest()
    return after


def entries(database: Database) -> Iterator[Entry]:
    """Yield all lines, oldest first, each checked against its hash and the one before.

    Raises:
        LedgerTampered: If a line was changed, moved or taken out.
    """
    with database.read() as connection:
        rows = [_row(one) for one in connection.execute(select(db.trail).order_by(db.trail.c.sequence)).all()]
    marks = (unseal(row).body.get(THINNED) for row in reversed(rows) if row.sequence % STEP == 0)
    thinned = next((mark for mark in marks if mark is not None), None)
    if thinned is None:
        yield from linked(rows)
        return
    through = Head(sequence=thinned["through"], hash=thinned["hash"])
    old = [unseal(row) for row in rows if row.sequence <= through.sequence]
    if _hash_of(old) != thinned["kept"]:
        raise LedgerTampered("expected all changes in the trail's oldest lines, got other lines")
    yield from old
    yield from linked((row for row in rows if row.sequence > through.sequence), after=through)


def newest(database: Database, count: int, *, before: int | None = None) -> list[Entry]:
    """Return the newest lines, or those before a line, newest first."""
    query = select(db.trail).order_by(db.trail.c.sequence.desc()).limit(count)
    with database.read() as connection:
        rows = connection.execute(query if before is None else query.where(db.trail.c.sequence < before)).all()
    return [unseal(_row(row)) for row in rows]


def _row(found: Any) -> Row:
    return Row(found.sequence, bytes(found.digest), bytes(found.text), None)
