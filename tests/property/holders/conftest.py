"""Keys, terms and rounds for tests."""

from functools import lru_cache

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.holders import Parties
from sfumato.holders.rounds import CoordinatorRound, HolderRound, Terms
from sfumato.ledger.signing import PrivateKey


@lru_cache(maxsize=64)
def signing_key(place):
    return PrivateKey(Ed25519PrivateKey.generate())


def make_terms(holders, *, dropped=0, colluding=0, number=1, dimension=4, bits=64, study="s" * 64):
    return Terms(
        study=study,
        number=number,
        parties=Parties(holders=holders, dropped=dropped, colluding=colluding),
        places={place: signing_key(place).public for place in range(1, holders + 1)},
        dimension=dimension,
        bits=bits,
    )


def make_round(terms):
    return CoordinatorRound(terms), {
        place: HolderRound(terms, place, signing_key(place)) for place in terms.places
    }


@pytest.fixture(name="make_terms")
def _make_terms():
    return make_terms


@pytest.fixture(name="make_round")
def _make_round():
    return make_round


@pytest.fixture(name="signing_key")
def _signing_key():
    return signing_key
