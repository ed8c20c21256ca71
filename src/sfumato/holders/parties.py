"""The parties of a study: how many may be lost or collude, and which holders share masks.

Up to some dozens of holders share masks all with all, beyond that on a sparse graph (Bell et al. 2020). Holders
stand on a ring in a hashed order, and each is a partner of the w = k/2 next ones on either side. Masks are
agreed on, and secrets shared, among partners only: work and letters grow with k, not with n.

*Conditions of a round* of n holders of whom t collude and d are lost. The coordinator knows the graph before it
decides which holders to call lost, so that the d are taken to be the worst ones; the t were chosen before the
order was known.

1. The honest survivors stay connected. Then the coordinator learns their sum and nothing else: in a connected
   graph of masks all inputs with one sum look alike (Bell et al. 2020, lemma 3.3). A ring with w partners on
   either side falls apart only if two runs of w neighbours are gone, so that one of the two held at most d/2
   honest holders. For one run the number of colluders is hypergeometric; there are n runs.
2. No holder has `share_threshold` colluders among its k partners: again hypergeometric, for n holders.
3. A round that loses d holders can be opened, wherever they stand: share_threshold ≤ k + 1 − d.

k is the smallest even number for which 1 and 2 fail with a chance of at most 2⁻⁸⁰ together, and 3 holds; where
there is none below n − 1, all are partners of each other. The order is a hash of the study and the round. A
coalition could try many studies before it signs one: even 2⁴⁰ of them, of 2⁸ rounds each, leave 2⁻³².

Two different lists of survivors are never both opened, on any graph: all holders sign the list, with a
threshold above (n + t)/2.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from scipy import stats

from sfumato import _validate
from sfumato.errors import InvalidInput

_CHANCE = 2.0**-81  # of each of the two failures, in a round
_FEW = 24  # holders for whom a complete graph is cheap


@dataclass(frozen=True)
class Degree:
    """The number of partners of each holder, and of shares, its own included, that give a secret back."""

    partners: int
    share_threshold: int


@lru_cache(maxsize=64)
def degree(holders: int, *, dropped: int, colluding: int, threshold: int) -> Degree:
    """Return the sparsest graph that withstands the declared losses; `threshold` is that of the complete one.

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
    """Return the least number that colluders among the partners of an honest holder do not reach."""
    for found in range(1, partners + 2):
        chance = _at_least(found, population=holders - 1, marked=colluding, drawn=partners)
        if holders * chance <= _CHANCE:
            return found
    return partners + 2


def _at_least(least: int, *, population: int, marked: int, drawn: int) -> float:
    """Return the chance of `least` or more marked ones among `drawn`, without replacement."""
    if least > min(marked, drawn):
        return 0.0
    return math.exp(min(0.0, float(stats.hypergeom.logsf(least - 1, population, marked, drawn))))


@lru_cache(maxsize=256)
def ring(seed: str, places: tuple[int, ...]) -> tuple[int, ...]:
    """Return all places in an order that follows from the seed."""
    return tuple(sorted(places, key=lambda place: hashlib.sha256(f"{seed}\n{place}".encode()).digest()))


def partners(seed: str, place: int, *, places: Collection[int], count: int) -> Collection[int]:
    """Return the partners of a holder among the places of a round: symmetric, and never itself."""
    if count >= len(places) - 1:
        return frozenset(places) - {place}
    order = ring(seed, tuple(sorted(places)))
    at, steps = order.index(place), range(1, count // 2 + 1)
    after = frozenset(order[(at + step) % len(order)] for step in steps)
    return after | frozenset(order[at - step] for step in steps)


@dataclass(frozen=True, kw_only=True)
class Parties:
    """Holders, of whom in each round some may be lost and some may collude with the coordinator.

    `threshold` is the number of holders that must help to open a round. It is more than half of holders and
    colluders together: a coordinator that states two lists of survivors needs as many helpers for each, and
    only colluders help with both (Bonawitz et al. 2017, theorem 6.5).

    Args:
        holders: Number of holders, at least 3.
        dropped: Number of them that may be lost in each round; a round that loses more is abandoned.
        colluding: Number of them that may show the coordinator all that they know.

    Raises:
        InvalidInput: If the remaining holders are fewer than `threshold`, or leave no share of noise unknown.

    >>> ten = Parties(holders=10, dropped=2, colluding=3)
    >>> ten.threshold, ten.shares_against["coalition"]
    (7, 5)
    """

    holders: int
    dropped: int = 0
    colluding: int = 0

    def __post_init__(self) -> None:
        _validate.integer("holders", self.holders, least=3)
        _validate.integer("dropped", self.dropped)
        _validate.integer("colluding", self.colluding)
        if self.threshold > self.least:
            raise InvalidInput(
                f"expected holders - dropped >= {self.threshold}, which is more than half of "
                f"holders={self.holders} and colluding={self.colluding}, got dropped={self.dropped}; "
                "withstand fewer, or find more holders"
            )
        if self.counted < 1:
            raise InvalidInput(
                f"expected a share of noise that no adversary knows, got none with holders={self.holders}, "
                f"dropped={self.dropped}, colluding={self.colluding}"
            )

    @property
    def least(self) -> int:
        """The number of holders that a round needs; with fewer it is abandoned."""
        return self.holders - self.dropped

    @property
    def threshold(self) -> int:
        return (self.holders + self.colluding) // 2 + 1

    @property
    def degree(self) -> Degree:
        """The number of partners of each holder, and of shares that open its secrets."""
        return degree(self.holders, dropped=self.dropped, colluding=self.colluding, threshold=self.threshold)

    @property
    def counted(self) -> int:
        """Shares of noise that the best informed adversary does not know."""
        return min(self.shares_against.values())

    @property
    def spread(self) -> float:
        """The ratio of noise to signal, relative to one holder with all the rows.

        After the declared drop-outs `least` shares are in the sum of which `counted` are paid for, and the rows
        of `least` of all holders.
        """
        return (self.least / self.counted) ** 0.5 * self.holders / self.least

    @property
    def shares_against(self) -> Mapping[str, int]:
        """The number of shares of a round's noise that each adversary does not know, after all drop-outs.

        A recipient and the coordinator see sums only. A holder knows its own share; a coalition is the
        coordinator with `colluding` holders. Sampling stays secret from all of them: it is the holder's own.
        """
        return {
            "recipient": self.least,
            "holder": self.least - 1,
            "coordinator": self.least,
            "coalition": self.least - self.colluding,
        }
