"""Keys for tests."""

from functools import lru_cache

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.ledger.signing import PrivateKey


@pytest.fixture(scope="session")
def signing_key():
    return lru_cache(maxsize=64)(lambda place: PrivateKey(Ed25519PrivateKey.generate()))
