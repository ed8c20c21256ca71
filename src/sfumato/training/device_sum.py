"""The noisy sum of a step on an accelerator, and its noise, which is drawn on the CPU in the meantime."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.errors import InvalidInput
from sfumato.mechanisms import GridGaussian
from sfumato.mechanisms.grid import LIMIT
from sfumato.randomness import NoiseSource, SecretStream


class _Drawing(NamedTuple):
    mechanism: GridGaussian
    noise: Future[npt.NDArray[np.int64]]


class NoiseAhead:
    """The noise of one release, drawn by a thread while the device computes.

    *Guarantees*: noise is used once, by a release of the very mechanism that it was drawn for, or wiped. It
    comes from a stream of its own, so that what other threads draw meanwhile is never the same. A forked child
    has none, and neither has a copy or a pickle: they draw their own. A sampler that is not a plain
    `SecretStream`, such as a recorded tape, is asked when the noise is needed, on the asking thread.
    """

    def __init__(self) -> None:
        self._stream: SecretStream | None = None
        self._drawing: _Drawing | None = None
        self._pool: ThreadPoolExecutor | None = None
        _all_ahead.add(self)

    def begin(self, mechanism: GridGaussian, sampler: NoiseSource) -> None:
        self.throw_away()
        if type(sampler) is not SecretStream:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "noise-ahead")
        self._stream = sampler.spawn() if self._stream is None else self._stream
        self._drawing = _Drawing(mechanism, self._pool.submit(mechanism.draw, self._stream))

    def take(self, mechanism: GridGaussian, sampler: NoiseSource) -> npt.NDArray[np.int64]:
        """The noise, which belongs to the caller from now on."""
        if self._drawing is None or self._drawing.mechanism != mechanism:
            self.throw_away()
            return mechanism.draw(sampler)
        drawing, self._drawing = self._drawing, None
        return drawing.noise.result()

    def throw_away(self) -> None:
        """Forget what was drawn; what is being drawn is wiped when it is there."""
        drawing, self._drawing = self._drawing, None
        if drawing is not None:
            drawing.noise.add_done_callback(_wipe)

    def _forget(self) -> None:
        self._drawing = self._pool = None

    def __reduce__(self) -> tuple[type[NoiseAhead], tuple[()]]:
        return NoiseAhead, ()


def _wipe(drawn: Future[npt.NDArray[np.int64]]) -> None:
    if not drawn.cancelled() and drawn.exception() is None:
        drawn.result().fill(0)


_all_ahead: weakref.WeakSet[NoiseAhead] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for ahead in list(_all_ahead):
        drawing = ahead._drawing
        if drawing is not None and drawing.noise.done():
            _wipe(drawing.noise)
        ahead._forget()  # its thread is not here


os.register_at_fork(after_in_child=_forget_after_fork)


class DeviceSum:
    """Adds up chunk sums in whole grid steps on the device, and releases the noised total there.

    *Guarantees*: those of `noise.NoisySum`; every chunk goes to the grid by itself. Multiplying a float32 by a
    power of two, taking its floor and adding whole numbers are exact, on every device. The noise
    is drawn on the CPU and comes over once a step.
    """

    def __init__(self, parameters: Mapping[str, Tensor], device: torch.device) -> None:
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._sizes = [parameter.numel() for parameter in parameters.values()]
        self.dimension = sum(self._sizes)
        self._device = device
        self._total: Tensor | None = None  # on the device
        self._on_cpu: npt.NDArray[np.int64] | None = None  # the same, once ranks add theirs up
        self._ahead = NoiseAhead()

    def prepare(self, mechanism: GridGaussian, sampler: NoiseSource) -> None:
        """Begin to draw the noise of the step that is about to be computed."""
        self._ahead.begin(mechanism, sampler)

    def ground(self) -> Mapping[str, Tensor]:
        """Nothing: sums are taken from where they are."""
        return {}

    def add(self, sums: Mapping[str, Tensor], mechanism: GridGaussian, *, chunk: int = 0) -> None:
        parts = [sums[name].detach().to(torch.float32).reshape(-1) for name in self._shapes]
        steps = _to_grid(torch.cat(parts), mechanism.grid)
        self._total = steps if self._total is None else self._total.add_(steps)

    def release(self, mechanism: GridGaussian, sampler: NoiseSource, *, divisor: float) -> dict[str, Tensor]:
        total = self._emptied()
        try:
            total += torch.from_numpy(self._ahead.take(mechanism, sampler)).to(self._device)
            return self._shaped(total.to(torch.float32).mul_(mechanism.grid / divisor))
        finally:
            total.zero_()

    def discard(self) -> None:
        self._ahead.throw_away()
        if self._total is not None:
            self._total.zero_()
        if self._on_cpu is not None:
            self._on_cpu.fill(0)
        self._total = self._on_cpu = None

    # Several ranks add up on the CPU

    def total(self, mechanism: GridGaussian) -> npt.NDArray[np.int64]:
        if self._on_cpu is None:
            self._on_cpu = self._emptied().cpu().numpy()
        return self._on_cpu

    def add_noise(self, mechanism: GridGaussian, sampler: NoiseSource) -> None:
        total = self.total(mechanism)
        total += self._ahead.take(mechanism, sampler)

    def take(self, mechanism: GridGaussian, *, divisor: float) -> dict[str, Tensor]:
        total = torch.from_numpy(self.total(mechanism))
        self._on_cpu = None
        return self._shaped(total.to(torch.float32).mul_(mechanism.grid / divisor).to(self._device))

    def _emptied(self) -> Tensor:
        total, self._total = self._total, None
        return torch.zeros(self.dimension, dtype=torch.int64, device=self._device) if total is None else total

    def _shaped(self, flat: Tensor) -> dict[str, Tensor]:
        parts = zip(self._shapes.items(), torch.split(flat, self._sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_total": None, "_on_cpu": None}  # no copy holds a sum without noise


def _to_grid(values: Tensor, grid: float) -> Tensor:
    """⌊values / grid + ½⌋ = ⌊(⌊2·values / grid⌋ + 1) / 2⌋, as `mechanisms.grid.to_grid` has it."""
    twice = values * (2.0 / grid)
    if not bool((twice.abs() < 2.0 * LIMIT).all()):  # NaN, which is less than nothing, is outside
        raise InvalidInput(
            "expected sums to be finite and within reach of the grid, got some that are not; clip them first"
        )
    return twice.floor_().to(torch.int64).add_(1).bitwise_right_shift_(1)
