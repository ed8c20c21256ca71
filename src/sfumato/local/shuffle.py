"""What a trusted shuffler adds: reports without senders hide each other."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.accounting import DpEvent, Relation, epsilon
from sfumato.randomness import Sampler

Item = TypeVar("Item")
NO_AMPLIFICATION = "no amplification"


def largest_local_epsilon(people: int, delta: float) -> float:
    """ln(n / (16 ln(2/δ))): above it the theorem says nothing.

    >>> round(largest_local_epsilon(60_000, 1e-5), 2)
    5.73
    """
    _validate.integer("people", people, least=1)
    return math.log(people / (16.0 * math.log(2.0 / _validate.probability("delta", delta))))


def shuffled_epsilon(event: DpEvent, *, people: int, delta: float) -> float | None:
    """ε at δ of `people` shuffled reports that each cost `event`; None where no amplification may be claimed.

    ε = ln(1 + (e^ε₀ − 1)/(e^ε₀ + 1) · (8√(e^ε₀ ln(4/δ)/n) + 8e^ε₀/n)), for a person's record replaced, where
    every report comes from the same purely ε₀-DP randomiser and ε₀ ≤ ln(n/(16 ln(2/δ))). Gaussian reports are
    not pure.

    Feldman, McMillan & Talwar 2021, "Hiding among the clones", theorem 3.1.

    Args:
        event: What one report costs.
        people: How many different people's reports reach the shuffler: duplicates hide nobody.
        delta: The δ.

    Returns:
        ε, or None.

    >>> from sfumato.accounting import GaussianEvent, pure
    >>> round(shuffled_epsilon(pure(1.0), people=60_000, delta=1e-5), 4)
    0.0858
    >>> shuffled_epsilon(pure(8.0), people=60_000, delta=1e-5) is None
    True
    >>> shuffled_epsilon(GaussianEvent(4.0), people=60_000, delta=1e-5) is None
    True
    """
    local = epsilon(event, 0.0, relation=Relation.REPLACE_ONE)
    if not local <= largest_local_epsilon(people, delta):
        return None
    grown = math.exp(local)
    hidden = 8.0 * math.sqrt(grown * math.log(4.0 / delta) / people) + 8.0 * grown / people
    return min(local, math.log1p((grown - 1.0) / (grown + 1.0) * hidden))


def shuffled_in_words(event: DpEvent, *, people: int, delta: float) -> str:
    """State the amplified ε, or that there is none, for tables and certificates.

    Args:
        event: What one report costs.
        people: How many different people's reports reach the shuffler.
        delta: The δ.

    Returns:
        The sentence.

    >>> from sfumato.accounting import pure
    >>> "0.08" in shuffled_in_words(pure(1.0), people=60_000, delta=1e-5)
    True
    """
    found = shuffled_epsilon(event, people=people, delta=delta)
    return NO_AMPLIFICATION if found is None else f"ε = {found:.3g} at δ = {delta:g} if the shuffler is trusted"


def first_reports(senders: Iterable[Hashable], reports: Sequence[Item]) -> list[Item]:
    """The first report of each sender, in order: what may go to the shuffler.

    Args:
        senders: Who sent each report.
        reports: The reports, in the same order.

    Returns:
        One report for each sender.

    >>> first_reports(["ann", "bob", "ann"], [1, 0, 0])
    [1, 0]
    """
    seen: set[Hashable] = set()
    kept = []
    for sender, report in zip(senders, reports, strict=True):
        if sender not in seen:
            seen.add(sender)
            kept.append(report)
    return kept


def shuffle(people: int, sampler: Sampler) -> npt.NDArray[np.int64]:
    """Draw a secret uniform order for the reports.

    Args:
        people: How many there are.
        sampler: The secret stream.

    Returns:
        Positions, each once.

    >>> from sfumato.randomness import SecretStream
    >>> sorted(shuffle(3, SecretStream()).tolist())
    [0, 1, 2]
    """
    return np.argsort(sampler.uniform(people), kind="stable")
