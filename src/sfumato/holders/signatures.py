"""Signatures under studies, as files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sfumato.errors import InvalidInput
from sfumato.holders.messages import Signed
from sfumato.storage import json_bytes, write_new

_LARGEST = 2**14


def write_signature(path: str | os.PathLike[str], signature: Signed) -> None:
    """Into a new file, which anyone may read."""
    try:
        write_new(Path(path), json_bytes(dict(signature)), readable=True)
    except FileExistsError as error:
        raise InvalidInput(f"expected no file at {os.fspath(path)}, got one; choose another name") from error


def read_signature(path: str | os.PathLike[str]) -> Signed:
    with Path(path).open("rb") as file:
        text = file.read(_LARGEST)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"expected {os.fspath(path)} to hold a signature in JSON, got another file"
        ) from error
    if not isinstance(found, dict):
        raise InvalidInput(f"expected {os.fspath(path)} to hold one JSON object, got another value")
    return found
