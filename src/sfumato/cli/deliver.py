"""One JSON object to a file, whole or not at all, or to an address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sfumato.errors import InvalidInput, LedgerError

PATIENCE = 30.0


def deliver(data: Mapping[str, Any], place: str, *, replace: bool = True) -> None:
    """Write `data` to the file `place`, or post it if that is an http(s) address."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if place.startswith(("http://", "https://")):
        _post(place, text.encode())
        return
    from sfumato.storage import write_new, write_whole

    if replace:
        write_whole(place, text.encode(), readable=True)
        return
    try:
        write_new(place, text.encode(), readable=True)
    except FileExistsError as error:
        raise InvalidInput(f"expected no file at {place}, got one; choose another --out") from error


def _post(address: str, content: bytes) -> None:
    import urllib.error  # slow to load, and hardly any command posts
    import urllib.request

    request = urllib.request.Request(
        address, data=content, headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            pass
    except (urllib.error.URLError, ValueError) as error:
        raise LedgerError(f"expected {address} to take the witness, got: {error}; nothing was kept") from error
