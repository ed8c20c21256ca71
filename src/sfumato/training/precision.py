"""Arithmetic that the rounding bounds were made for: plain float32, whatever was switched on outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_IEEE = ("ieee", "none")


@contextmanager
def plain_float32() -> Iterator[None]:
    """No autocast, no TF32 or bfloat16 inside matrix products, and sums in one order; afterwards all as it was.

    Otherwise threads add the values for one place of `index_put` in the order of the moment: a row would
    have other bits each time.
    """
    with ExitStack() as stack:
        if not torch.are_deterministic_algorithms_enabled():
            fills: Any = torch.utils.deterministic
            stack.callback(setattr, fills, "fill_uninitialized_memory", fills.fill_uninitialized_memory)
            stack.callback(torch.use_deterministic_algorithms, False)
            fills.fill_uninitialized_memory = False  # no listed operation reads unwritten memory
            torch.use_deterministic_algorithms(True)
        for device in ("cpu", "cuda", "xpu"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        for place in _places():
            if place.fp32_precision not in _IEEE:
                stack.callback(setattr, place, "fp32_precision", place.fp32_precision)
                place.fp32_precision = "ieee"
        yield


def _places() -> tuple[Any, ...]:
    """Where torch keeps how exact products are; each answers with what holds there, inherited or not."""
    backends: Any = torch.backends
    return (
        backends.mkldnn.matmul,
        backends.mkldnn.conv,
        backends.mkldnn.rnn,
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.cuda.matmul,
    )


def settings() -> tuple[Any, ...]:
    """By what torch chooses kernels and shares out their work, besides shapes and types."""
    return (
        torch.get_num_threads(),
        torch._C._get_mkldnn_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
