"""Several holders, one release: each adds its share of noise, masks hide the rest, the sum is released.

Holders and coordinator go through rounds of a masked sum. A study, which all of them sign, says what is
computed and what it withstands; a node checks it against its own ledger and takes part in nothing else.
"""

from sfumato.holders.agreed import Verified
from sfumato.holders.averaging import AveragingTerms, SimulatedAveraging, simulate_averaging
from sfumato.holders.network import NetworkTerms
from sfumato.holders.node import Node, Opened
from sfumato.holders.parties import Parties
from sfumato.holders.signatures import read_signature, write_signature
from sfumato.holders.simulation import Simulated, simulate
from sfumato.holders.study import Study
from sfumato.holders.sum_study import SumStudy
from sfumato.holders.sums import Part, SumRound
from sfumato.holders.table_study import HoldersAnswer, TableStudy
from sfumato.holders.vote_study import SimulatedVotes, VoteTerms, simulate_votes

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
