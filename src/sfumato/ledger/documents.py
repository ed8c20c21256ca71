"""Files that Sfumato writes for others: strict JSON, of a kind that an error can name."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput

_LARGEST = 4 * 2**20  # bytes of a file that is read at all; certificates have a few thousand
_DEEPEST = 64


def read_object(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read the one object in a JSON file.

    Refused are files that are too large, not UTF-8 or nested too deeply, repeated keys (readers differ about
    which one counts), and numbers that are not finite.
    """
    with Path(path).open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InvalidInput(f"expected {os.fspath(path)} to be {kind} of at most {_LARGEST} bytes, got more")
    try:
        data = parse(content)
    except (ValueError, RecursionError) as error:
        reason = (
            "it is nested too deeply"
            if isinstance(error, RecursionError)
            else " ".join(str(error).split())[:200]
        )
        raise InvalidInput(f"expected {os.fspath(path)} to be {kind} in JSON: {reason}") from error
    if not isinstance(data, dict):
        raise InvalidInput(
            f"expected {os.fspath(path)} to hold {kind}, one JSON object, got {type(data).__name__}"
        )
    return data


def parse(content: bytes) -> Any:
    """Read one JSON value strictly, or raise ValueError.

    >>> parse(b'{"delta": 1e-5, "delta": 0.5}')
    Traceback (most recent call last):
        ...
    ValueError: the key 'delta' stands twice
    """
    data = json.loads(
        content.decode("utf-8"), object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite
    )
    _check_depth(data)
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} stands twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _check_depth(data: Any) -> None:
    layer = [data]
    for _ in range(_DEEPEST):
        layer = [item for value in layer for item in _inside(value)]
        if not layer:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


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
