"""JSON from outside, read so that it can mean one thing only, or refused with one sentence."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput

LARGEST = 4 * 2**20
"""Bytes of a file that is read at all; certificates have a few thousand."""

DEEPEST = 64


def read_object(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The one object in a JSON file.

    Refused are files that are too large, not UTF-8 or nested too deeply, keys that stand twice (readers differ
    about which one counts), and numbers that are not finite.
    """
    with Path(path).open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise InvalidInput(f"expected {os.fspath(path)} to be {what} of at most {LARGEST} bytes, got more")
    try:
        data = parse(content)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else _one_line(error)
        raise InvalidInput(f"expected {os.fspath(path)} to be {what} in JSON: {reason}") from error
    if not isinstance(data, dict):
        raise InvalidInput(
            f"expected {os.fspath(path)} to hold {what}, one JSON object, got {type(data).__name__}"
        )
    return data


def parse(content: bytes) -> Any:
    """One JSON value; ValueError where it is not strictly one.

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
    for _ in range(DEEPEST):
        layer = [item for value in layer for item in _inside(value)]
        if not layer:
            return
    raise ValueError(f"it is nested more than {DEEPEST} deep")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
