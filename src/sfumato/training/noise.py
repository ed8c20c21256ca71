"""The noisy sum of a step: chunks add up in whole grid steps, and only the noised total is ever read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sfumato.errors import Refused
from sfumato.mechanisms import GridGaussian
from sfumato.mechanisms.grid import add_to_grid
from sfumato.randomness import Sampler


class NoisySum:
    """Adds up chunk sums on the mechanism's grid, exactly, and releases the total with its noise.

    *Guarantees*: whole-number addition has no order, so one unit changes only what its own chunk added; `release`
    draws noise for every coordinate or raises, and empties the sum, so that nothing is read twice.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        sizes = [parameter.numel() for parameter in parameters.values()]
        self.total = np.zeros(sum(sizes), dtype=np.int64)
        parts = np.split(self.total, np.cumsum(sizes)[:-1]) if sizes else []
        self._parts = dict(zip(self._shapes, parts, strict=True))  # views into the total

    @property
    def dimension(self) -> int:
        return int(self.total.size)

    def add(self, sums: Mapping[str, Tensor], mechanism: GridGaussian) -> None:
        for name, part in self._parts.items():
            add_to_grid(part, sums[name].detach().contiguous().view(-1).numpy(), mechanism.grid)

    def release(self, mechanism: GridGaussian, sampler: Sampler) -> dict[str, Tensor]:
        """The noised sums as float32, by parameter; the sum starts again from zero."""
        self.add_noise(mechanism, sampler)
        return self.take(mechanism)

    def add_noise(self, mechanism: GridGaussian, sampler: Sampler) -> None:
        before = self.total[:64].copy()
        mechanism.add_noise_in_place(self.total, sampler)
        if np.array_equal(before, self.total[:64]):
            # σ is at least a thousand grid steps: 64 draws that all round to zero are no draws at all.
            raise Refused("the sampler drew no noise; nothing was released, and the step did not happen")

    def take(self, mechanism: GridGaussian) -> dict[str, Tensor]:
        """What the total has become, as float32; the sum starts again from zero."""
        values = torch.from_numpy(self.total).to(torch.float32).mul_(mechanism.grid)
        self.total.fill(0)
        pieces = values.split([int(np.prod(shape, dtype=np.int64)) for shape in self._shapes.values()])
        return {
            name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
