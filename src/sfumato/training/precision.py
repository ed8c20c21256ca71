"""Arithmetic that the rounding bounds were made for: plain float32, whatever was switched on outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_IEEE = ("ieee", "none")


@contextmanager
def plain_float32() -> Iterator[None]:
    """No autocast, and no TF32 or bfloat16 inside matrix products; afterwards everything as it was."""
    with ExitStack() as stack:
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
