"""Which of several counts is the largest, by noise on each count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.gaussian import DISCRETENESS
from sfumato.mechanisms.grid import Integers
from sfumato.mechanisms.laplace import floored_laplace, no_less_noise, rounded_laplace
from sfumato.randomness import Sampler


def _floored_exponential(sampler: Sampler, scale: float, size: int) -> Integers:
    # |L| of Laplace L is exponential; below zero ⌊L⌋ = −⌊|L|⌋ − 1, whose bits are those of ⌊|L|⌋ inverted.
    floored = floored_laplace(sampler, scale, size)
    return np.where(floored < 0, ~floored, floored)


def _rounded_gumbel(sampler: Sampler, scale: float, size: int) -> Integers:
    # −ln E of exponential E; a uniform 0, of chance 2⁻⁵³, is taken as the middle of its step.
    uniform = np.maximum(sampler.uniform(size), 2.0**-54)
    return np.floor(-np.log(-np.log1p(-uniform)) * scale + 0.5).astype(np.int64)


def _discrete_gaussian(sampler: Sampler, scale: float, size: int) -> Integers:
    return sampler.discrete_gaussian(scale, size)


NOISES: MappingProxyType[str, Callable[[Sampler, float, int], Integers]] = MappingProxyType(
    {
        "laplace": rounded_laplace,
        "exponential": _floored_exponential,
        "gumbel": _rounded_gumbel,
        "gaussian": _discrete_gaussian,
    }
)
"""Draws of each kind of noise in whole grid steps."""


@dataclass(frozen=True, kw_only=True)
class NoisyMax:
    """The index of the largest of `candidates` counts, noise of the given scale added to each.

    Released is argmaxᵢ(countᵢ + Zᵢ) and nothing else: neither the count nor the gap.

    *Guarantees*: let a neighbouring data set move each count by at most Δ = `sensitivity`. Noise "laplace"
    (report noisy max), "exponential" (the same choice as permute-and-flip, and never worse than the
    exponential mechanism) and "gumbel" (the same choice as the exponential mechanism) are ε-DP with
    ε = 2Δ/scale, or Δ/scale if all counts move the same way (`monotone`, such as votes under add/remove) or
    only one of them moves (`changed=1`). Noise "gaussian" (GNMax) costs a Gaussian mechanism of noise
    multiplier scale / (Δ√changed): post-processing of all noised counts, of which `changed` move; 2 votes for
    a teacher who changes their mind. Without `changed` every count may move. Counts are rounded to a
    power-of-two grid, which is allowed for in Δ (nothing for whole numbers and Δ=1), and of equal noised
    counts the first wins: shifting a threshold by one step changes the chance of passing it by at most
    e^(grid/scale), for discrete noise as for continuous. Laplace, exponential and Gaussian noise is exact
    (OpenDP); for Gumbel the float64 uniform is taken as ideal. NaN, infinite and too many or few counts are
    refused before any noise is drawn. Public: all fields. Secret: the counts, the noise.

    Dwork & Roth 2014, section 3.3, claim 3.9; McSherry & Talwar 2007 and Durfee & Rogers 2019
    for Gumbel; McKenna & Sheldon 2020 and Ding et al. 2021, "The permute-and-flip mechanism is identical to
    report-noisy-max with exponential noise"; Papernot et al. 2018, section 4.1, for Gaussian.

    Args:
        noise: "laplace", "exponential", "gumbel" or "gaussian".
        candidates: How many counts there are.
        sensitivity: Δ, by how much one unit moves one count.
        scale: The scale of the noise, or its σ if it is Gaussian.
        changed: How many counts one unit can move; None for all of them.
        monotone: True if one unit moves all counts the same way.

    >>> from sfumato.randomness import SecretStream
    >>> vote = NoisyMax.calibrated(noise="exponential", candidates=3, sensitivity=1, epsilon=1.0)
    >>> vote.scale
    2.0
    >>> vote.release(np.array([5, 900, 7]), SecretStream())
    1
    """

    noise: str
    candidates: int
    sensitivity: float
    scale: float
    changed: int | None = None
    monotone: bool = False

    def __post_init__(self) -> None:
        _validate.one_of("noise", self.noise, NOISES)
        _validate.integer("candidates", self.candidates, least=1)
        _validate.positive("sensitivity", self.sensitivity)
        grids.check_noise("scale", self.scale, self.sensitivity, self.grid)
        if self.changed is not None and _validate.integer("changed", self.changed, least=1) > self.candidates:
            raise InvalidInput(
                f"expected changed <= candidates={self.candidates}, got changed={self.changed};"
                " it is how many of the counts one record can move"
            )

    @classmethod
    def calibrated(
        cls,
        *,
        noise: str,
        candidates: int,
        sensitivity: float,
        epsilon: float,
        delta: float = 0.0,
        changed: int | None = None,
        monotone: bool = False,
    ) -> NoisyMax:
        """Return the least noise that costs at most (ε, δ); δ > 0 is for Gaussian noise, and only for it."""
        unit = cls(
            noise=noise,
            candidates=candidates,
            sensitivity=sensitivity,
            scale=sensitivity,
            changed=changed,
            monotone=monotone,
        )
        if noise == "gaussian":
            return replace(unit, scale=accounting.gaussian_noise_multiplier(epsilon, delta) * unit._reach)
        if delta != 0:
            raise InvalidInput(f"expected delta=0 for noise={noise!r}, got delta={delta!r}; its cost is pure ε")
        return replace(unit, scale=no_less_noise(unit._reach, _validate.positive("epsilon", epsilon)))

    @property
    def grid(self) -> float:
        return grids.scalar_grid(self.sensitivity, 1.0)

    def event(self) -> accounting.DpEvent:
        if self.noise == "gaussian":
            return accounting.GaussianEvent(self.scale / self._reach)
        if self.noise == "gumbel":
            return accounting.ExponentialMechanismEvent(self._reach / self.scale)
        return accounting.pure(self._reach / self.scale)

    def release(self, counts: npt.NDArray[Any], sampler: Sampler) -> int:
        """Return the index of the winner."""
        return int(self.release_each(np.asarray(counts)[np.newaxis], sampler)[0])

    def release_each(self, rows: npt.NDArray[Any], sampler: Sampler) -> Integers:
        """Return the winner of each row of counts (releases, candidates); each row costs one event."""
        rows = np.asarray(rows)
        if rows.ndim != 2 or rows.shape[1] != self.candidates:
            raise InvalidInput(
                f"expected counts for candidates={self.candidates}, got an array of shape {rows.shape[1:]};"
                " the number of candidates is public and part of the mechanism"
            )
        whole = grids.to_grid(rows, self.grid)
        noise = NOISES[self.noise](sampler, self.scale / self.grid, whole.size)
        return np.argmax(whole + noise.reshape(whole.shape), axis=1)

    @property
    def _reach(self) -> float:
        """The distance by which a neighbouring data set moves the counts that the noise hides."""
        step = grids.sensitivity_on_grid(self.sensitivity, self.grid, 1.0)
        if self.noise == "gaussian":
            return step * math.sqrt(self.changed or self.candidates) * DISCRETENESS
        # Against a standing rival a count moves by Δ if all move alike, by 2Δ if it falls and the rival rises.
        return step if self.monotone or self.changed == 1 else 2 * step
