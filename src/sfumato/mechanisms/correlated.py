"""Draws of correlated noise, step after step; the correlation is that of `factorisation.py`.

The kept past is as secret as the noise itself: with it the noise can be taken off the releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sfumato.errors import DataCorrupted, InvalidInput, Refused
from sfumato.mechanisms.factorisation import COEFFICIENT_BITS, Banded, Independent, LambdaCGD, Noise
from sfumato.randomness import Integers, NoiseSource, Sampler, keyed_normal

Past = Mapping[str, npt.NDArray[Any]]
_KEY_BYTES = 32
_EXACT = 2.0**52  # whole numbers that doubles hold, and sums of two of them
_FARTHEST = 16  # standard deviations that no draw is away
_LONG = 4096  # steps after which banded noise has forgotten a draw


class CorrelatedNoise(NoiseSource, Protocol):
    """One call of `rounded_normal` for each step, always of the same scale and size."""

    drawn: int  # steps
    forgotten: bool

    def check_scale(self, scale: float) -> None:
        """Refuse a scale that could not be drawn exactly, before anything is."""
        ...

    def past(self) -> Past:
        """Return the secret that later steps need of the steps so far."""
        ...

    def go_on(self, past: Past, drawn: int) -> None:
        """Take up the result of `past` after `drawn` steps."""
        ...

    def forget(self) -> None:
        """Wipe the past; no further step can be taken."""
        ...


def correlated_noise(noise: Noise, sampler: Sampler) -> CorrelatedNoise | None:
    """Return the source of a kind of noise; None for independent noise, which is the sampler's own.

    Args:
        noise: How the noise of a step follows from that of earlier ones.

    >>> from sfumato.randomness import SecretStream
    >>> source = correlated_noise(LambdaCGD(cancelled=0.5), SecretStream())
    >>> source.rounded_normal(1000.0, 3).shape, source.drawn
    ((3,), 1)
    """
    match noise:
        case Independent():
            return None
        case Banded():
            return BandedNoise(noise, sampler)
        case LambdaCGD():
            return RegeneratedNoise(noise, sampler)


class BandedNoise:
    """Whole-number noise w_t = ⌊z_t − Σᵢ cᵢ·w_{t−i} + ½⌋, i = 1 … bands − 1, in grid steps.

    *Guarantees*: with x_t whole, y_t = x_t + w_t = ⌊r_t − Σᵢ cᵢ·y_{t−i} + ½⌋, r_t = z_t + x_t + Σᵢ cᵢ·x_{t−i}.
    So all that is released is computed from r = Cx + z, a Gaussian release, and from itself. This is exact: cᵢ
    are whole multiples of 2⁻¹², z is drawn rounded to such multiples of a grid step, and all of it is added in
    whole numbers below 2⁵³. The rest of each rounding is fed back into the next steps.
    """

    def __init__(self, noise: Banded, sampler: Sampler) -> None:
        self._sampler = sampler
        column = noise.column(noise.bands) * 2**COEFFICIENT_BITS
        self._weights = column[1:]  # of the noise one step ago, two, …
        self._gain = float(np.abs(noise.inverse(_LONG)).sum())  # of noise over draws, at most
        self._last: npt.NDArray[np.float64] | None = None  # (bands - 1, size), step t in row t mod (bands - 1)
        self._scale = 0.0
        self.drawn = 0
        self.forgotten = False

    def check_scale(self, scale: float) -> None:
        _check_scale(scale * self._gain * (2**COEFFICIENT_BITS + float(self._weights.sum())))

    def rounded_normal(self, scale: float, size: int) -> Integers:
        last = self._memory(scale, size)
        noise = self._sampler.rounded_normal(scale * 2**COEFFICIENT_BITS, size)
        if self._weights.size:
            ages = (self.drawn - 1 - np.arange(self._weights.size)) % self._weights.size
            noise = noise - (self._weights[ages] @ last).astype(np.int64)
        noise = (noise + 2 ** (COEFFICIENT_BITS - 1)) >> COEFFICIENT_BITS
        self._remember(noise, last)
        return noise

    def past(self) -> Past:
        if self._last is None:
            raise InvalidInput("expected a first step before its noise is kept, got none")
        return {"last": self._last.astype(np.int64), "scale": np.array([self._scale])}

    def go_on(self, past: Past, drawn: int) -> None:
        _check_fields(past, "last", "scale")
        last = np.asarray(past["last"], dtype=np.float64)
        if last.ndim != 2 or len(last) != self._weights.size:
            raise InvalidInput("expected the past noise of a plan with as many bands, got that of another")
        self._last, self._scale, self.drawn = last, float(past["scale"][0]), drawn

    def forget(self) -> None:
        if self._last is not None:
            self._last.fill(0)
        self.forgotten = True

    def _memory(self, scale: float, size: int) -> npt.NDArray[np.float64]:
        _check_kept(self.forgotten)
        if self._last is None:
            self._last, self._scale = np.zeros((self._weights.size, size)), scale
        if self._last.shape[1] != size or self._scale != scale:
            raise Refused(
                "expected noise of one scale for one number of parameters in all steps of a run, got another; "
                "correlated noise has one clipping norm: train without adaptive clipping"
            )
        return self._last

    def _remember(self, noise: Integers, last: npt.NDArray[np.float64]) -> None:
        if self._weights.size:
            if float(np.abs(noise).max(initial=0)) * float(self._weights.sum()) >= _EXACT:
                raise Refused(
                    "expected noise below 2**40 grid steps, got more; choose a smaller noise_multiplier"
                )
            last[self.drawn % self._weights.size] = noise
        self.drawn += 1


class RegeneratedNoise:
    """Whole-number noise w_t = ⌊z_t − λ·z_{t−1} + ½⌋ in grid steps; z_{t−1} is drawn again from its key.

    *Guarantees*: with x_t whole, x_t + w_t = ⌊x_t + z_t − λ·z_{t−1} + ½⌋: rounding of the ideal release
    x + C⁻¹z. As for all float64 normals here, z is taken as ideal up to its one rounding to the grid, so the
    difference of two of them is as well: it is off by 2⁻⁵² of σ, where a grid step is about σ / (2¹⁰·√d). Each
    step's key comes from the sampler, and is used for that step and the next.
    """

    def __init__(self, noise: LambdaCGD, sampler: Sampler) -> None:
        self._sampler = sampler
        self._cancelled = noise.cancelled
        self._key: bytes | None = None
        self.drawn = 0
        self.forgotten = False
        self._form: tuple[float, int] | None = None

    def check_scale(self, scale: float) -> None:
        _check_scale(scale)

    def rounded_normal(self, scale: float, size: int) -> Integers:
        _check_kept(self.forgotten)
        if self._form not in (None, (scale, size)):
            raise Refused(
                "expected noise of one scale for one number of parameters in all steps of a run, got another; "
                "correlated noise has one clipping norm: train without adaptive clipping"
            )
        key = self._sampler.integers(256, _KEY_BYTES).astype(np.uint8).tobytes()
        noise = keyed_normal(key, size)
        if self._key is not None:
            noise -= self._cancelled * keyed_normal(self._key, size)
        noise *= scale
        noise += 0.5
        self._key, self._form = key, (scale, size)
        self.drawn += 1
        return np.floor(noise, out=noise).astype(np.int64)

    def past(self) -> Past:
        if self._key is None or self._form is None:
            raise InvalidInput("expected a first step before its noise is kept, got none")
        scale, size = self._form
        key = np.frombuffer(self._key, dtype=np.uint8)
        return {"key": key, "scale": np.array([scale]), "size": np.array([size])}

    def go_on(self, past: Past, drawn: int) -> None:
        _check_fields(past, "key", "scale", "size")
        self._key, self.drawn = past["key"].tobytes(), drawn
        self._form = float(past["scale"][0]), int(past["size"][0])

    def forget(self) -> None:
        self._key, self.forgotten = None, True


def _check_scale(largest: float) -> None:
    if not largest * _FARTHEST < _EXACT:
        raise InvalidInput(
            "expected noise that doubles hold exactly, got a scale beyond that; use a smaller noise_multiplier"
        )


def _check_fields(past: Past, *names: str) -> None:
    if set(past) != set(names) or not past["scale"].size:
        raise DataCorrupted(f"expected past noise with the fields {', '.join(names)}, got another kind of file")


def _check_kept(forgotten: bool) -> None:
    if forgotten:
        raise Refused("expected a run that goes on, got one whose past noise was destroyed; start a new run")
