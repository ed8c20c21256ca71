"""Who takes part in a study, and what it withstands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.holders.graph import Degree, degree


@dataclass(frozen=True, kw_only=True)
class Parties:
    """So many holders, of whom in each round some may be lost and some may collude with the coordinator.

    `threshold` is how many holders must help to open a round. It is more than half of holders and colluders
    together: a coordinator that tells two stories needs as many helpers for each, and only colluders help in
    both (Bonawitz et al. 2017, theorem 6.5).

    Args:
        holders: How many take part, at least 3.
        dropped: How many of them may be lost in each round; a round that loses more is abandoned.
        colluding: How many of them may show the coordinator all that they know.

    Raises:
        InvalidInput: If those who stay are fewer than `threshold`, or leave no share of noise unknown.

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
        """How many holders a round needs; with fewer it is abandoned."""
        return self.holders - self.dropped

    @property
    def threshold(self) -> int:
        return (self.holders + self.colluding) // 2 + 1

    @property
    def degree(self) -> Degree:
        """How many partners of masks each holder has, and how many of them open its secrets."""
        return degree(self.holders, dropped=self.dropped, colluding=self.colluding, threshold=self.threshold)

    @property
    def counted(self) -> int:
        """Shares of noise that the best informed adversary does not know; one holder at least knows its own."""
        return min(self.shares_against.values())

    @property
    def spread(self) -> float:
        """How much wider, against what is learned, the noise is than that of one holder with all the rows.

        After the declared drop-outs `least` shares are in the sum of which `counted` are paid for, and the rows
        of `least` of all holders.
        """
        return (self.least / self.counted) ** 0.5 * self.holders / self.least

    @property
    def shares_against(self) -> Mapping[str, int]:
        """How many shares of a round's noise each adversary does not know, after all declared drop-outs.

        A recipient and the coordinator see sums only. A holder knows its own share; a coalition is the
        coordinator with `colluding` holders. Sampling stays secret from all of them: it is the holder's own.
        """
        return {
            "recipient": self.least,
            "holder": self.least - 1,
            "coordinator": self.least,
            "coalition": self.least - self.colluding,
        }
