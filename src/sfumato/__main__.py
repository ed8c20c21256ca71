"""The program: the command line in a process of its own."""

import atexit
import contextlib
import os
import signal
import sys
from typing import NoReturn

from sfumato import interruption


def program() -> None:
    """Run the command; one that was interrupted ends at once, with its sentence."""
    try:
        from sfumato.cli import main

        main()
        _ignore()
    except KeyboardInterrupt:  # before the command began, or when it was about to leave
        _ignore()
        print(f"sfumato: {interruption.in_words()}", file=sys.stderr)
        _leave()
    except SystemExit as stop:
        _ignore()
        if stop.code == interruption.EXIT_CODE:
            _leave()
        raise


def _ignore() -> None:
    """The command has ended, and has said how: it is too late for Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave() -> NoReturn:
    """End the process once all is closed and written, but leave the interpreter as it is.

    Libraries that were stopped in the middle, such as jax, crash when the interpreter is taken down under them.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone
            stream.flush()
    os._exit(interruption.EXIT_CODE)


if __name__ == "__main__":
    program()
