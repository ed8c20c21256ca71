"""The noise of past steps, for a run that goes on after an interruption: a secret file beside its checkpoint.

Who has it can take the noise off what was released. So it is never part of the checkpoint, which holds what was
paid for: it lies beside it, readable by its owner alone, under a random name that the checkpoint records. (A
digest in the checkpoint would tell whoever can guess the data that the guess is right.) It is overwritten and
removed as soon as a newer one is durable, and when the run ends. Overwriting is what a program can do: the
journal of a file system, one that never writes in place, snapshots, the spare blocks of a solid-state disk and
backups may keep an older copy. Where that matters, use an encrypted disk and destroy its key.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sfumato.errors import DataCorrupted, Refused
from sfumato.mechanisms.correlated import Past
from sfumato.storage import destroy, write_whole

_SUFFIX = ".noise"
_NAME = re.compile("[0-9a-f]{32}")


def keep_past_noise(checkpoint: Path, past: Past | None) -> str | None:
    """Write it beside `checkpoint`, for its owner alone; returns what the checkpoint records of it."""
    if past is None:
        return None
    name = secrets.token_hex(16)
    content = save({key: np.ascontiguousarray(value) for key, value in past.items()})
    write_whole(_file(checkpoint, name), content)
    return name


def read_past_noise(checkpoint: Path, name: object) -> Past | None:
    """What was written under that name; Refused if it is gone."""
    if name is None:
        return None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DataCorrupted(f"expected {checkpoint} to name its past noise, got something else")
    path = _file(checkpoint, name)
    try:
        return load(path.read_bytes())
    except FileNotFoundError as error:
        raise Refused(
            f"expected the past noise of this checkpoint at {path}, got none; steps to come need it, as their "
            "noise is correlated with it: put the file back, or start anew"
        ) from error
    except (SafetensorError, OSError) as error:
        raise DataCorrupted(f"expected past noise at {path}, got a file that cannot be read") from error


def destroy_past_noise(checkpoint: Path, *, but: str | None = None) -> None:
    """Overwrite and remove all past noise beside `checkpoint`, but what is recorded as `but`."""
    for path in _all_files(checkpoint):
        if but is None or path != _file(checkpoint, but):
            destroy(path)


def _file(checkpoint: Path, name: str) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.{name}{_SUFFIX}")


def _all_files(checkpoint: Path) -> Iterator[Path]:
    """Also those that a process was writing when it died."""
    if not checkpoint.parent.is_dir():
        return
    for path in sorted(checkpoint.parent.iterdir()):
        whole = path.name.startswith(f"{checkpoint.name}.") and path.suffix == _SUFFIX
        part = path.name.startswith(f".{checkpoint.name}.") and path.suffix == ".part" and _SUFFIX in path.name
        if whole or part:
            yield path
