"""Made-up rows and weights, which are shown to model, loss and views in place of private ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato.randomness import fresh_seed, public_torch_generator
from sfumato.training.interrupts import undisturbed

_DRAWN = 65521  # values by which weights are moved, again and again: a prime, so that no two lines are alike


def random_rows(like: Any, rows: int, seed: int = 21, *, most: int = 1) -> Any:
    """Public random rows with the shapes and types of the given data; whole numbers up to `most`."""
    generator = public_torch_generator(seed)

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        shape = (rows, *leaf.shape[1:])
        if leaf.is_floating_point():
            return torch.randn(shape, generator=generator).to(leaf)
        return torch.randint(0, most + 1, shape, generator=generator).to(leaf)

    return pytree.tree_map(draw, like)


def first(rows: Any, count: int) -> Any:
    return pytree.tree_map(lambda leaf: leaf[:count] if holds_rows(leaf) else leaf, rows)


def repeated(rows: Any, times: int) -> Any:
    """Each row as often as it has views."""
    return pytree.tree_map(lambda leaf: leaf.repeat_interleave(times, 0) if holds_rows(leaf) else leaf, rows)


def holds_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


@contextmanager
def other_weights(model: nn.Module, seed: int | None = None) -> Iterator[None]:
    """Within, every trainable weight is another one, of the usual size: zeros or huge ones would hide mixing.

    Half of the numbers are moved, half are replaced but for their signs, which models may rely on. All is drawn
    anew for each `seed`, and for each call without one: nobody can choose weights that undo it.
    """
    generator = public_torch_generator(fresh_seed() if seed is None else seed)
    kept = {p: p.data for p in model.parameters() if p.requires_grad and p.is_floating_point()}
    try:
        for parameter, value in kept.items():
            parameter.data = _other_values(value, generator)
        yield
    finally:
        with undisturbed():
            for parameter, value in kept.items():
                parameter.data = value


def _other_values(value: Tensor, generator: torch.Generator) -> Tensor:
    inputs = value.numel() // max(1, len(value)) if value.dim() > 1 else 100
    drawn = torch.randn(2, min(value.numel(), _DRAWN), generator=generator).to(value)
    noise, coins = drawn.repeat(1, -(-value.numel() // _DRAWN))[:, : value.numel()].view(2, *value.shape)
    noise = noise / math.sqrt(max(1, inputs))
    replaced = torch.where(value == 0, noise, noise.abs().copysign(value))
    return torch.where(coins > 0, value + noise, replaced)
