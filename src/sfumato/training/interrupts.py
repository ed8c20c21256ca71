"""What leaves a step that did not end: an error in whose frames and words nothing of the rows is left."""

from __future__ import annotations

import traceback


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
