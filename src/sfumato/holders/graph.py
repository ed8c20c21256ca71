"""Who masks with whom: all with all, or beyond some dozens of holders a sparse graph (Bell et al. 2020).

Holders stand on a ring in an order that nobody chose, and each is a partner of the w = k/2 next ones on either
side. Masks are agreed on, and secrets shared, among partners only: work and letters grow with k, not with n.

*What must hold in a round* of n holders of whom t collude and d are lost. The coordinator sees who is a partner
of whom before it decides whom to call lost, so that the d are taken to be the worst ones; the t were chosen
before the order was known.

1. The honest survivors stay connected. Then the coordinator learns their sum and nothing else: in a connected
   graph of masks all inputs with one sum look alike (Bell et al. 2020, lemma 3.3). A ring with w partners on
   either side falls apart only if two runs of w neighbours are gone, so that one of the two held at most d/2
   honest holders. For one run the number of colluders is hypergeometric; there are n runs.
2. No holder has `share_threshold` colluders among its k partners: again hypergeometric, for n holders.
3. A round that loses d holders can be opened, wherever they stand: share_threshold ≤ k + 1 − d.

k is the smallest even number for which 1 and 2 fail with a chance of at most 2⁻⁸⁰ together, and 3 holds; where
there is none below n − 1, all are partners of each other. The order is a hash of the study and the round. A
coalition could try many studies before it signs one: even 2⁴⁰ of them, of 2⁸ rounds each, leave 2⁻³².

That two stories about the survivors are never both opened does not rest on the graph: the agreement on them
stays one of all holders, with a threshold above (n + t)/2.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from scipy import stats

_CHANCE = 2.0**-81  # of each of the two failures, in a round
_FEW = 24  # holders for whom a complete graph is cheap


@dataclass(frozen=True)
class Degree:
    """How many partners each holder has, and how many of them and itself give a secret back."""

    partners: int
    share_threshold: int


@lru_cache(maxsize=64)
def degree(holders: int, *, dropped: int, colluding: int, threshold: int) -> Degree:
    """The sparsest graph that withstands what is declared; `threshold` is that of the complete one.

    >>> degree(10, dropped=2, colluding=3, threshold=7)
    Degree(partners=9, share_threshold=7)
    >>> sparse = degree(1000, dropped=50, colluding=50, threshold=526)
    >>> sparse.partners < 200
    True
    """
    for half in range(dropped // 2 + 1, (holders - 1) // 2) if holders > _FEW else ():
        if _stays_connected(holders, dropped, colluding, half):
            needed = _share_threshold(holders, colluding, 2 * half)
            if needed <= 2 * half + 1 - dropped:
                return Degree(2 * half, needed)
    return Degree(holders - 1, threshold)


def _stays_connected(holders: int, dropped: int, colluding: int, half: int) -> bool:
    """Whether every run of `half` holders has more than dropped / 2 honest ones, but for a tiny chance."""
    bad = half - dropped // 2  # so many colluders in a run are too many
    return holders * _at_least(bad, population=holders, marked=colluding, drawn=half) <= _CHANCE


def _share_threshold(holders: int, colluding: int, partners: int) -> int:
    """The least number that colluders among the partners of an honest holder do not reach."""
    for found in range(1, partners + 2):
        chance = _at_least(found, population=holders - 1, marked=colluding, drawn=partners)
        if holders * chance <= _CHANCE:
            return found
    return partners + 2


def _at_least(least: int, *, population: int, marked: int, drawn: int) -> float:
    """The chance of `least` marked ones or more, of `drawn` from a population without putting back."""
    if least > min(marked, drawn):
        return 0.0
    return math.exp(min(0.0, float(stats.hypergeom.logsf(least - 1, population, marked, drawn))))


@lru_cache(maxsize=256)
def ring(seed: str, places: tuple[int, ...]) -> tuple[int, ...]:
    """All places in an order that follows from the seed."""
    return tuple(sorted(places, key=lambda place: hashlib.sha256(f"{seed}\n{place}".encode()).digest()))


def partners(seed: str, place: int, *, places: Collection[int], count: int) -> Collection[int]:
    """The partners of a holder among the places of a round: symmetric, and never itself."""
    if count >= len(places) - 1:
        return frozenset(places) - {place}
    order = ring(seed, tuple(sorted(places)))
    at, steps = order.index(place), range(1, count // 2 + 1)
    after = frozenset(order[(at + step) % len(order)] for step in steps)
    return after | frozenset(order[at - step] for step in steps)
