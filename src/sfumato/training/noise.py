"""The noisy sum of a step: chunks add up in whole grid steps, and only the noised total is ever read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.mechanisms import GridGaussian
from sfumato.mechanisms.grid import add_to_grid
from sfumato.randomness import NoiseSource, side_by_side

JOINED = 4  # chunks that are added in float32 before they go to the grid


def joining_error(chunks: int, units: int) -> float:
    """Return the part of η that comes from taking the chunks of a step as float32 and adding them.

    Of k ≤ JOINED chunks with `units` units each, k - 1 additions, and the conversion of wider sums before, each
    round a sum of norm at most k · units · C by at most 2⁻²⁴ of it, for both of two neighbours. Whole numbers
    are added exactly.
    """
    joined = min(chunks, JOINED)
    return 1.02 * 2 * joined * joined * units * 2.0**-24  # 1.02: second-order terms


class NoisySum:
    """Adds up chunk sums, a few in float32 and these on the mechanism's grid, and releases the noised total.

    *Guarantees*: whole-number addition has no order, so one unit changes only its own chunk and the few joined
    with it; the rounding of joining is in `joining_error`. `release` draws noise for every coordinate or
    raises, and wipes the sum as it reads it. A sum without noise is never in memory that is handed out. Sums of
    an accelerator are joined there; grid and noise are the CPU's.

    Where the step has few chunks they are rounded, noised and scaled block by block in the cache, and the
    int64 total, eight bytes a parameter, is never touched.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._sizes = [parameter.numel() for parameter in parameters.values()]
        self.dimension = sum(self._sizes)
        # The last release and the next are kept, as fresh pages cost as much as a copy. They are never the same
        # memory: a caller who holds on to a release never sees a sum without noise.
        self._flat, self._staged = torch.zeros(self.dimension), torch.zeros(self.dimension)
        self._released, self._parts = self._shaped(self._flat.numpy()), self._shaped(self._staged.numpy())
        plain = [name for name, p in parameters.items() if p.dtype == torch.float32 and p.device.type == "cpu"]
        self._ground = {name: self._parts[name] for name in plain}
        self._lent = False  # whether sums may lie in `_staged`
        self._waiting: Mapping[str, Tensor] | None = None
        self._group = 0  # which chunks wait: those numbered JOINED · group and on
        self._total: npt.NDArray[np.int64] | None = None
        self._buffer: npt.NDArray[np.int64] | None = None  # kept from step to step, for its pages

    def ground(self) -> Mapping[str, Tensor]:
        """Return zeros that the sums of the first chunk may be written to, so that they need not be copied."""
        if self._lent or self._waiting is not None or self._total is not None:
            return {}
        self._lent = True
        return self._ground

    def add(self, sums: Mapping[str, Tensor], mechanism: GridGaussian, *, chunk: int = 0) -> None:
        """Add chunk number `chunk`, and take its memory; which chunks are joined depends on their numbers only.

        Counted by arrival, a chunk that one unit fills or leaves empty would join others differently.
        """
        if self._waiting is not None and self._group != chunk // JOINED:
            self.total(mechanism)
        single = {name: sums[name].detach().to(torch.float32) for name in self._shapes}
        if self._waiting is None:
            self._waiting, self._group = single, chunk // JOINED
            return
        for name, value in self._waiting.items():
            value += single[name]

    def total(self, mechanism: GridGaussian) -> npt.NDArray[np.int64]:
        """Return all that was added, in whole grid steps."""
        if self._total is None:
            self._buffer = np.empty(self.dimension, dtype=np.int64) if self._buffer is None else self._buffer
            self._buffer.fill(0)
            self._total = self._buffer
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            parts = self._split(self._total)
            largest_first = sorted(parts, key=lambda name: -parts[name].size)
            # Not on the threads that add to the grid: torch stays off those.
            values = [waiting[name].cpu().contiguous().view(-1).numpy() for name in largest_first]
            side_by_side(partial(add_to_grid, grid=mechanism.grid), map(parts.get, largest_first), values)
        if self._lent:
            self._staged.zero_()
            self._lent = False
        return self._total

    def release(self, mechanism: GridGaussian, sampler: NoiseSource, *, divisor: float) -> dict[str, Tensor]:
        """Return the noised sums over `divisor`, by parameter, until the next release; the sum is then zero."""
        out = self._flat.numpy()
        if self._waiting is None or self._total is not None:
            mechanism.release(self._emptied(mechanism), sampler, divisor=divisor, out=out)
            return self._released
        waiting, self._waiting = self._waiting, None
        for name, part in self._parts.items():
            if name not in self._ground or part.data_ptr() != waiting[name].data_ptr():
                part.copy_(waiting[name])
        mechanism.release(self._staged.numpy(), sampler, divisor=divisor, out=out)  # which leaves zeros
        self._lent = False
        return self._released

    def discard(self) -> None:
        """Forget the sum: wiped, so that nothing that still refers to it can be read."""
        for value in (self._waiting or {}).values():
            value.zero_()
        self._staged.zero_()
        if self._buffer is not None:
            self._buffer.fill(0)
        self._waiting = self._total = None
        self._lent = False

    def add_noise(self, mechanism: GridGaussian, sampler: NoiseSource) -> None:
        mechanism.add_noise_in_place(self.total(mechanism), sampler)

    def take(self, mechanism: GridGaussian, *, divisor: float) -> dict[str, Tensor]:
        """Return the total, to which noise was added, over `divisor`; the sum is then zero."""
        total = torch.from_numpy(self._emptied(mechanism))
        return self._shaped(total.to(torch.float32).mul_(mechanism.grid / divisor).numpy())

    def _emptied(self, mechanism: GridGaussian) -> npt.NDArray[np.int64]:
        total, self._total = self.total(mechanism), None
        return total

    def _split(self, flat: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        parts = np.split(flat, np.cumsum(self._sizes)[:-1])
        return dict(zip(self._shapes, parts, strict=True))  # views

    def _shaped(self, released: npt.NDArray[np.float32]) -> dict[str, Tensor]:
        parts = self._split(released).items()
        return {name: torch.from_numpy(part).view(self._shapes[name]) for name, part in parts}
