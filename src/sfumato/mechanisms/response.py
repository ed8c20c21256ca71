"""Randomized response: each person's answer is noised before it leaves them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import Bools, Sampler


@dataclass(frozen=True, kw_only=True)
class KaryResponse:
    """One of k answers: the true one with probability e^ε / (e^ε + k − 1), else another one, evenly.

    *Guarantees*: pure ε for one answer replaced by any other. The chance of another answer, a multiple of
    2⁻⁵³ in the sampler, is rounded up, so that the ratio never exceeds e^ε. Answers other than 0 … k−1 are
    refused before anything is drawn. Public: classes, epsilon. Secret: the answers.

    Kairouz, Bonawitz & Ramage 2016, "Discrete distribution estimation under local privacy", k-RR.

    Args:
        classes: k, the number of possible answers.
        epsilon: The ε of one report.

    >>> from sfumato.randomness import SecretStream
    >>> mechanism = KaryResponse(classes=10, epsilon=4.0)
    >>> round(mechanism.keep_probability, 4)
    0.8585
    >>> mechanism.release(np.array([3, 1, 4]), SecretStream()).shape
    (3,)
    """

    classes: int
    epsilon: float

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, least=2)
        _validate.positive("epsilon", self.epsilon)

    @property
    def keep_probability(self) -> float:
        return 1.0 - self._lie_probability

    @property
    def _lie_probability(self) -> float:
        # (k−1) / (e^ε + k−1), written so that e^ε cannot overflow; one step up covers the rounding of doubles.
        others = (self.classes - 1) * math.exp(-self.epsilon)
        return coin_probability(math.nextafter(others / (1.0 + others), 1.0))

    def event(self) -> accounting.DpEvent:
        # There: with this chance an answer is drawn evenly from all k, the true one included.
        redrawn = self._lie_probability * self.classes / (self.classes - 1)
        return accounting.RandomizedResponseEvent(min(1.0, redrawn), self.classes)

    def release(self, answers: npt.NDArray[Any], sampler: Sampler) -> Integers:
        """Return one report for each answer; each person's answer may be released once."""
        truth = check_answers(answers, self.classes)
        lies = sampler.bernoulli(self._lie_probability, truth.size).reshape(truth.shape)
        steps = 1 + sampler.integers(self.classes - 1, truth.size).reshape(truth.shape)
        return np.where(lies, (truth + steps) % self.classes, truth)

    def channel(self) -> Floats:
        """P(report | answer), a row for each answer.

        >>> KaryResponse(classes=3, epsilon=math.log(2)).channel()[0].round(6).tolist()
        [0.5, 0.25, 0.25]
        """
        matrix = np.full((self.classes, self.classes), self._lie_probability / (self.classes - 1))
        np.fill_diagonal(matrix, self.keep_probability)
        return matrix

    def estimate(self, reports: npt.NDArray[Any]) -> Floats:
        """Unbiased estimate of the share of each answer (a share may come out below 0)."""
        counts = np.bincount(check_answers(reports, self.classes).reshape(-1), minlength=self.classes)
        lie = self._lie_probability / (self.classes - 1)
        shares: Floats = (counts / max(counts.sum(), 1) - lie) / (self.keep_probability - lie)
        return shares


class Proportion(NamedTuple):
    """An estimated share and its standard error.

    Attributes:
        value: The share, which noise may put below 0 or above 1.
        standard_error: Its standard error.
    """

    value: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class TwoCoinResponse:
    """Yes or no by two coins: the first says whether to answer truly, else the second answers.

    With t = `truth` and y = `yes`: P(yes | yes) = t + (1−t)y and P(yes | no) = (1−t)y.

    *Guarantees*: pure ε for one answer replaced by the other,
    ε = ln max((t + (1−t)y) / ((1−t)y), (t + (1−t)(1−y)) / ((1−t)(1−y))); ln 3 for two fair coins. Coins are
    thrown, and ε is computed, with chances that are multiples of 2⁻⁵³. Answers other than 0 and 1 are refused
    before anything is drawn. Public: both coins. Secret: the answers.

    Warner 1965, "Randomized response"; Dwork & Roth 2014, section 3.2.

    Args:
        truth: The chance of a true answer, between 0 and 1.
        yes: The chance that the second coin says yes, between 0 and 1.

    >>> from sfumato.randomness import SecretStream
    >>> mechanism = TwoCoinResponse()
    >>> round(math.exp(mechanism.epsilon), 9)
    3.0
    >>> mechanism.release(np.array([True, False]), SecretStream()).dtype
    dtype('bool')
    >>> mechanism.estimate(np.array([True, True, False, True, False])).value  # (0.6 − 0.25) / 0.5
    0.7
    """

    truth: float = 0.5
    yes: float = 0.5

    def __post_init__(self) -> None:
        for name, value in (("truth", self.truth), ("yes", self.yes)):
            if not 0.0 < coin_probability(_validate.real(name, value)) < 1.0:
                raise InvalidInput(
                    f"expected {name} in (0, 1), got {name}={value!r}; a sure coin hides nothing"
                )

    @property
    def epsilon(self) -> float:
        truth, yes = coin_probability(self.truth), coin_probability(self.yes)
        # P(r | r) / P(r | not r) = 1 + t / ((1−t)·P(second coin says r)), largest for the rarer side
        return math.log1p(truth / ((1.0 - truth) * min(yes, 1.0 - yes)))

    def event(self) -> accounting.DpEvent:
        if self.yes == 0.5:
            return accounting.RandomizedResponseEvent(1.0 - coin_probability(self.truth), 2)
        return accounting.pure(self.epsilon)

    def release(self, answers: npt.NDArray[Any], sampler: Sampler) -> Bools:
        """Return one report for each answer; each person's answer may be released once."""
        honest = check_answers(answers, 2).astype(np.bool_)
        first = sampler.bernoulli(self.truth, honest.size).reshape(honest.shape)
        second = sampler.bernoulli(self.yes, honest.size).reshape(honest.shape)
        return np.where(first, honest, second)

    def estimate(self, reports: npt.NDArray[Any]) -> Proportion:
        """Unbiased estimate of the share of true yeses: (share of yes reports − (1−t)y) / t."""
        said = check_answers(reports, 2)
        if said.size < 2:
            raise InvalidInput(f"expected at least 2 reports, got {said.size}; one tells nothing of the spread")
        share = float(said.mean())
        spread = math.sqrt(share * (1.0 - share) / (said.size - 1))
        return Proportion((share - (1.0 - self.truth) * self.yes) / self.truth, spread / self.truth)


def coin_probability(rate: float) -> float:
    """Return the chance with which a uniform multiple of 2⁻⁵³ in [0, 1) is below `rate`."""
    return math.ceil(rate * 2.0**53) * 2.0**-53


def check_answers(answers: npt.ArrayLike, classes: int) -> Integers:
    """Return the answers as int64, if each is one of 0 … classes−1; the message shows none of them."""
    array = np.asarray(answers)
    if array.dtype.kind not in "iub" or (array.size and (array.min() < 0 or array.max() >= classes)):
        raise InvalidInput(
            f"expected answers to be whole numbers from 0 to {classes - 1}, got some that are not;"
            " number the declared categories"
        )
    return array.astype(np.int64)
