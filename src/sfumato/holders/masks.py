"""Masks that cancel: streams of a cipher, added modulo a power of two."""

from __future__ import annotations

import math
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
        """The smallest that hardly ever wraps: with a chance of at most 1e-9 in a round."""
        for bits in sorted(_TYPES):
            modulus = cls(bits)
            if modulus.chance_of_wrap(largest=largest, sigma=sigma, dimension=dimension) <= LARGEST_WRAP:
                return modulus
        raise InvalidInput(
            f"expected sums that fit into 64 bits, got up to {largest:g} steps and noise of {sigma:g}; "
            "take a coarser grid"
        )

    def chance_of_wrap(self, *, largest: float, sigma: float, dimension: int) -> float:
        """At most this chance that any of the numbers wraps: none is above `largest` without its noise."""
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
        """words ± the stream of `key`, in place; a key has one stream, so use it for one round only."""
        encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        step = _BLOCK // words.itemsize
        zeros = bytes(min(_BLOCK, words.nbytes))
        for start in range(0, words.size, step):
            part = words[start : start + step]
            stream = np.frombuffer(encryptor.update(zeros[: part.nbytes]), dtype=words.dtype.newbyteorder("<"))
            (np.add if sign > 0 else np.subtract)(part, stream, out=part)


def agree(own: X25519PrivateKey, other: bytes, context: bytes) -> bytes:
    """The key that two holders share for one purpose in one round; `context` names both."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise InvalidInput("expected a public X25519 key of 32 bytes, got another") from error
    return derive(secret, context)


def derive(secret: bytes, context: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"sfumato holders 1\n" + context).derive(
        secret
    )
