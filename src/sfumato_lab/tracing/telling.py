"""When the parts of a message are told, so that a whole life costs no more than one release."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sfumato_lab.tracing.disease import Floats

MOST_OVERLAP = 0.5  # λ; more would not make a life cheaper: 1 is the cost of a single release


class Telling(NamedTuple):
    """Weights of a message's content in a release, by day of the window, oldest first.

    Attributes:
        first: The weight of today's news.
        again: The weight of earlier news.

    >>> Telling(np.ones(2), np.zeros(2)).again.sum().item()
    0.0
    """

    first: Floats
    again: Floats


def telling_daily(window: int) -> Telling:
    """Every message in full on each day: a life moves the releases by √window."""
    return Telling(np.ones(window), np.ones(window))


@lru_cache(maxsize=8)
def telling(window: int, overlap: float) -> Telling:
    """Weights such that a message told on any day of its life is a unit vector, any two with inner product λ.

    A message of which n releases are left enters today's with aₙ times its news and cₙ times its
    earlier content. So the news of day t moves the releases of a life by

        vₜ = aₙ eₜ + Σ cₘ eₛ over the later days s, with m releases left,

    and aₙ² + Σ cₘ² = 1 and aₘ cₘ + Σ cₗ² = λ (l < m) make ‖vₜ‖ = 1 and ⟨vₜ, vₛ⟩ = λ: the Cholesky factor of
    (1 − λ) I + λ 11ᵀ, from the last day backwards.

    *Guarantees*: r, r′ ≥ 0, the news on each day of two lives, each adding up to S, S′ ≤ 1, move the
    releases apart by ‖Σ (rₜ − r′ₜ) vₜ‖² = (1 − λ) ‖r − r′‖² + λ (S − S′)² ≤ S² + S′² − 2λ S S′, which is convex
    in each of S, S′ and so at most max(1, 2 − 2λ). With λ = ½ the lives "never" and "told on day t" are the
    corners of a regular simplex: a whole life moves the releases by 1, as one release does; with λ = 0, all
    told at once, by √2. One release moves by at most aₙ ≤ 1, as 0 ≤ cₙ ≤ aₙ.

    >>> weights = telling(3, 0.5)
    >>> weights.first.round(3).tolist(), weights.again.round(3).tolist()
    ([1.0, 0.866, 0.816], [0.5, 0.289, 0.204])
    """
    first, again, later = [], [], 0.0
    for _ in range(window):
        now = math.sqrt(1 - later)
        first.append(now)
        again.append((overlap - later) / now)
        later += again[-1] ** 2
    return Telling(np.array(first), np.array(again))
