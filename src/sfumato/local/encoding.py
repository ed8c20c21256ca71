"""Answers from large domains: one bit for each category, or a hash that only its owner chose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.local.estimates import Estimate
from sfumato.mechanisms import KaryResponse
from sfumato.mechanisms.response import check_answers, coin_probability
from sfumato.randomness import Bools, Integers, Sampler

_PRIME = 2**31 - 1  # of the hash; products of two numbers below it fit an int64


@dataclass(frozen=True, kw_only=True)
class UnaryEncoding:
    """One bit for each of k categories: the true one is set with chance ½, each other with 1/(e^ε + 1).

    *Guarantees*: pure ε for an answer replaced by any other: two bits change, and
    ε = ln(p(1−q) / ((1−p)q)) with p = ½; q is rounded up to a multiple of 2⁻⁵³. Answers outside 0 … k−1 are
    refused before anything is drawn. Public: classes, epsilon. Secret: the answers.

    Wang, Blocki, Li & Jha 2017, "Locally differentially private protocols for frequency estimation",
    section 4.2 (OUE).

    Args:
        classes: k, the number of categories.
        epsilon: The ε of one report.

    >>> from sfumato.randomness import SecretStream
    >>> UnaryEncoding(classes=5, epsilon=1.0).release(np.array([3, 0]), SecretStream()).shape
    (2, 5)
    """

    classes: int
    epsilon: float

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, least=2)
        _validate.positive("epsilon", self.epsilon)

    @property
    def true_rate(self) -> float:
        return 0.5

    @property
    def false_rate(self) -> float:
        odds = math.exp(-self.epsilon)
        return coin_probability(math.nextafter(odds / (1.0 + odds), 1.0))

    def event(self) -> accounting.DpEvent:
        return accounting.pure(self.epsilon)

    def bit_probabilities(self) -> npt.NDArray[np.float64]:
        """P(bit = 1 | answer), a row for each answer."""
        table = np.full((self.classes, self.classes), self.false_rate)
        np.fill_diagonal(table, self.true_rate)
        return table

    def release(self, answers: npt.NDArray[Any], sampler: Sampler) -> Bools:
        """Bits (people, classes); each person's answer may be released once."""
        truth = check_answers(answers, self.classes).reshape(-1)
        bits = sampler.bernoulli(self.false_rate, truth.size * self.classes).reshape(truth.size, self.classes)
        bits[np.arange(truth.size), truth] = sampler.bernoulli(self.true_rate, truth.size)
        return bits

    def estimate(self, reports: Bools) -> Estimate:
        """Unbiased shares of all categories."""
        bits = np.asarray(reports)
        if bits.ndim != 2 or bits.shape[1] != self.classes or len(bits) < 2:
            raise InvalidInput(
                f"expected at least 2 reports of {self.classes} bits, got shape {bits.shape};"
                " use the encoding that made them"
            )
        return _debiased(bits.mean(axis=0), self.true_rate, self.false_rate, len(bits))


@dataclass(frozen=True, kw_only=True)
class LocalHashing:
    """One of very many categories: each person hashes theirs into g buckets and reports a noised bucket.

    Hashed is ((a·x + b) mod P) mod g with P = 2³¹ − 1 and a, b drawn by each person, who sends them along; the
    bucket goes through g-ary randomized response. g = ⌊e^ε⌉ + 1 has the least variance.

    *Guarantees*: pure ε for an answer replaced by any other; the hash is drawn before and without the answer.
    Answers outside 0 … classes−1 are refused before anything is drawn. Public: classes, epsilon, each person's
    hash. Secret: the answers.

    Wang, Blocki, Li & Jha 2017, section 4.3 (OLH).

    Args:
        classes: The number of categories.
        epsilon: The ε of one report.

    >>> from sfumato.randomness import SecretStream
    >>> hashing = LocalHashing(classes=1_000_000, epsilon=2.0)
    >>> hashing.buckets, hashing.release(np.array([7, 999_999]), SecretStream()).shape
    (8, (2, 3))
    """

    classes: int
    epsilon: float

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, least=2)
        _validate.positive("epsilon", self.epsilon)
        if self.classes >= _PRIME or self.epsilon > math.log(2.0**20):
            raise InvalidInput(
                f"expected classes < {_PRIME} and epsilon <= {math.log(2.0**20):.1f}, got"
                f" classes={self.classes}, epsilon={self.epsilon}; fewer categories can be reported as they are"
            )

    @property
    def buckets(self) -> int:
        return max(2, round(math.exp(self.epsilon)) + 1)

    @property
    def response(self) -> KaryResponse:
        return KaryResponse(classes=self.buckets, epsilon=self.epsilon)

    def event(self) -> accounting.DpEvent:
        return self.response.event()

    def release(self, answers: npt.NDArray[Any], sampler: Sampler) -> Integers:
        """Reports (people, 3): the hash's a and b, and the noised bucket."""
        truth = check_answers(answers, self.classes).reshape(-1)
        factor = 1 + sampler.integers(_PRIME - 1, truth.size)
        offset = sampler.integers(_PRIME, truth.size)
        buckets = self.response.release(_hashed(factor, offset, truth, self.buckets), sampler)
        return np.stack([factor, offset, buckets], axis=1)

    def estimate(self, reports: Integers, candidates: npt.ArrayLike) -> Estimate:
        """Unbiased shares of the given categories."""
        asked = check_answers(np.asarray(candidates), self.classes).reshape(-1)
        if reports.ndim != 2 or reports.shape[1] != 3 or len(reports) < 2:
            raise InvalidInput(
                f"expected at least 2 reports of 3 numbers, got shape {reports.shape};"
                " use the hashing that made them"
            )
        factor, offset, buckets = reports.T
        support = np.zeros(asked.size)
        for place, value in enumerate(asked):
            support[place] = np.mean(_hashed(factor, offset, value, self.buckets) == buckets)
        return _debiased(support, self.response.keep_probability, 1.0 / self.buckets, len(reports))


def _hashed(factor: Integers, offset: Integers, values: Integers | np.int64, buckets: int) -> Integers:
    return (factor * values + offset) % _PRIME % buckets


def _debiased(seen: npt.NDArray[np.float64], true_rate: float, false_rate: float, people: int) -> Estimate:
    """(seen − q) / (p − q), with the spread that was seen."""
    gain = true_rate - false_rate
    errors = np.sqrt(np.maximum(seen * (1.0 - seen), 0.25 / people) / (people - 1)) / gain
    return Estimate(values=(seen - false_rate) / gain, standard_errors=errors)
