"""The meaning of an ε, by the success of the best attacker."""

from __future__ import annotations

import math
import warnings

import numpy as np

from sfumato import _validate
from sfumato.accounting.events import DpEvent, Relation
from sfumato.accounting.pld import deltas, epsilon
from sfumato.caveats import Caveat, Code
from sfumato.errors import LittleProtection

LARGEST_EPSILON = 10.0
"""Beyond it the promise itself says little: an attacker who accuses 1 in 100 of the others may find all but
1 in 22,000 of the members. Of a single mechanism more may be known: Gaussian noise of ε = 10
at δ = 1e-5 lets the attacker find less than half."""

LARGEST_DELTA = 1e-3
"""From here on, to publish one record in a thousand as it is would count as private."""

_BELOW = "choose delta well below 1 / number of people"


def protection_warning(epsilon: float | None, delta: float, people: float | None = None) -> Caveat | None:
    """Return the caveat of an (ε, δ) that promises practically no protection; None where it promises some.

    >>> protection_warning(1.0, 1e-5) is None
    True
    >>> protection_warning(1e6, 1e-5)
    'promises practically no protection: expected epsilon <= 10, got epsilon=1e+06; add noise'
    >>> protection_warning(1.0, 1e-5, people=1_000_000) is None
    False
    """
    reasons, remedies = [], []
    if epsilon is None or not math.isfinite(epsilon):
        reasons.append("no finite epsilon holds")
        remedies.append("add noise")
    elif epsilon > LARGEST_EPSILON:
        reasons.append(f"expected epsilon <= {LARGEST_EPSILON:g}, got epsilon={epsilon:g}")
        remedies.append("add noise")
    if not delta < LARGEST_DELTA:
        reasons.append(
            f"expected delta < {LARGEST_DELTA:g}, got delta={delta:g}, at which publishing the records of "
            f"1 in {1 / delta:.4g} people as they are would count as private"
        )
        remedies.append(_BELOW)
    elif people is not None and delta * people >= 1:
        reasons.append(
            f"expected delta < 1 / {people:.0f} people, got delta={delta:g}, at which publishing the records "
            f"of {delta * people:.4g} of them as they are would count as private"
        )
        remedies.append(_BELOW)
    if not reasons:
        return None
    return Code.NO_PROTECTION(why=f"{', and '.join(reasons)}; {', and '.join(remedies)}")


def warn_of_little_protection(what: str, epsilon: float, delta: float, *, people: float | None = None) -> None:
    """Warn, in one sentence about `what`, where (ε, δ) promises practically no protection.

    Args:
        what: The subject of the sentence, such as "this training".

    >>> warn_of_little_protection("this training", 1.0, 1e-5)  # ε = 1 protects: no warning
    """
    sentence = protection_warning(epsilon, delta, people)
    if sentence is not None:
        warnings.warn(f"{what} {sentence}", LittleProtection, stacklevel=3)


def attacker_true_positive_rate(
    event: DpEvent, *, false_positive_rate: float = 0.01, relation: Relation = Relation.ADD_REMOVE
) -> float:
    """Return the most true positives any attacker can have at a given rate of false positives.

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


def largest_true_positive_rate(epsilon: float, delta: float, *, false_positive_rate: float = 0.01) -> float:
    """Return the most true positives any attacker can have against a release that keeps to (ε, δ).

    The bound of `attacker_true_positive_rate` where the two figures are all that is known, as of a budget: the
    will be charged to it is not known yet.

    >>> round(largest_true_positive_rate(1.0, 0.0), 4), round(largest_true_positive_rate(49.0, 1e-5), 4)
    (0.0272, 1.0)
    """
    alpha = _validate.probability("false_positive_rate", false_positive_rate)
    one_way = math.exp(min(epsilon, 700.0)) * alpha + delta
    other_way = 1 - math.exp(-epsilon) * (1 - delta - alpha)
    return max(alpha, min(1.0, one_way, other_way))


def in_words(true_positive_rate: float, relation: Relation = Relation.ADD_REMOVE) -> str:
    """Return the attacker's rate at 1% false positives, in one sentence for a reader who is no expert.

    Args:
        true_positive_rate: The result of `attacker_true_positive_rate` at 1% false positives.

    >>> "1" in in_words(0.0272)
    True
    """
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
