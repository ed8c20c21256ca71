"""What an ε means, in terms of what an attacker could do."""

from __future__ import annotations

import numpy as np

from sfumato import _validate
from sfumato.accounting.events import DpEvent, Relation
from sfumato.accounting.pld import deltas, epsilon


def attacker_true_positive_rate(
    event: DpEvent, *, false_positive_rate: float = 0.01, relation: Relation = Relation.ADD_REMOVE
) -> float:
    """The most true positives any attacker can have at a given rate of false positives.

    min over ε of e^ε·FPR + δ(ε) (Wasserman & Zhou 2010; Kairouz et al. 2015), and the same bound with the
    hypotheses exchanged.

    >>> from sfumato.accounting import LaplaceEvent
    >>> round(attacker_true_positive_rate(LaplaceEvent(1.0), false_positive_rate=0.01), 4)  # e · 1%
    0.0272
    """
    alpha = _validate.probability("false_positive_rate", false_positive_rate)
    reach = min(epsilon(event, 1e-9, relation=relation), 50.0)
    if reach == 0:
        return alpha
    levels = np.linspace(0, reach, 129)
    failures = deltas(event, levels.tolist(), relation=relation)
    one_way = np.exp(levels) * alpha + failures
    other_way = 1 - np.exp(-levels) * (1 - failures - alpha)
    return max(alpha, min(1.0, float(one_way.min()), float(other_way.min())))


def in_words(true_positive_rate: float, relation: Relation = Relation.ADD_REMOVE) -> str:
    """The attacker's rate at 1% false positives, in one sentence for a reader who is no expert."""
    if relation is Relation.REPLACE_ONE:
        return (
            "An attacker who knows everything but which of two values one person gave, and who names the first "
            "for 1 in 100 of those who gave the second, names it for at most "
            f"{true_positive_rate:.1%} of those who gave it (1.0% would be pure guessing)."
        )
    return (
        "An attacker who knows everything but whether one person took part, and who accuses 1 in 100 of those "
        f"who did not, finds at most {true_positive_rate:.1%} of those who did (1.0% would be pure guessing)."
    )
