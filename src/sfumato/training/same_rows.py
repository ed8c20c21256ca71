"""Whether an interrupted run goes on with the rows that it began with.

A keyed digest of the rows is kept in the private half of the run folder while the run lasts, and nowhere else:
neither the release nor the checkpoint, which is a release, may hold anything that is computed from rows. Whole
numbers (labels, tokens, bytes of images) are the same wherever they are read, so that others are refused. Real
numbers may have been computed, as features are, and differ in their last bits on another machine: of others a
warning tells. Of large data evenly spaced rows are looked at. Data whose items are read one by one are not
looked at, nor are those of several ranks.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, uint8
from torch.utils import _pytree as pytree

from sfumato.errors import Refused, SettingsChanged
from sfumato.storage import json_bytes, write_whole
from sfumato.training.sources import columns_of

NAME = "rows.json"
_MOST_BYTES = 2**28  # of each column that are looked at
_AT_ONCE = 2**24

Digests = dict[str, Any]


def note_rows(data: Any, folder: Path) -> None:
    """Keep the digest of the rows of a run that begins."""
    forget_rows(folder)
    key = secrets.token_bytes(32)
    found = _digests(data, key)
    if found is not None:
        write_whole(folder / NAME, json_bytes({"key": key.hex(), **found}))


def check_rows(data: Any, folder: Path) -> None:
    """Refuse rows other than those that were noted; warn where only real numbers in them differ."""
    noted = _noted(folder / NAME)
    found = None if noted is None else _digests(data, noted["key"])
    if noted is None or found is None:
        return
    if any(noted[name] != found[name] for name in ("shapes", "whole")):
        raise Refused(
            f"expected the rows that the run in {folder.parent} began with, in the same order, got others; "
            "give the same, end the run as it is (--finish, or finish=True in Python), or begin anew in "
            "another folder, which is charged anew"
        )
    if noted["real"] != found["real"]:
        warnings.warn(
            f"the run in {folder.parent} began with other numbers in its rows, and goes on with those given "
            "now; if it is not that they were computed anew, as on another machine, stop it and begin anew in "
            "another folder",
            SettingsChanged,
            stacklevel=4,
        )


def forget_rows(folder: Path) -> None:
    """Of a run that has ended, or begins."""
    (folder / NAME).unlink(missing_ok=True)


def _noted(place: Path) -> Digests | None:
    """What was kept; None of a run that began with an earlier version, or with data that are read by item."""
    try:
        noted = json.loads(place.read_bytes())
        known = all(isinstance(noted[name], str) for name in ("shapes", "whole", "real"))
        return {**noted, "key": bytes.fromhex(noted["key"])} if known else None
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _digests(data: Any, key: bytes) -> Digests | None:
    columns = columns_of(data)
    if columns is None:
        return None
    kinds = {name: hashlib.blake2b(key=key, digest_size=32) for name in ("shapes", "whole", "real")}
    for column in pytree.tree_leaves(columns):
        kinds["shapes"].update(f"{tuple(column.shape)} {column.dtype};".encode())
        real = column.is_floating_point() or column.is_complex()
        for part in _bytes_of(column.detach().resolve_conj().resolve_neg()):
            kinds["real" if real else "whole"].update(part)
    return {name: digest.hexdigest() for name, digest in kinds.items()}


def _bytes_of(column: Tensor) -> Iterator[bytes]:
    """The bytes of the column, or of evenly spaced rows of a large one, in parts that fit the memory."""
    every = max(1, math.ceil(column.nbytes / _MOST_BYTES))
    kept = column[::every]
    at_once = max(1, _AT_ONCE * len(kept) // max(1, kept.nbytes)) if len(kept) else 1
    for start in range(0, len(kept), at_once):
        part = kept[start : start + at_once]
        yield part.cpu().contiguous().reshape(-1).view(uint8).numpy().tobytes()
