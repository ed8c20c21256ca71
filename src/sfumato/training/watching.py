"""What a forward pass on public rows draws: from torch, from other generators, from the clock."""

from __future__ import annotations

import datetime
import functools
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato import randomness
from sfumato.randomness import (
    GENERATOR_FILES,
    GENERATORS,
    numpy_state,
    seeded_torch_state,
    set_torch_state,
    torch_state,
)

_SEED = 26


@dataclass
class Draws:
    """What a forward pass asked for besides its rows, by name."""

    found: list[str] = field(default_factory=list)


def _profile_again(before: Any) -> None:
    """Give a profiler that was at work its place back; one of C is no function, and is switched on."""
    if callable(before) or before is None:
        sys.setprofile(before)
    else:
        sys.setprofile(None)
        before.enable()


@contextmanager
def noticed_draws() -> Iterator[Draws]:
    """Notes calls whose answers are others each time: Python's and NumPy's generators, the clock.

    And calls that seed torch's: rows would draw by their place in a block what everybody knows.

    No garbage is collected meanwhile: what others do on that occasion is not the model's doing.
    """
    draws, before, numpy_before, collects = Draws(), sys.getprofile(), numpy_state(), gc.isenabled()

    def notice(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and _is_source(called) and not _is_ours(frame):
            draws.found.append(str(getattr(called, "__qualname__", called)))
        elif event == "call" and frame.f_code.co_filename in GENERATOR_FILES:
            draws.found.append(frame.f_code.co_qualname)

    gc.disable()
    sys.setprofile(notice)
    try:
        yield draws
    finally:
        _profile_again(before)
        if collects:
            gc.enable()
        if numpy_state() != numpy_before:
            draws.found.append("numpy.random")


def _is_source(called: Any) -> bool:
    owner, module = getattr(called, "__self__", None), getattr(called, "__module__", None)
    if isinstance(owner, GENERATORS) or called is os.urandom or module == "time":
        return True
    if isinstance(owner, torch.Generator):
        return called.__name__ in _SEEDING
    return isinstance(owner, type) and issubclass(owner, datetime.date) and called.__name__ in _NOW


_NOW = ("now", "utcnow", "today")
_SEEDING = ("seed", "manual_seed", "set_state", "set_offset")


def _is_ours(frame: Any) -> bool:
    """Whether `same_randomness` put a generator where it was, by way of a function of torch's."""
    for _ in range(4):
        if frame is None or frame.f_code.co_filename == randomness.__file__:
            return frame is not None
        frame = frame.f_back
    return False


@contextmanager
def same_randomness(device: torch.device) -> Iterator[OneDrawForAll]:
    """Within `with draws:`, what torch draws is the same for every row and each time.

    Masks then tell nothing of a row. All draws start from a public state, whatever the moment is.
    """
    before = {place: torch_state(place) for place in (torch.device("cpu"), device)}
    try:
        yield OneDrawForAll({place: seeded_torch_state(place, _SEED) for place in before})
    finally:
        for place, state in before.items():
            set_torch_state(place, state)


class Drawn(Exception):
    """Something drew from torch's generator where nothing was expected to."""


@dataclass(frozen=True)
class NothingDrawn:
    """Says by the state of torch's own generators, which every draw moves, that nothing was drawn."""

    states: Mapping[torch.device, Tensor]

    used = False

    def __enter__(self) -> None:
        """Nothing needs to be watched."""

    def __exit__(self, *_: object) -> None: ...

    def check(self) -> None:
        if any(not torch.equal(torch_state(device), state) for device, state in self.states.items()):
            raise Drawn


@contextmanager
def no_randomness(device: torch.device) -> Iterator[NothingDrawn]:
    """Within, nothing may draw from torch's generators: `Drawn` otherwise, whatever else went wrong by then."""
    states = {place: torch_state(place) for place in (torch.device("cpu"), device)}
    nothing = NothingDrawn(states)
    try:
        yield nothing
    except Exception:
        nothing.check()
        raise
    else:
        nothing.check()
    finally:
        for place, state in states.items():
            set_torch_state(place, state)


@functools.lru_cache(maxsize=4096)
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class OneDrawForAll(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every random operation starts from one state, and all rows get what the first row drew.

    `used` says whether torch's own generator was drawn from; one that is passed by hand is left alone.
    """

    def __init__(self, states: Mapping[torch.device, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = False
        self._states = states  # of the generator of every device in use

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import it, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        for device, state in self._states.items():
            set_torch_state(device, state)
        drawn = self._draw(func, args, kwargs)
        self.used |= any(not torch.equal(torch_state(d), state) for d, state in self._states.items())
        return drawn

    def check(self) -> None:
        """Draws are expected."""

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            values, share, _ = args
            kept = (self._uniform(torch.empty_like(values)) < 1 - share).to(values.dtype)
            return values * kept / (1 - share), kept.bool()
        if (name, func._overloadname) in (("bernoulli", "default"), ("bernoulli_", "Tensor")):
            chances = args[-1]
            coins = self._uniform(torch.empty_like(chances, dtype=torch.float64)) < chances
            return args[0].copy_(coins) if name.endswith("_") else coins.to(args[0].dtype)
        drawn = func(*args, **kwargs)
        if name not in _SOURCES or not isinstance(drawn, Tensor):
            return drawn
        return _first_everywhere(drawn)

    def _uniform(self, room: Tensor) -> Any:
        return _first_everywhere(room.uniform_())


_DISTRIBUTIONS = (
    "uniform",
    "normal",
    "exponential",
    "geometric",
    "log_normal",
    "cauchy",
    "bernoulli",
    "random",
)
_SOURCES = frozenset(  # what they draw does not depend on rows
    [f"{name}_" for name in _DISTRIBUTIONS]
    + ["bernoulli", "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"]
)


def _first_everywhere(drawn: Any) -> Any:
    if not isinstance(drawn, Tensor) or drawn.dim() == 0 or len(drawn) < 2:
        return drawn
    return drawn.copy_(drawn[:1].clone().expand_as(drawn))
