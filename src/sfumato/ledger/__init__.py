"""Budgets, charges and certificates of one data set.

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
from sfumato.ledger.certificate import Certificate, Prices, Unrecorded
from sfumato.ledger.chain import Entry, Head
from sfumato.ledger.charge import Charge, ChargeRequest, Lease
from sfumato.ledger.ledger import Ledger, move
from sfumato.ledger.reservation import Reservation
from sfumato.ledger.signing import KeyStatement, PrivateKey, PublicKey, trusted_keys
from sfumato.ledger.verify import Witness

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
