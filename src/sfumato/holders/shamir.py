"""A secret in shares, of which a threshold gives it back and fewer give nothing (Shamir 1979)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from sfumato import _validate
from sfumato.errors import InvalidInput

PRIME = 2**521 - 1
SECRET_BYTES, SHARE_BYTES = 32, 66


def split(secret: bytes, *, threshold: int, points: Iterable[int]) -> dict[int, bytes]:
    """A share for each point: the values there of a random polynomial of degree threshold − 1.

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
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {place: _value(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in places}


def join(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """The secret, from any `threshold` of the shares.

    Raises:
        InvalidInput: If there are fewer shares, or if they are not shares of one secret of 32 bytes.
    """
    _check_points(list(shares), threshold)
    chosen = {place: _number(share) for place, share in sorted(shares.items())[:threshold]}
    secret = sum(value * _weight(place, chosen) for place, value in chosen.items()) % PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise InvalidInput("expected shares of one secret, got shares of several; the round cannot be opened")
    return secret.to_bytes(SECRET_BYTES, "big")


def _value(polynomial: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value


def _weight(place: int, places: Iterable[int]) -> int:
    """Of Lagrange's interpolation at 0."""
    above = below = 1
    for other in places:
        if other != place:
            above, below = above * other % PRIME, below * (other - place) % PRIME
    return above * pow(below, -1, PRIME)


def _number(share: bytes) -> int:
    value = int.from_bytes(share, "big")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise InvalidInput(f"expected a share of {SHARE_BYTES} bytes below the prime, got another")
    return value


def _check_points(places: list[int], threshold: int) -> None:
    if len(set(places)) != len(places) or not all(0 < place < 2**32 for place in places):
        raise InvalidInput("expected points that are distinct and above 0, got others")
    if len(places) < threshold:
        raise InvalidInput(f"expected at least threshold={threshold} shares, got {len(places)}")
