"""What a positive test says about the days before it: who may have been infected, and who was the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sfumato.tracing.disease import Disease, Floats, TestKit
from sfumato.tracing.neighbours import Evidence, believe

_QUIET = 8e-4  # exposure a day of someone who is tested, and of whom nothing else is known: a public guess


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Someone of whom nothing else is known has tested positive after yesterday, the window's last day but one.

    Attributes:
        infectious: (window,), P(infectious on that day | the test).
        infected: (window,), P(test | infected on that day, if they still could be) / P(test) − 1. A contact
            that infects with chance p on that day makes the test 1 + p·infected times as likely.
    """

    infectious: Floats
    infected: Floats


@lru_cache(maxsize=8)
def found_positive(disease: Disease, kit: TestKit) -> Found:
    """Both, by Bayes' rule in the chain of `neighbours.believe`.

    P(test | infected on day t) is what the chain says of somebody whose exposure on that day is certain.
    """
    alone = _of_people(disease, kit, np.full((disease.window, 1), _QUIET))
    struck = np.full((disease.window, disease.window), _QUIET)
    np.fill_diagonal(struck, 50.0)  # e⁻⁵⁰: nobody is spared
    ratio = _of_people(disease, kit, struck)[1] / alone[1]
    return Found(infectious=alone[0][:, 0], infected=ratio - 1)


def _of_people(disease: Disease, kit: TestKit, exposure: Floats) -> tuple[Floats, Floats]:
    """P(infectious | a positive test after yesterday) by day, and P(that test), for people so exposed."""
    window, people = exposure.shape
    quiet = np.ones((window + 1, people))
    known = Evidence(
        exposure=np.full_like(exposure, _QUIET),
        if_infectious=quiet,
        if_other=quiet,
        start=np.repeat(disease.start()[:, None], people, axis=1),
    )
    known = replace(known, exposure=exposure, start=believe(known, disease).tomorrow)
    until = replace(known, exposure=exposure[:-1], if_infectious=quiet[:-1], if_other=quiet[:-1])
    then = believe(until, disease).tomorrow[2]
    if_infectious, if_other = (float(each[0]) for each in kit.likelihood(np.array([True])))
    chance = then * if_infectious + (1 - then) * if_other
    tested = [quiet.copy(), quiet.copy()]
    tested[0][-2], tested[1][-2] = if_infectious, if_other
    seen = replace(known, if_infectious=tested[0], if_other=tested[1])
    return believe(seen, disease).infectious[:-1], chance
