"""Memory that a step frees is what the next step needs."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT = 1 << 30


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Tell glibc to keep up to 1 GiB of freed memory, for the whole process, from the first private step on.

    By default it hands large blocks back at once, and every step faults the same pages in again: a sixth of a
    step of a small network. Where there is no glibc nothing happens; returns whether it was told.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _KEPT))
