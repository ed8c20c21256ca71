"""Several holders, one release: each adds its share of the noise under masks, and the sum is released.

Holders and coordinator go through rounds of a masked sum. A study, which all of them sign, states the
computation and the adversaries it withstands; a node charges its own ledger before it takes part.

Terms:
    rows: Private rows that declare their size and classes, to be dealt out; their name selects the recipe.
    test: Public rows to measure accuracy on; None to measure nothing.
    parties: The number of holders in a round, and of those that may be lost or collude.
    terms: The rules by which the sums are used.
    epsilon: The ε of all rounds, for one unit, against the best informed adversary.
    delta: Its δ.
    losses: The holders lost in a round, by its number from 1, and at which message; by default
        `parties.dropped` holders chosen at random.
    ledgers: The holders' ledgers by place, from 1; a holder without one is not charged.
    masked: False leaves the masks out: the same sums, hidden from no party.
"""

from sfumato.holders.node import Node
from sfumato.holders.parties import Parties
from sfumato.holders.queries import HoldersAnswer, TableStudy
from sfumato.holders.rehearsals import (
    AveragingTerms,
    SimulatedAveraging,
    SimulatedVotes,
    VoteTerms,
    simulate_averaging,
    simulate_votes,
)
from sfumato.holders.rounds import Opened
from sfumato.holders.simulation import Simulated, simulate
from sfumato.holders.study import Study, Verified, read_signature, write_signature
from sfumato.holders.sums import Part, SumRound, SumStudy
from sfumato.holders.tasks import NetworkTerms

__all__ = [
    "AveragingTerms",
    "HoldersAnswer",
    "NetworkTerms",
    "Node",
    "Opened",
    "Part",
    "Parties",
    "Simulated",
    "SimulatedAveraging",
    "SimulatedVotes",
    "Study",
    "SumRound",
    "SumStudy",
    "TableStudy",
    "Verified",
    "VoteTerms",
    "read_signature",
    "simulate",
    "simulate_averaging",
    "simulate_votes",
    "write_signature",
]
