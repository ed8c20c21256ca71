"""Kinds of files that Sfumato writes for others, each with a name for errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.errors import InvalidInput

CERTIFICATE, STATEMENT, WITNESS, EXPORT = (
    "a certificate",
    "a statement",
    "a witness of a ledger",
    "an export of a ledger",
)
_KINDS: Mapping[
    str, tuple[tuple[str, ...], str]
] = {  # the fields that tell a kind apart, and how it is checked
    CERTIFICATE: (("epsilon_means", "event"), "sfumato verify FILE"),
    STATEMENT: (
        ("promise", "charges"),
        "sfumato statement check FILE; sfumato statement make LEDGER --key KEY signs one",
    ),
    WITNESS: (("kind", "name", "sequence", "hash"), "sfumato ledger verify LEDGER --witness FILE"),
    EXPORT: (("entries", "budget", "head"), "sfumato ledger verify FILE"),
}


def is_one(data: Mapping[str, Any], kind: str) -> bool:
    return all(field in data for field in _KINDS[kind][0])


def refuse_others(data: Mapping[str, Any], expected: str) -> None:
    """Raise InvalidInput for a file of another kind, by its name; a file of no kind passes.

    >>> refuse_others({"promise": "…", "charges": []}, STATEMENT)
    """
    for kind, (_, command) in _KINDS.items():
        if not is_one(data, expected) and is_one(data, kind):
            raise InvalidInput(f"expected {expected}, got {kind}; check it with: {command}")
