"""What this process has spent, and whether a later one can go on with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sfumato.ledger.chain import Head


@dataclass
class SpentHere:
    """What was charged by this process, in any ledger.

    A charge is for one computation: whoever begins it anew charges anew. A reservation that was written down is
    open until it is settled, and the next process takes it up.
    """

    anything: bool = False
    open: set[Head] = field(default_factory=set)

    @property
    def goes_on(self) -> bool:
        """Whether the next process takes up what was reserved."""
        return bool(self.open)
