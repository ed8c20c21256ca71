"""Exact prices that this machine found before, so that looking at a ledger again loads no accountant.

They are for `sfumato ledger show` alone. Whoever can write into the user's own cache can change what that shows
of single charges, and of all of them had they been fixed in advance; what is admitted, signed, certified or
verified is priced anew, and what is spent and left is read from the entries.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from sfumato.accounting import Budget, DpEvent, event_to_json
from sfumato.ledger.chain import canonical
from sfumato.ledger.rule import exact_epsilon
from sfumato.storage import cache_folder, write_whole

_LARGEST = 1 << 25  # bytes of a file: a hundred thousand prices are a third of that


class KnownPrices:
    """The exact ε of events, each computed once on this machine for one ledger.

    Args:
        ledger: The name of the ledger; each has a file of its own.

    ```python
    with Ledger.open("people.db") as ledger:
        prices = KnownPrices(ledger.name)
        print(statement.render(ledger, price=prices))
        prices.keep()
    ```
    """

    def __init__(self, ledger: str) -> None:
        self._path = _place(ledger)
        self._found = {} if self._path is None else _read(self._path)
        self._asked: dict[str, float | None] = {}

    def __call__(self, event: DpEvent, budget: Budget) -> float | None:
        """What `exact_epsilon` gives."""
        asked = canonical([event_to_json(event), budget.delta, str(budget.relation)])
        key = hashlib.sha256(asked).hexdigest()
        if key not in self._asked:
            known = key in self._found
            self._asked[key] = self._found[key] if known else exact_epsilon(event, budget)
        return self._asked[key]

    def keep(self) -> None:
        """Write what was asked if any of it is new; a cache that cannot be written only costs time."""
        if self._path is None or self._asked.keys() <= self._found.keys():
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self._asked).encode())


def _place(ledger: str) -> Path | None:
    """None for a user without a home."""
    name = hashlib.sha256(f"{ledger}\n{_accountant()}".encode()).hexdigest()
    with suppress(RuntimeError):
        return cache_folder() / "prices" / f"{name[:32]}.json"
    return None


def _read(path: Path) -> dict[str, float | None]:
    """Prices by question; nothing from what is no file of ours."""
    with suppress(OSError, ValueError, RecursionError):
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return {}
        found = json.loads(path.read_bytes())
        if isinstance(found, dict) and all(map(_is_price, found.values())):
            return found
    return {}


def _is_price(value: object) -> bool:
    return value is None or (isinstance(value, float) and 0 <= value < math.inf)


@cache
def _accountant() -> str:
    """What prices follow from: the versions of libraries, and our source."""
    digest = hashlib.sha256()
    for name in ("dp-accounting", "numpy", "scipy"):
        digest.update(f"{name} {metadata.version(name)}\n".encode())
    for package in ("accounting", "ledger"):
        for place in sorted((Path(__file__).parents[1] / package).glob("*.py")):
            digest.update(place.read_bytes())
    return digest.hexdigest()
