"""Take a ledger to another place with its whole chain: from SQLite to PostgreSQL, and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sfumato.errors import InvalidInput, LedgerError
from sfumato.ledger.chain import Row, seal, unseal
from sfumato.ledger.creation import alone
from sfumato.ledger.ledger import Ledger
from sfumato.ledger.store import Store, store_at


def move(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Ledger:
    """Move a ledger to another place, with the same entries and hashes; the old one is closed for good.

    The old ledger is closed first, by an entry that says where it went: at no moment can both be charged. If
    the process dies in between, neither can, and the same call finishes the move. A place that the ledger was
    moved away from can take it back.

    Args:
        source: The file or postgresql:// URL where it is.
        target: Where it goes; there must be none.

    Returns:
        The ledger at its new place.

    Raises:
        LedgerError: If there is another ledger at the target, or one for the same data set beside it.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Ledger.create(f"{folder}/old.db", Budget(epsilon=1)).close()
    ...     with move(f"{folder}/old.db", f"{folder}/new.db") as ledger:
    ...         ledger.epsilon_left
    1.0
    """
    there = store_at(target)
    with Ledger.open(source) as ledger:
        if _is_same(ledger._store.address, there.address):
            raise InvalidInput(f"expected another place to move {ledger.place} to, got the one where it is")
        ledger.verify()
        _check_continued(there, list(ledger._store.rows()))
        there.check_room()
        with alone(there, ledger.dataset, own=ledger._store.row(0)):
            ledger._journal.close_for(there.address)
            _arrive(there, list(ledger._store.rows()), origin=ledger._store.address)
    there.close()
    return Ledger.open(target)


def _is_same(source: str, target: str) -> bool:
    both = Path(source), Path(target)
    return source == target or (all(path.exists() for path in both) and both[0].samefile(both[1]))


def _check_continued(there: Store, rows: Sequence[Row]) -> int:
    """How many of the rows are there already; nothing else may be, unless the move was finished before."""
    found = [] if there.last() is None else list(there.rows())
    common = min(len(found), len(rows))
    same = [row.digest for row in found[:common]] == [row.digest for row in rows[:common]]
    finished = len(found) <= len(rows) or unseal(rows[-1]).body.get("to") == there.address
    if not same or not finished:
        raise LedgerError(
            f"expected no ledger at {there.place}, or this one as it was when it was moved away, got another "
            "or a newer one; choose another place"
        )
    return len(found)


def _arrive(there: Store, rows: Sequence[Row], *, origin: str) -> None:
    """Write what is not there yet, and open the ledger there."""
    moved = unseal(rows[-1])
    state = {key: moved.body[key] for key in ("epsilon_spent", "state")}
    stamp = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    _, arrived = seal({"kind": "arrived", "from": origin, **stamp, **state}, after=moved.head)
    if there.last() is None and there.create([*rows, arrived]):
        return
    with there.transaction():
        found = _check_continued(there, rows)
        if found <= len(rows):
            for row in (*rows[found:], arrived):
                there.append(row)
