"""Which device a model is on, and how rows get there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput, UnsupportedModel

CPU = torch.device("cpu")


def device_of(model: nn.Module) -> torch.device:
    """The one device of all weights and buffers; the CPU where there are none.

    Raises:
        UnsupportedModel: If there are two, if the weights have no values, or if the device has no float64.

    >>> device_of(nn.Linear(2, 1))
    device(type='cpu')
    """
    found: dict[torch.device, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.setdefault(tensor.device, name)
    places = list(found)
    if len(places) > 1:
        here, there = (f"{found[place]} on {place}" for place in places[:2])
        raise UnsupportedModel(
            f"expected the whole model on one device, got {here} and {there}; call model.to({str(places[0])!r})"
        )
    if places and places[0].type == "meta":
        raise UnsupportedModel(
            f"expected weights with values, got {found[places[0]]} on the device 'meta'; build the model on a "
            "real device"
        )
    if places and places[0].type == "mps":
        raise UnsupportedModel(
            f"expected a device that computes in float64, which exact norms need, got {places[0]}; "
            "call model.to('cpu')"
        )
    return places[0] if places else CPU


def moved(data: Any, device: torch.device) -> Any:
    """The same tree with its tensors on the device."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), data)


def usable_device(name: str) -> torch.device:
    """The device of that name, if something can be put there.

    Raises:
        InvalidInput: If torch does not know the name, or the machine has no such device.

    >>> usable_device("cpu")
    device(type='cpu')
    """
    try:
        torch.zeros(1, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInput(
            f"expected a device that torch can use here, got device={name!r}; 'cpu' is always there"
        ) from error


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
    """Return the places where torch keeps the precision of products."""
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
    """Return all that torch chooses kernels by, besides shapes and types."""
    return (
        torch.get_num_threads(),
        torch._C._get_mkldnn_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
