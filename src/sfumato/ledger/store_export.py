"""Entries in a file that `ledger export` wrote: read and checked as a ledger is, and never written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput, LedgerError, LedgerTampered
from sfumato.ledger.chain import Row, canonical
from sfumato.ledger.documents import EXPORT, refuse_others
from sfumato.ledger.strict_json import parse


def is_export(place: str) -> bool:
    """Whether a file holds JSON, as no other ledger does."""
    try:
        with Path(place).open("rb") as file:
            return file.read(64).lstrip().startswith(b"{")
    except (OSError, ValueError):
        return False


class ExportStore:
    """The rows of an export. What was charged after it was written is not in it."""

    exported = True

    def __init__(self, path: str) -> None:
        self.place = path
        self.address = str(Path(path).absolute())
        self._rows = _read(path)

    def create(self, rows: Sequence[Row]) -> bool:
        return False

    def check_room(self) -> None:
        raise self._refusal()

    def creating(self, dataset: str) -> AbstractContextManager[None]:
        raise self._refusal()

    def neighbours(self) -> Iterator[tuple[str, Row]]:
        return iter(())

    def transaction(self) -> AbstractContextManager[None]:
        raise self._refusal()

    def last(self) -> Row | None:
        return self._rows[-1]

    def row(self, sequence: int) -> Row | None:
        return next((row for row in self._rows if row.sequence == sequence), None)

    def settlement(self, sequence: int) -> Row | None:
        return next((row for row in self._rows if row.settles == sequence), None)

    def newest_about(self, sequence: int) -> Row | None:
        return next((row for row in reversed(self._rows) if row.about == sequence), None)

    def rows(self) -> Iterator[Row]:
        return iter(self._rows)

    def append(self, row: Row) -> None:
        raise self._refusal()

    def close(self) -> None:
        pass

    def _refusal(self) -> LedgerError:
        return LedgerError(
            f"expected a ledger that can be written, got {self.place}, an export of one; use the ledger itself"
        )


def _read(path: str) -> list[Row]:
    try:
        data = parse(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise LedgerTampered(f"expected {path} to be a ledger or an export of one, got neither") from error
    if not isinstance(data, dict) or not EXPORT.is_one(data):
        raise _no_export(path, data)
    entries = data["entries"]
    if not isinstance(entries, list) or not entries:
        raise LedgerTampered(f"expected {path} to hold the entries of a ledger, got none")
    rows = [_row(entry, number) for number, entry in enumerate(entries)]
    if data["head"] != {"sequence": rows[-1].sequence, "hash": rows[-1].digest.hex()}:
        raise LedgerTampered(
            f"the last entry of {path} is not the head that it names: it was cut off or changed"
        )
    return rows


def _no_export(path: str, data: Any) -> LedgerError:
    try:
        refuse_others(data if isinstance(data, dict) else {}, EXPORT)
    except InvalidInput as error:
        return LedgerError(f"{os.fspath(path)}: {error}")
    return LedgerError(f"expected {path} to be a ledger or an export of one, got another JSON file")


def _row(entry: Any, number: int) -> Row:
    """The row that an entry was exported from; only its hash says whether it is the same."""
    try:
        return _sealed(entry)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerTampered(f"entry {number} of the export is not written as a ledger writes") from error


def _sealed(entry: Mapping[str, Any]) -> Row:
    body = {name: value for name, value in entry.items() if name != "hash"}
    digest, sequence = bytes.fromhex(entry["hash"]), entry["sequence"]
    if type(sequence) is not int:
        raise TypeError
    return Row(sequence, digest, canonical(body), _number(body, "settles"), _number(body, "about"))


def _number(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and type(value) is not int:
        raise TypeError
    return value
