"""Several holders, one release: each adds its share of noise, masks hide the rest, the sum is released.

Holders and coordinator go through rounds of a masked sum. A study, which all of them sign, says what is
computed and what it withstands; a node checks it against its own ledger and takes part in nothing else.
"""

from sfumato.holders.node import Node, Opened
from sfumato.holders.parties import Parties
from sfumato.holders.signatures import read_signature, write_signature
from sfumato.holders.simulation import Simulated, simulate
from sfumato.holders.study import Study

__all__ = [
    "Node",
    "Opened",
    "Parties",
    "Simulated",
    "Study",
    "read_signature",
    "simulate",
    "write_signature",
]
