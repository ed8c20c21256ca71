"""Ctrl-C, noted for as long as a command runs: a library may swallow it, or make an error of its own of it."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

EXIT_CODE = 130
"""Of a command that was interrupted, as shells have it."""

_NOTHING_CHARGED = "interrupted; nothing was charged: give the same command again"
_GOES_ON = "interrupted; what was reserved stays charged, and the same command goes on from there"
_CHARGED = "interrupted; what was charged stays charged, and the same command again is charged again"
_SOON = 0.02  # seconds until an interrupt that was swallowed comes again


@dataclass
class _Noted:
    """Whether Ctrl-C was pressed since the command began, and the remedy that the command offers then."""

    pressed: bool = False
    remedy: str | None = None


_here = _Noted()


@contextmanager
def noted() -> Iterator[None]:
    """Note Ctrl-C while the block runs; however the block ends after one, it ends in KeyboardInterrupt.

    Where Ctrl-C is ignored, as in the background of a shell, or handled by other code, it stays so.
    """
    with _handled(), _raised_again():
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            check()
            raise
        check()


def check() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed since the command began.

    Call it where a library's error is about to become one of ours, between the stages of long work, and
    before anything is charged.
    """
    if _here.pressed:
        raise KeyboardInterrupt from None


def offer(remedy: str) -> None:
    """Say how to go on after Ctrl-C, for a command that keeps its paid results by itself."""
    _here.remedy = remedy


def in_words() -> str:
    """Return one sentence about the charges of this process, for the end after Ctrl-C."""
    ledgers = sys.modules.get("sfumato.ledger")  # without them nothing was charged
    spent = None if ledgers is None else ledgers.Ledger.spent_here
    if spent is None or not spent.anything:
        return _NOTHING_CHARGED
    if _here.remedy is not None:
        return f"interrupted; what was charged stays charged, and {_here.remedy}"
    return _GOES_ON if spent.goes_on else _CHARGED


@contextmanager
def _handled() -> Iterator[None]:
    _here.pressed, _here.remedy = False, None
    ours = (
        threading.current_thread() is threading.main_thread()  # no other thread handles signals
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _here.pressed = False


def _note(number: int, frame: object) -> NoReturn:
    _here.pressed = True
    raise KeyboardInterrupt


@contextmanager
def _raised_again() -> Iterator[None]:
    """An interrupt that is lost in a destructor, or in a callback of the garbage collector, comes again."""
    before = sys.unraisablehook
    sys.unraisablehook = _again_or(before)
    try:
        yield
    finally:
        sys.unraisablehook = before


def _again_or(others: Callable[[Any], None]) -> Callable[[Any], None]:
    def hook(lost: Any) -> None:
        if _here.pressed and issubclass(lost.exc_type, KeyboardInterrupt):
            later = threading.Timer(_SOON, _again)  # raised here, it would be lost again
            later.daemon = True
            later.start()
        else:
            others(lost)

    return hook


def _again() -> None:
    if _here.pressed:
        _thread.interrupt_main(signal.SIGINT)
