"""What torch does inside a forward pass on public rows: whether it looks at values, and what it draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class ReadsValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether code asks what is in a tensor: what it does next may then depend on any row of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("index", "index_put", "index_put_"):  # by whole numbers, they read nothing for Python
            self.found |= any(
                isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
            )
        else:
            self.found |= name in _READING or not _READING_TAGS.isdisjoint(func.tags)
        return func(*args, **(kwargs or {}))


_READING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_READING = frozenset(["_local_scalar_dense", "equal", "is_nonzero", "sort", "argsort", "topk", "kthvalue"])


@contextmanager
def same_randomness() -> Iterator[OneDrawForAll]:
    """Within, what torch draws is the same for every row and each time: masks then tell nothing of a row."""
    with torch.random.fork_rng(devices=[]), OneDrawForAll(torch.get_rng_state()) as draws:
        yield draws


class OneDrawForAll(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every random operation starts from one state, and all rows get what the first row drew.

    `used` says whether torch's own generator was drawn from; one that is passed by hand is left alone.
    """

    def __init__(self, state: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = False
        self._state = state

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import it, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        torch.set_rng_state(self._state)
        drawn = self._draw(func, args, kwargs)
        self.used |= not torch.equal(torch.get_rng_state(), self._state)
        return drawn

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            values, share, _ = args
            kept = _first_everywhere(torch.empty_like(values).bernoulli_(1 - share))
            return values * kept / (1 - share), kept.bool()
        if (name, func._overloadname) in (("bernoulli", "default"), ("bernoulli_", "Tensor")):
            chances = args[-1]
            coins = _first_everywhere(torch.rand_like(chances, dtype=torch.float64)) < chances
            return args[0].copy_(coins) if name.endswith("_") else coins.to(args[0].dtype)
        drawn = func(*args, **kwargs)
        return _first_everywhere(drawn) if name in _SOURCES else drawn


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
