"""What Ctrl-C and errors leave: things put back, and an error that holds nothing of the rows."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the block is over: weights that are put back are all put back."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def bare(error: BaseException) -> BaseException:
    """The error, without what the frames of it and of all errors before it hold: sums have no noise yet.

    Code of the user's can raise an interrupt that quotes a row, so an interrupt comes back as a new one without
    words or history: a wish to leave the process as that, everything else as somebody's Ctrl-C.
    """
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            waiting += [each for each in (one.__context__, one.__cause__) if each is not None]
    if isinstance(error, Exception):
        return error
    return SystemExit(1) if isinstance(error, SystemExit) else KeyboardInterrupt()
