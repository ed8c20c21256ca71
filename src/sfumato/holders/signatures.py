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
    """Write a holder's agreement to a study into a new file, which anyone may read.

    Args:
        path: The file, which must not be there yet.
        signature: What `Study.signed` gave.

    Raises:
        InvalidInput: If there is a file already.

    ```python
    write_signature("delft.json", study.signed(PrivateKey.read("delft.key")))
    ```
    """
    try:
        write_new(Path(path), json_bytes(dict(signature)), readable=True)
    except FileExistsError as error:
        raise InvalidInput(f"expected no file at {os.fspath(path)}, got one; choose another name") from error


def read_signature(path: str | os.PathLike[str]) -> Signed:
    """Read what `write_signature` wrote. Whose signature it is, and of which study, is not checked here.

    Args:
        path: The file.

    Returns:
        The signature, for `Study.check_signatures` or a `Node`.

    Raises:
        InvalidInput: If the file does not hold one JSON object of at most 16 KiB.

    ```python
    study.check_signatures([read_signature(path) for path in ("delft.json", "utrecht.json", "leiden.json")])
    ```
    """
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
