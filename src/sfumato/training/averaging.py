"""A running average of the weights: post-processing, so it costs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """w̄ ← d·w̄ + (1−d)·w with d = min(decay, (1+t)/(10+t)); decay 0 keeps no average."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self.updates = 0
        self.values: dict[str, Tensor] = {}
        if decay:
            self.values = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        for name, value in self.values.items():
            value.lerp_(self._parameters[name], 1 - decay)
        self.updates += 1

    @torch.no_grad()
    def take_up(self, values: Mapping[str, Tensor], updates: int) -> None:
        """Go on from an average that was kept, on whatever device the weights are now."""
        for name, value in self.values.items():
            value.copy_(values[name])
        self.updates = updates

    @contextmanager
    def applied(self) -> Iterator[None]:
        kept = {name: self._parameters[name].detach().clone() for name in self.values}
        try:
            self._load(self.values)
            yield
        finally:
            self._load(kept)

    @torch.no_grad()
    def _load(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)
