"""What the machine refuses, in one sentence with the remedy."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Collection

_REMEDIES = {
    errno.ENOSPC: "make room, and run the same command again: it goes on where it stopped",
    errno.EDQUOT: "make room, and run the same command again: it goes on where it stopped",
    errno.EACCES: "choose a place that you may read and write",
    errno.EPERM: "choose a place that you may read and write",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file in it",
}


def as_an_option(name: str, value: str, options: Collection[str]) -> str | None:
    """How a value is given to a command that has these options; None if it takes it from elsewhere.

    >>> as_an_option("unit", "patient", ["--unit"]), as_an_option("unit", "patient", ["--set", "--ledger"])
    ('--unit patient', '--set unit=patient')
    """
    if f"--{name}" in options:
        return f"--{name} {shlex.quote(value)}"
    return f"--set {shlex.quote(f'{name}={value}')}" if "--set" in options else None


def in_a_sentence(error: OSError) -> str:
    """
    >>> in_a_sentence(OSError(errno.ENOSPC, "No space left on device", "/disk/run"))
    'No space left on device: /disk/run; make room, and run the same command again: it goes on where it stopped'
    """
    said = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    remedy = _REMEDIES.get(error.errno or 0)
    return said if remedy is None else f"{said}; {remedy}"
