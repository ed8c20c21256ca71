"""What the machine refuses, in one sentence with the remedy."""

from __future__ import annotations

import errno

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


def in_a_sentence(error: OSError) -> str:
    """
    >>> in_a_sentence(OSError(errno.ENOSPC, "No space left on device", "/disk/run"))
    'No space left on device: /disk/run; make room, and run the same command again: it goes on where it stopped'
    """
    said = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    remedy = _REMEDIES.get(error.errno or 0)
    return said if remedy is None else f"{said}; {remedy}"
