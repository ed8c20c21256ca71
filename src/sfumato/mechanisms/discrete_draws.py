"""Many draws of a wide discrete Gaussian at once: whole-number noise for long vectors.

The line of magnitudes is cut into blocks of a power of two. A draw picks a block by the largest weight in it, a
place in the block and a sign at random, and is kept with the place's weight over that largest one: rejection
sampling, from whole random words only. Doubles decide where they are sure to decide right; where they are not,
a second word and sixty decimal digits do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.randomness import Sampler

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LARGEST_SIGMA = 2.0**45  # places then are whole numbers below 2⁵³, which doubles hold
_WORD = 2**63
_REACH = 14  # standard deviations; beyond lies less than 2⁻¹⁴⁰
_BLOCKS = 16  # in a standard deviation, at least
_UNSURE = 2.0**20  # of 2⁶³: what doubles may err by, many times over
_DIGITS = 60
_AT_A_TIME = 1 << 15
_SIGN = 1 << 62


def discrete_gaussian_draws(sampler: Sampler, sigma: float, size: int) -> Integers:
    """Independent draws with P(x) ∝ exp(−x² / 2σ²).

    *Guarantees*: each draw is within 2⁻¹¹⁰ of this law in total variation, if the sampler's whole numbers are
    uniform. *Proof.* Magnitudes end at 14σ, which leaves out less than 2⁻¹⁴⁰. Let block b have the magnitudes
    bw … bw + w − 1, and W_b = exp(−(bw)²/2σ²), the largest weight in it. A proposal has chance W_b/ΣW · 1/w ·
    ½ and is kept with chance exp(−x²/2σ²)/W_b, so that kept ones have chances ∝ exp(−x²/2σ²); of the two signs
    of zero one is kept. Both chances are compared with a random word of 63 bits, and where that is undecided
    with one more: what 126 bits leave undecided is less than 2⁻¹¹⁷ in each draw. For the second chance a double
    p̃ is at hand. Its exponent is below 1 and wrong by less than 2⁻⁴⁹, and so p̃ by less than 2⁻⁴⁷, rounding of
    the word included; a word within 2⁻⁴³ of p̃ is decided in decimals instead.

    Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential privacy", for the law; Karney 2016,
    "Sampling exactly from the normal distribution", for deciding lazily.

    Args:
        sampler: The secret stream.
        sigma: σ of the formula, from 0.25 to 2⁴⁵.
        size: How many draws.

    Returns:
        The draws, as int64.

    Raises:
        InvalidInput: If σ is outside its range; nothing is drawn.

    >>> from sfumato.randomness import SecretStream
    >>> draws = discrete_gaussian_draws(SecretStream(), 1000.0, 10_000)
    >>> bool(900 < draws.std() < 1100)
    True
    """
    blocks = _blocks(_checked(sigma))
    draws = np.empty(_validate.integer("size", size), dtype=np.int64)
    filled = 0
    while filled < size:
        missing = size - filled
        kept = blocks.propose(sampler, min(_AT_A_TIME, missing + missing // 16 + 64))[:missing]
        draws[filled : filled + kept.size] = kept
        filled += kept.size
    return draws


@dataclass(frozen=True)
class _Blocks:
    """The blocks for one σ."""

    sigma: float

    @cached_property
    def width(self) -> int:
        return 1 << max(0, math.frexp(self.sigma / _BLOCKS)[1] - 1)

    @cached_property
    def ends(self) -> list[Decimal]:
        """2⁶³ · chance of this block or one before it, for all blocks but the last."""
        with localcontext() as context:
            context.prec = _DIGITS
            count = math.ceil(_REACH * self.sigma / self.width) + 1
            weights = [self.weight(self.width * block) for block in range(count)]
            total, sums, so_far = sum(weights), [], Decimal(0)
            for weight in weights[:-1]:
                so_far += weight
                sums.append(so_far * _WORD / total)
            return sums

    @cached_property
    def whole_ends(self) -> Integers:
        return np.array([min(int(end), _WORD - 1) for end in self.ends], dtype=np.int64)

    def weight(self, place: int) -> Decimal:
        return (-(Decimal(place) ** 2) / (2 * Decimal(self.sigma) ** 2)).exp()

    def propose(self, sampler: Sampler, size: int) -> Integers:
        """Those of `size` proposals that are kept."""
        first, second, third = (sampler.integers(_WORD, size) for _ in range(3))
        starts = self.width * self._choose(first, sampler)
        places = second & (self.width - 1)
        negative = (second & _SIGN) != 0
        magnitudes = starts + places
        kept = self._keep(starts, places, third, sampler) & ~(negative & (magnitudes == 0))
        return np.where(negative, -magnitudes, magnitudes)[kept]

    def _choose(self, words: Integers, sampler: Sampler) -> Integers:
        """The block of each word: how many ends lie at or below it."""
        ends = self.whole_ends
        chosen = np.searchsorted(ends, words, side="right").astype(np.int64)
        unsure = np.flatnonzero((chosen > 0) & (ends[chosen - 1] == words))
        for place in unsure:
            word = _longer(int(words[place]), sampler)
            chosen[place] = sum(end <= word for end in self.ends)
        return chosen

    def _keep(self, starts: Integers, places: Integers, words: Integers, sampler: Sampler) -> Bools:
        """Whether a word of 2⁶³ falls below exp(−(x² − start²)/2σ²), x = start + place."""
        places_, starts_ = places.astype(np.float64), starts.astype(np.float64)
        limits = np.exp(places_ * (2 * starts_ + places_) / (-2 * self.sigma**2)) * _WORD
        gaps = limits - words
        kept = gaps > 0
        for place in np.flatnonzero(np.abs(gaps) < _UNSURE):
            start, offset = int(starts[place]), int(places[place])
            with localcontext() as context:
                context.prec = _DIGITS
                chance = self.weight(start + offset) / self.weight(start)
                kept[place] = _longer(int(words[place]), sampler) < chance * _WORD
        return kept


def _longer(word: int, sampler: Sampler) -> Decimal:
    """The word with 63 bits more behind the point."""
    with localcontext() as context:
        context.prec = _DIGITS
        return word + Decimal(int(sampler.integers(_WORD, 1)[0])) / _WORD


@lru_cache(maxsize=64)
def _blocks(sigma: float) -> _Blocks:
    return _Blocks(sigma)


def _checked(sigma: float) -> float:
    if not 0.25 <= _validate.positive("sigma", sigma) <= LARGEST_SIGMA:
        raise InvalidInput(
            f"expected sigma in [0.25, 2**45] grid steps, got sigma={sigma!r}; choose another grid for the sums"
        )
    return float(sigma)
