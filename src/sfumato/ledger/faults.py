"""Every entry of a ledger that is not as it was written, for who has to find out what happened."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sfumato.errors import LedgerTampered
from sfumato.ledger.chain import ORIGIN, Row, check_follows, unseal

MEANING = (
    "the file was changed or damaged after it was written, so none of its figures can be relied on; charge "
    "nothing to it, compare these entries with their certificates and with a witness that was kept elsewhere, "
    "and ask whoever keeps copies for the original"
)
_LISTED = 20


def all_faults(rows: Iterable[Row], place: str) -> LedgerTampered | None:
    """One error that names every entry at fault, with what it tells now; None where each holds by itself."""
    known = list(rows)
    found = list(_faults(known))
    if not found:
        return None
    more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return LedgerTampered(
        f"the ledger {place} has {len(found)} of {len(known)} entries at fault: "
        f"{'; '.join(found[:_LISTED])}{more}; {MEANING}"
    )


def _faults(rows: list[Row]) -> Iterable[str]:
    last, before = -1, ORIGIN
    for row in rows:
        body = _told(row)
        try:
            unseal(row)
            check_follows(row.sequence, body["previous"], last, before)
        except LedgerTampered as error:
            yield f"{error} ({_in_words(row.sequence, body)})"
        last, before = row.sequence, row.digest.hex()


def _told(row: Row) -> dict[str, Any]:
    """What an entry says now, whether it may be believed or not."""
    try:
        body = json.loads(row.text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _in_words(sequence: int, body: dict[str, Any]) -> str:
    if not body:
        return f"entry {sequence} cannot be read"
    what = str(body.get("purpose") or body.get("text") or body.get("kind") or "nothing")
    return f"entry {sequence} now says {what[:200]!r}, {str(body.get('time'))[:19].replace('T', ' ')}"
