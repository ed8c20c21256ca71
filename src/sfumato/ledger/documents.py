"""The files that Sfumato writes for others, told apart: who gets the wrong one is told which it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Document:
    """A kind of file: what it is called, how it is told, and what is done with it."""

    name: str
    is_one: Callable[[Mapping[str, Any]], bool]
    remedy: str


def _holds(*fields: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda data: all(field in data for field in fields)


CERTIFICATE = Document(
    name="a certificate", is_one=_holds("epsilon_means", "event"), remedy="check it with: sfumato verify FILE"
)
STATEMENT = Document(
    name="a statement",
    is_one=_holds("promise", "charges"),
    remedy="check it with: sfumato statement check FILE; sfumato statement make LEDGER --key KEY signs one",
)
WITNESS = Document(
    name="a witness of a ledger",
    is_one=lambda data: data.get("kind") == "witness",
    remedy="check a ledger against it with: sfumato ledger verify LEDGER --witness FILE",
)
EXPORT = Document(
    name="an export of a ledger",
    is_one=_holds("entries", "budget", "head"),
    remedy="check it with: sfumato ledger verify FILE",
)
DOCUMENTS = (CERTIFICATE, STATEMENT, WITNESS, EXPORT)


def refuse_others(data: Mapping[str, Any], expected: Document) -> None:
    """Raise InvalidInput for a file of another kind, and say which it is; of no kind, nothing is said here.

    >>> refuse_others({"promise": "…", "charges": []}, STATEMENT)
    """
    if expected.is_one(data):
        return
    for document in DOCUMENTS:
        if document.is_one(data):
            raise InvalidInput(f"expected {expected.name}, got {document.name}; {document.remedy}")
