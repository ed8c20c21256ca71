"""One report for each person, ever, kept on the person's side."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sfumato.accounting import DpEvent, Relation, epsilon, event_to_json
from sfumato.errors import Refused

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS reports ("
    "person TEXT PRIMARY KEY, id TEXT NOT NULL, made TEXT NOT NULL, event TEXT NOT NULL, content TEXT)"
)


class AlreadyReported(Refused):
    """A second report from the same person: together they would cost more than either says."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report as it leaves a person: a random name, and its noised content."""

    id: str
    content: Mapping[str, Any]


class Reporter:
    """A person's own record of having reported, on their device; it outlives crashes and restarts.

    The mark is durable before anything is randomised, so that a crash in between costs the report, never a
    second one. `again` hands out the same report once more, for a lost connection: the same noise tells
    nothing new.

    Args:
        place: The file on the person's own device.

    >>> import tempfile; from sfumato.accounting import pure
    >>> folder = tempfile.TemporaryDirectory()
    >>> reporter = Reporter(f"{folder.name}/mine.db")
    >>> report = reporter.report("ann", lambda: {"answer": 1}, event=pure(1.0))
    >>> reporter.again("ann") == report
    True
    >>> reporter.report("ann", lambda: {"answer": 0}, event=pure(1.0))
    Traceback (most recent call last):
        ...
    sfumato.local.reporter.AlreadyReported: ...
    >>> folder.cleanup()
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = os.fspath(place)
        with self._connected() as store:
            store.execute(_SCHEMA)

    def report(
        self,
        person: str,
        randomise: Callable[[], Mapping[str, Any]],
        *,
        event: DpEvent,
        check: Callable[[], object] | None = None,
    ) -> Report:
        """The person's one report. `check` runs first: a record that it refuses leaves no mark and sends
        nothing.
        """
        epsilon(event, 1e-5, relation=Relation.REPLACE_ONE)  # an event without a price is refused
        if check is not None:
            check()
        name = uuid.uuid4().hex
        self._mark(person, name, event)
        content = dict(randomise())
        with self._connected() as store:
            store.execute("UPDATE reports SET content = ? WHERE person = ?", (json.dumps(content), person))
        return Report(id=name, content=content)

    def again(self, person: str) -> Report | None:
        """The report made before, to send it once more; None if there is none to send."""
        with self._connected() as store:
            row = store.execute("SELECT id, content FROM reports WHERE person = ?", (person,)).fetchone()
        return None if row is None or row[1] is None else Report(id=row[0], content=json.loads(row[1]))

    def _mark(self, person: str, name: str, event: DpEvent) -> None:
        made = datetime.now(UTC).isoformat(timespec="seconds")
        row = (person, name, made, json.dumps(event_to_json(event)))
        try:
            with self._connected() as store:
                store.execute("INSERT INTO reports (person, id, made, event) VALUES (?, ?, ?, ?)", row)
        except sqlite3.IntegrityError as error:
            raise AlreadyReported(
                "expected a person who has not reported yet, got a second report; one report per person is all"
                " that was paid for, and the first can be sent again with Reporter.again"
            ) from error

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """One durable transaction."""
        store = sqlite3.connect(self._place, timeout=30.0)
        try:
            store.execute("PRAGMA journal_mode=WAL")
            store.execute("PRAGMA synchronous=FULL")
            with store:
                yield store
        finally:
            store.close()
