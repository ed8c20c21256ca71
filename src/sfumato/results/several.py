"""Results of what several holders computed together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sfumato.results.record import Count, Delta, Epsilon, Share
from sfumato.results.result import Result


@dataclass(frozen=True, kw_only=True)
class SeveralHolders(Result):
    """A model of several holders, who saw nothing of each other: what each adversary may learn of one unit."""

    kind: ClassVar[str] = "several-holders"
    holders: Count
    dropped: Count  # that may be lost in each round
    colluding: Count  # that may collude with the coordinator
    threshold: Count  # that must help to open a round
    rounds: Count
    numbers: Count  # that are added up in a round
    unit: str = "record"
    recipient: Epsilon  # ε against whoever receives the model, and so for the others
    holder: Epsilon
    coordinator: Epsilon
    coalition: Epsilon
    delta: Delta
    test_accuracy: Share | None = None
    data: str | None = None
    pictures: tuple[str, ...] = ()  # of drawings: what a holder has, what leaves it, what all learn
