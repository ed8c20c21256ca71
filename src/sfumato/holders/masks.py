"""Masks that cancel, and secrets in shares.

A mask is a stream of AES-256 in counter mode, added modulo a power of two. A secret is split into shares of
which a threshold gives it back and fewer reveal nothing (Shamir 1979).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.mechanisms.grid import Integers

Words: TypeAlias = npt.NDArray[Any]  # uint32 or uint64: numbers modulo 2³² or 2⁶⁴

_TYPES = {32: np.uint32, 64: np.uint64}
_BLOCK = 1 << 20  # bytes of a stream that are made and added while they are in the cache
LARGEST_WRAP = 1e-9
_PRIME = 2**521 - 1
SECRET_BYTES, SHARE_BYTES = 32, 66


@dataclass(frozen=True)
class Modulus:
    """Whole numbers modulo 2^bits, read back as numbers from −2^(bits−1) up.

    Reduction is post-processing of the noisy sum: a sum that wraps around is wrong, and no less private.
    """

    bits: int

    def __post_init__(self) -> None:
        _validate.one_of("bits", self.bits, _TYPES)

    @classmethod
    def fitting(cls, *, largest: float, sigma: float, dimension: int) -> Modulus:
        """Return the smallest modulus that wraps with a chance of at most 1e-9 in a round."""
        for bits in sorted(_TYPES):
            modulus = cls(bits)
            if modulus.chance_of_wrap(largest=largest, sigma=sigma, dimension=dimension) <= LARGEST_WRAP:
                return modulus
        raise InvalidInput(
            f"expected sums that fit into 64 bits, got up to {largest:g} steps and noise of {sigma:g}; "
            "take a coarser grid"
        )

    def chance_of_wrap(self, *, largest: float, sigma: float, dimension: int) -> float:
        """Return a bound of the chance that any number wraps; none is above `largest` without its noise."""
        room = 2.0 ** (self.bits - 1) - largest
        if room <= 0:
            return 1.0
        # P(|Z| ≥ x) ≤ 2·exp(−x²/2σ²) for each of the numbers; it holds for sums of discrete Gaussians as well.
        return min(1.0, 2 * dimension * math.exp(-((room / sigma) ** 2) / 2))

    def reduce(self, values: Integers) -> Words:
        return values.astype(np.int64).view(np.uint64).astype(_TYPES[self.bits])

    def signed(self, words: Words) -> Integers:
        return words.view(np.int32 if self.bits == 32 else np.int64).astype(np.int64)

    def add_stream(self, words: Words, key: bytes, *, sign: int) -> None:
        """Add or subtract the stream of `key` in place; use a key for one round only."""
        encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        step = _BLOCK // words.itemsize
        zeros = bytes(min(_BLOCK, words.nbytes))
        for start in range(0, words.size, step):
            part = words[start : start + step]
            stream = np.frombuffer(encryptor.update(zeros[: part.nbytes]), dtype=words.dtype.newbyteorder("<"))
            (np.add if sign > 0 else np.subtract)(part, stream, out=part)


def agree(own: X25519PrivateKey, other: bytes, context: bytes) -> bytes:
    """Derive the key that two holders share for one purpose in one round; `context` names both."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise InvalidInput("expected a public X25519 key of 32 bytes, got another") from error
    return derive(secret, context)


def derive(secret: bytes, context: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"sfumato holders 1\n" + context).derive(
        secret
    )


def split(secret: bytes, *, threshold: int, points: Iterable[int]) -> dict[int, bytes]:
    """Split a secret into shares: values of a random polynomial of degree threshold − 1 at the points.

    *Guarantees*: any `threshold` shares give the secret back; fewer are uniform and independent of it, as for
    each secret there is exactly one polynomial through them. Points are distinct and not 0, where the secret
    lies.

    >>> shares = split(bytes(31) + b"!", threshold=2, points=[1, 2, 3])
    >>> join({1: shares[1], 3: shares[3]}, threshold=2)[-1:]
    b'!'
    """
    places = list(points)
    _check_points(places, _validate.integer("threshold", threshold, least=1))
    if len(secret) != SECRET_BYTES:
        raise InvalidInput(f"expected a secret of {SECRET_BYTES} bytes, got {len(secret)}")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(_PRIME) for _ in range(threshold - 1))]
    return {place: _value(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in places}


def join(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """Return the secret from any `threshold` of its shares.

    Raises:
        InvalidInput: If there are fewer shares, or if they are not shares of one secret of 32 bytes.
    """
    _check_points(list(shares), threshold)
    chosen = {place: _number(share) for place, share in sorted(shares.items())[:threshold]}
    secret = sum(value * _weight(place, chosen) for place, value in chosen.items()) % _PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise InvalidInput("expected shares of one secret, got shares of several; the round cannot be opened")
    return secret.to_bytes(SECRET_BYTES, "big")


def _value(polynomial: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % _PRIME
    return value


def _weight(place: int, places: Iterable[int]) -> int:
    """Return a weight of Lagrange's interpolation at 0."""
    above = below = 1
    for other in places:
        if other != place:
            above, below = above * other % _PRIME, below * (other - place) % _PRIME
    return above * pow(below, -1, _PRIME)


def _number(share: bytes) -> int:
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= _PRIME:
        raise InvalidInput(f"expected a share of {SHARE_BYTES} bytes below the prime, got another")
    return value


def _check_points(places: list[int], threshold: int) -> None:
    if len(set(places)) != len(places) or not all(0 < place < 2**32 for place in places):
        raise InvalidInput("expected points that are distinct and above 0, got others")
    if len(places) < threshold:
        raise InvalidInput(f"expected at least threshold={threshold} shares, got {len(places)}")
