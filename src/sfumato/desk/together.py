"""One thread that takes all that waits at once, so that as many as came meanwhile share one transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
MOST_AT_ONCE = 64


@dataclass(frozen=True)
class Waiting(Generic[_T]):
    """Something to be done, and where whoever wants it waits for what comes of it."""

    wanted: _T
    outcome: Future[Any] = field(default_factory=Future)


class Together(Generic[_T]):
    """Does what is wanted in the order in which it came, in one thread, some of it at once.

    Args:
        work: Does all that it is given, and tells each outcome, then or later.
        name: The name of the thread.
    """

    def __init__(self, work: Callable[[Sequence[Waiting[_T]]], None], *, name: str) -> None:
        self._work = work
        self._waiting: deque[Waiting[_T]] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, wanted: _T) -> Future[Any]:
        """Have something done; its outcome."""
        waiting = Waiting(wanted)
        waiting.outcome.set_running_or_notify_cancel()  # whoever goes away meanwhile stops nothing
        self._waiting.append(waiting)
        self._thread.submit(self._turn)
        return waiting.outcome

    def first(self, work: Callable[[], None]) -> Future[None]:
        """Have the thread do something else, before all that is wanted later."""
        return self._thread.submit(work)

    def _turn(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
        if not taken:
            return  # an earlier turn took it along
        try:
            self._work(taken)
        except BaseException as error:
            for one in taken:
                if not one.outcome.done():
                    one.outcome.set_exception(error)

    def close(self) -> None:
        """Do what waits still, and end."""
        self._thread.shutdown(wait=True)
