"""Compute the posterior of earlier infectious days, given that a person counts as positive."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from sfumato_lab.tracing.disease import Disease, Floats, TestKit
from sfumato_lab.tracing.neighbours import Evidence, believe

_QUIET = 2e-3  # exposure a day of someone who is tested, and of whom nothing else is known: a public guess


@lru_cache(maxsize=8)
def infectious_before(disease: Disease, kit: TestKit) -> Floats:
    """(window,): P(infectious on that day | counted as positive after yesterday, the last day but one).

    By Bayes' rule in the chain of `neighbours.believe`, for a person without other evidence.
    """
    window = disease.window
    quiet = np.ones((window + 1, 1))
    known = Evidence(
        exposure=np.full((window, 1), _QUIET),
        if_infectious=quiet,
        if_other=quiet,
        start=disease.start()[:, None],
    )
    tested = [quiet.copy(), quiet.copy()]
    tested[0][-2], tested[1][-2] = kit.counted_positive()
    seen = replace(known, if_infectious=tested[0], if_other=tested[1], start=believe(known, disease).tomorrow)
    return believe(seen, disease).infectious[:-1, 0]
