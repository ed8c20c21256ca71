"""What the coordinator writes down: which rounds were started, and the noisy sums that came of them.

Nothing in it is secret: the sums were paid for. It is on the disk before anyone is told of it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from sfumato.errors import InvalidInput, Refused
from sfumato.holders.node import Opened


class Log:
    """The rounds of one study, in a file; a second coordinator cannot open it while this one has it."""

    def __init__(self, path: Path, *, study: str, dimension: int) -> None:
        self._dimension = dimension
        self._file = sqlite3.connect(path, isolation_level=None, timeout=1.0, check_same_thread=False)
        try:
            self._file.execute("PRAGMA synchronous = EXTRA")
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("BEGIN EXCLUSIVE")
            self._file.execute("CREATE TABLE IF NOT EXISTS study (digest TEXT)")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS rounds (number INTEGER PRIMARY KEY, holders INTEGER, total BLOB)"
            )
            found = self._file.execute("SELECT digest FROM study").fetchone()
            if found is None:
                self._file.execute("INSERT INTO study VALUES (?)", (study,))
            self._file.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise Refused(
                f"expected the rounds of a study at {path}, which no other coordinator uses, got another file "
                "or one that is in use; stop the other, or choose another --out"
            ) from error
        if found is not None and found[0] != study:
            self._file.close()
            raise InvalidInput(
                f"expected rounds of this study at {path}, got those of another; choose another --out"
            )

    @property
    def next_round(self) -> int:
        """One more than the last that was started."""
        last: int | None = self._file.execute("SELECT max(number) FROM rounds").fetchone()[0]
        return 1 if last is None else last + 1

    @property
    def abandoned(self) -> int:
        count: int = self._file.execute("SELECT count(*) FROM rounds WHERE total IS NULL").fetchone()[0]
        return count

    def start(self, number: int) -> None:
        """Note that inputs are about to be asked for; abandoned unless an outcome follows."""
        if number != self.next_round:
            raise Refused(f"expected round {self.next_round} to be next, got {number}")
        self._file.execute("INSERT INTO rounds VALUES (?, 0, NULL)", (number,))

    def write(self, number: int, opened: Opened | None) -> None:
        if opened is not None:
            total = opened.total.astype("<i8").tobytes()
            self._file.execute(
                "UPDATE rounds SET holders = ?, total = ? WHERE number = ?", (opened.holders, total, number)
            )

    def outcome(self, number: int) -> Opened | None:
        """The sum of a round that was started; None if it was abandoned."""
        holders, total = self._file.execute(
            "SELECT holders, total FROM rounds WHERE number = ?", (number,)
        ).fetchone()
        if total is None:
            return None
        return Opened(np.frombuffer(total, dtype="<i8").astype(np.int64).reshape(self._dimension), holders)

    def close(self) -> None:
        self._file.close()
