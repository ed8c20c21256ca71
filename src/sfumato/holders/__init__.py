"""Several holders, one release: each adds its share of the noise under masks, and the sum is released.

Holders and coordinator go through rounds of a masked sum. A study, which all of them sign, states the
computation and the adversaries it withstands; a node charges its own ledger before it takes part.
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
