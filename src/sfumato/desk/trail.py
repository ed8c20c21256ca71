"""Every request, in a chain like the ledger's: who asked for what, when, and what came of it.

No words of a question and no answer are in it: these are in the ledger and in the history of the team.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from sfumato.desk import database as db
from sfumato.desk.database import Database
from sfumato.ledger.chain import Entry, Head, Row, linked, seal, unseal

_LAST = select(db.trail).order_by(db.trail.c.sequence.desc()).limit(1)


def record(database: Database, **what: Any) -> Future[Head]:
    """Add one line; where it stands, once it is on disk."""
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **what}
    return database.soon(lambda connection: _add(connection, line))


def _add(connection: Connection, line: dict[str, Any]) -> Head:
    last = connection.execute(_LAST).first()
    entry, row = seal(line, after=None if last is None else unseal(_row(last)).head)
    connection.execute(db.trail.insert().values(sequence=row.sequence, digest=row.digest, text=row.text))
    return entry.head


def entries(database: Database) -> Iterator[Entry]:
    """All lines, oldest first, each checked against its hash and the one before.

    Raises:
        LedgerTampered: If a line was changed, moved or taken out.
    """
    with database.read() as connection:
        rows = connection.execute(select(db.trail).order_by(db.trail.c.sequence)).all()
    return linked(map(_row, rows))


def newest(database: Database, count: int) -> list[Entry]:
    """The newest lines, newest first."""
    with database.read() as connection:
        rows = connection.execute(select(db.trail).order_by(db.trail.c.sequence.desc()).limit(count)).all()
    return [unseal(_row(row)) for row in rows]


def _row(found: Any) -> Row:
    return Row(found.sequence, bytes(found.digest), bytes(found.text), None)
