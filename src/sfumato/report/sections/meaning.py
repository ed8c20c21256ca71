"""ε in plain words, beside systems in use."""

from __future__ import annotations

import math

from sfumato.report.context import Context
from sfumato.report.published import IN_USE
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Comparison

_SHOWN = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)


def _facts(context: Context) -> Facts:
    """Return the largest shift of an even guess, e^ε / (1 + e^ε), and the ε of systems in use."""
    largest = max(epsilon for _, epsilon in IN_USE)
    bounded = [
        one
        for one in context.of(Comparison)
        if None not in (one.attacker_true_positive_rate, one.attacker_false_positive_rate)
    ]
    return {
        "guesses": [(epsilon, 1 / (1 + math.exp(-epsilon))) for epsilon in _SHOWN],
        "in_use": [(name, epsilon, epsilon / largest) for name, epsilon in IN_USE],
        "attacked": bounded[0] if bounded else None,
    }


SECTION = Section(name="meaning", title="What ε means", kinds=(Comparison,), facts=_facts)
