"""A new ledger: its first entry, and who may have one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget
from sfumato.errors import LedgerError
from sfumato.ledger.chain import Row, seal
from sfumato.ledger.dataset_id import check_id, known_as
from sfumato.ledger.state import State
from sfumato.ledger.store import Store

FORMAT = 3
READABLE = (1, 2, 3)
"""Format 1 had no leases and named no data set; up to format 2 the filter counts by fewer orders."""
FINE_SINCE = 3


def make(store: Store, first: Row, dataset: str | None) -> bool:
    """Write the first entry, unless another process just did."""
    if dataset is None:
        return store.create([first])
    with alone(store, dataset):
        return store.create([first])


@contextmanager
def alone(store: Store, dataset: str | None, *, own: Row | None = None) -> Iterator[None]:
    """Nobody else puts a ledger for this data set beside the store meanwhile, and there is none yet.

    `own` is the first row of a ledger that may lie there already, as it is the one that comes.
    """
    if dataset is None:
        yield
        return
    with store.creating(known_as(dataset)):
        refuse_second(store, dataset, own)
        yield


def refuse_second(store: Store, dataset: str, own: Row | None = None) -> None:
    """Two budgets for one data set add up unseen; where their ledgers lie side by side, it shows."""
    for place, row in store.neighbours():
        declared = _declared(row)
        if own is not None and row.digest == own.digest:
            continue
        if isinstance(declared, str) and known_as(declared) == known_as(dataset):
            raise LedgerError(
                f"expected no ledger for dataset={dataset!r} yet, got one for {declared!r} at {place}; one "
                "data set has one ledger, so use that one"
            )


def _declared(row: Row) -> Any:
    """The data set that a first entry names; None where it is no entry of ours."""
    try:
        body = json.loads(row.text)
    except (ValueError, TypeError, RecursionError):
        return None
    return body.get("dataset") if isinstance(body, dict) else None


def first_row(budget: Budget, dataset: str | None, people: float | None = None) -> Row:
    """The entry that a ledger begins with."""
    known = {} if people is None else {"people": _validate.positive("people", people)}
    body = {
        "kind": "create",
        "format": FORMAT,
        "name": str(uuid.uuid4()),  # so that no two ledgers share a hash
        "dataset": None if dataset is None else check_id(dataset),
        **known,
        "time": now(),
        "budget": asdict(budget),
        "epsilon_spent": 0.0,
        "state": State.empty(budget, fine=True).to_json(),
    }
    return seal(body, after=None)[1]


def now() -> str:
    """The time as entries tell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def absent(place: str) -> LedgerError:
    """Why a place cannot be opened, and how to make a ledger there."""
    return LedgerError(
        f"there is no ledger at {place}; check the path, or make one with: sfumato ledger create {place} "
        "--epsilon 1 --delta 1e-6"
    )


def other_budget(place: str, has: Budget, given: Budget, *, unused_file: bool = False) -> LedgerError:
    """Why a ledger does not stand for the budget that was given.

    `unused_file`: it is a file, and nothing was ever charged to it.
    """
    names = [item.name for item in fields(Budget) if getattr(has, item.name) != getattr(given, item.name)]
    expected, got = (" and ".join(f"{name}={getattr(one, name)}" for name in names) for one in (has, given))
    remedy = (
        "nothing was ever charged to this ledger, so you may delete the file: the first charge makes it anew "
        "with the budget that is declared then"
        if unused_file
        else "declare the same (a policy in [budget]) or make another ledger for other data"
    )
    return LedgerError(f"expected the budget of {place}, {expected}, got {got}; {remedy}")
