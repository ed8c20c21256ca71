"""A prompt that remembers: lines with history on a terminal, plain lines from a pipe."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sfumato import _validate
from sfumato.errors import InvalidInput

HELP = (
    "Type a query on one line. \\epsilon 0.2 changes what each may cost, \\try SELECT … says how wrong it "
    "would be, also with fewer rows of a person, \\left what is left; \\quit ends."
)
_MOST_LINES = 1000
_QUIT = ("\\quit", "\\q", "exit", "quit")


def lines(label: str) -> Iterator[str]:
    """Yield the lines typed at a prompt, until \\quit or the end of input; keep history for the next time."""
    with _history(_history_file()):
        while True:
            try:
                line = input(label).strip()
            except EOFError:
                print()
                return
            if line in _QUIT:
                return
            if line:
                yield line.rstrip(";")


def piped(source: Iterable[str]) -> Iterator[str]:
    """The lines of a file or pipe."""
    for line in source:
        text = line.strip()
        if text in _QUIT:
            return
        if text:
            yield text.rstrip(";")


def positive(text: str) -> float:
    """The ε that was typed."""
    try:
        return _validate.positive("epsilon", float(text))
    except ValueError as error:
        raise InvalidInput(f"expected \\epsilon and a number > 0, got {text!r}") from error


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "sfumato" / "query_history"


@contextlib.contextmanager
def _history(path: Path) -> Iterator[None]:
    """Arrow keys and history, where the system has readline; queries are public, answers are not kept."""
    try:
        import readline
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_MOST_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
