"""Every request, in a chain like the ledger's: who asked for what, when, and what came of it.

No words of a question and no answer are in it: these are in the ledger and in the history of the team.

Requests without an account, and those beyond an account's limit, are counted: one line a minute. The oldest
lines are thinned: requests that changed nothing are taken out, and all others are kept, such as decisions,
spending, and what the command line did. A line of the trail then says up to where, with a hash of all that was
kept, so that nothing of it can be changed or taken out unnoticed later.
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
"""So many lines are there in full, about 300 MB."""
STEP = 1000
"""Every so many lines the oldest ones are thinned out."""
COUNTED_FOR = 60.0
"""Seconds of requests that share a line."""
THINNED, COUNTED = "thinned", "counted"
"""Routes of the lines about other lines, and what these hold."""
_TELLING = ("/ask", "/jobs", "/api/v1/tables/{name}/expect")
"""Routes by which a POST with status 200 tells a price or an error, and changes nothing."""
_SIGNED_IN = "/openid/back"
"""Route by which a GET begins a session."""
_LAST = select(db.trail).order_by(db.trail.c.sequence.desc()).limit(1)


class Counted:
    """Requests that have no line of their own, by account, route and status; used by one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: Counter[str] = Counter()
        self._since = ""

    def add(self, who: str | None, method: str, route: str, status: int) -> None:
        self._since = self._since or _now()
        self._counts[f"{who or 'not signed in'}: {method} {route} {status}"] += 1

    def write(self) -> None:
        """One line about all that was counted since the last one; none if nothing was."""
        counts, since = dict(self._counts), self._since
        if counts:
            self._counts, self._since = Counter(), ""
            record(self._database, **_about_lines(COUNTED), since=since, counted=counts)


def record(database: Database, **what: Any) -> Future[Head]:
    """Add one line; where it stands, once it is on disk."""
    line = {"time": _now(), **what}
    return database.soon(lambda connection: _add(connection, line))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _about_lines(route: str) -> dict[str, Any]:
    return {"who": None, "role": None, "method": "several", "route": route, "numbers": {}, "status": None}


def _add(connection: Connection, line: dict[str, Any]) -> Head:
    found = connection.execute(_LAST).first()
    last = None if found is None else unseal(_row(found)).head
    if last is not None and (last.sequence + 1) % STEP == 0 and last.sequence >= MOST_LINES:
        last = _insert(
            connection, {**_about_lines(THINNED), "time": _now(), THINNED: _thin(connection, last)}, last
        )
    return _insert(connection, line, last)


def _insert(connection: Connection, line: dict[str, Any], after: Head | None) -> Head:
    entry, row = seal(line, after=after)
    connection.execute(db.trail.insert().values(sequence=row.sequence, digest=row.digest, text=row.text))
    return entry.head


def _thin(connection: Connection, last: Head) -> dict[str, Any]:
    """Take out old requests that changed nothing; up to which line, and a hash of all that is kept there.

    Some at a time, so that no writer waits long: those after where the thinning before this one ended.
    """
    columns = db.trail.c.sequence
    before = connection.execute(select(db.trail).where(columns == last.sequence + 1 - STEP)).first()
    said = {} if before is None else unseal(_row(before)).body.get(THINNED, {})
    begin, kept = said.get("through", -1), said.get("kept", "")
    end = min(last.sequence - MOST_LINES, begin + 5 * STEP)
    found = connection.execute(select(db.trail).where(columns > begin, columns <= end).order_by(columns)).all()
    entries = [unseal(_row(one)) for one in found]
    idle = [one.sequence for one in entries if not _changed_something(one.body)]
    connection.execute(db.trail.delete().where(columns.in_(idle)))
    lasting = [one for one in entries if _changed_something(one.body)]
    through = entries[-1].head if entries else Head(sequence=begin, hash=said.get("hash", ""))
    return {"through": through.sequence, "hash": through.hash, "kept": _hash_of(lasting, after=kept)}


def _changed_something(line: Mapping[str, Any]) -> bool:
    """Whether a line is of a change; lines about other lines are of none."""
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
    """All lines, oldest first, each checked against its hash and the one before.

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
    """The newest lines, or those before a line, newest first."""
    query = select(db.trail).order_by(db.trail.c.sequence.desc()).limit(count)
    with database.read() as connection:
        rows = connection.execute(query if before is None else query.where(db.trail.c.sequence < before)).all()
    return [unseal(_row(row)) for row in rows]


def _row(found: Any) -> Row:
    return Row(found.sequence, bytes(found.digest), bytes(found.text), None)
