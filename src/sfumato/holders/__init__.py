"""Several holders, one release: each adds its share of noise, masks hide the rest, the sum is released.

Holders and coordinator go through rounds of a masked sum. A study, which all of them sign, says what is
computed and what it withstands; a node checks it against its own ledger and takes part in nothing else.
"""

from sfumato.holders.coordinator_round import CoordinatorRound
from sfumato.holders.holder_round import HolderRound
from sfumato.holders.masks import Modulus
from sfumato.holders.messages import Terms
from sfumato.holders.node import Node, Opened
from sfumato.holders.parties import Parties
from sfumato.holders.signatures import read_signature, write_signature
from sfumato.holders.simulation import Simulated, simulate
from sfumato.holders.study import Study

__all__ = [
    "CoordinatorRound",
    "HolderRound",
    "Modulus",
    "Node",
    "Opened",
    "Parties",
    "Simulated",
    "Study",
    "Terms",
    "read_signature",
    "simulate",
    "write_signature",
]
