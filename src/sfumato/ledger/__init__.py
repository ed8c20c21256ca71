"""Budgets, charges, certificates: what one data set may lose, and what it has lost.

>>> import tempfile; from sfumato.accounting import Relation, pure
>>> folder = tempfile.TemporaryDirectory()
>>> with Ledger.open(f"{folder.name}/people.db", budget=Budget(epsilon=1)) as ledger:
...     reservation = ledger.reserve(
...         [pure(0.25), pure(0.25)], purpose="two counts", relation=Relation.ADD_REMOVE, unit="record"
...     )
...     charge = reservation.settle(pure(0.25))  # the second never started
...     ledger.epsilon_spent
0.25
>>> folder.cleanup()
"""

from sfumato.accounting import Budget
from sfumato.ledger.certificate import Certificate
from sfumato.ledger.certificate_fields import Prices
from sfumato.ledger.chain import Entry, Head
from sfumato.ledger.charge import Charge, ChargeRequest
from sfumato.ledger.lease import Lease
from sfumato.ledger.ledger import Ledger
from sfumato.ledger.move import move
from sfumato.ledger.reservation import Reservation
from sfumato.ledger.signing import PrivateKey, PublicKey
from sfumato.ledger.trust import KeyStatement, trusted_keys
from sfumato.ledger.unrecorded import Unrecorded
from sfumato.ledger.witness import Witness

__all__ = [
    "Budget",
    "Certificate",
    "Charge",
    "ChargeRequest",
    "Entry",
    "Head",
    "KeyStatement",
    "Lease",
    "Ledger",
    "Prices",
    "PrivateKey",
    "PublicKey",
    "Reservation",
    "Unrecorded",
    "Witness",
    "move",
    "trusted_keys",
]
