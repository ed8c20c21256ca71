"""Kinds of files that Sfumato writes for others, each with a name for errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Document:
    """A kind of file: its name, the fields that tell it apart, and how a reader checks it."""

    name: str
    fields: tuple[str, ...]
    remedy: str

    def is_one(self, data: Mapping[str, Any]) -> bool:
        return all(field in data for field in self.fields)


CERTIFICATE = Document(
    name="a certificate", fields=("epsilon_means", "event"), remedy="check it with: sfumato verify FILE"
)
STATEMENT = Document(
    name="a statement",
    fields=("promise", "charges"),
    remedy="check it with: sfumato statement check FILE; sfumato statement make LEDGER --key KEY signs one",
)
WITNESS = Document(
    name="a witness of a ledger",
    fields=("kind", "name", "sequence", "hash"),
    remedy="check a ledger against it with: sfumato ledger verify LEDGER --witness FILE",
)
EXPORT = Document(
    name="an export of a ledger",
    fields=("entries", "budget", "head"),
    remedy="check it with: sfumato ledger verify FILE",
)


def refuse_others(data: Mapping[str, Any], expected: Document) -> None:
    """Raise InvalidInput for a file of another kind, by its name; a file of no kind passes.

    >>> refuse_others({"promise": "…", "charges": []}, STATEMENT)
    """
    if expected.is_one(data):
        return
    for document in (CERTIFICATE, STATEMENT, WITNESS, EXPORT):
        if document.is_one(data):
            raise InvalidInput(f"expected {expected.name}, got {document.name}; {document.remedy}")
