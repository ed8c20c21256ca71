"""Which keys speak for a holder: the one a reader was given, and those that took its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sfumato.errors import InvalidInput, NotVerified
from sfumato.ledger.signing import PrivateKey, PublicKey, signer
from sfumato.ledger.strict_json import read_object

ROTATION, REVOCATION = "key rotation", "key revocation"


@dataclass(frozen=True, kw_only=True)
class KeyStatement:
    """A key's signed word about itself: another key signs too (rotation), or it no longer signs (revocation).

    A revocation may name the key that takes over.

    Attributes:
        purpose: Whether it is a rotation or a revocation.
        key: The id of the key that signed.
        successor: The key that takes over, if one is named.

    ```python
    statement = KeyStatement.read("holder.rotation.json")
    trusted_keys(PublicKey.read("holder.pub"), [statement])
    ```
    """

    purpose: str
    key: str
    successor: PublicKey | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> KeyStatement:
        return cls.from_json(read_object(path, "a statement about a key"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KeyStatement:
        purpose, successor = data.get("purpose"), data.get("successor")
        if purpose not in (ROTATION, REVOCATION) or set(data) != {"purpose", "successor", "time", "signature"}:
            raise NotVerified("expected a statement about a key, a rotation or a revocation, got another file")
        key = signer(purpose, data)
        if key is None:
            raise NotVerified("expected a signed statement about a key, got one without a signature")
        return cls(purpose=purpose, key=key.id, successor=_public(successor, needed=purpose == ROTATION))


def rotation(old: PrivateKey, new: PublicKey) -> dict[str, Any]:
    """The old key's word that the new one speaks for the same holder."""
    if new == old.public:
        raise InvalidInput("expected another key to take the place of the old one, got the same")
    return old.sign(ROTATION, _statement(ROTATION, new))


def revocation(key: PrivateKey, successor: PublicKey | None = None) -> dict[str, Any]:
    """The key's own word that its signatures count no more, and which key takes over, if one does."""
    return key.sign(REVOCATION, _statement(REVOCATION, successor))


def trusted_keys(given: PublicKey, statements: Iterable[KeyStatement]) -> frozenset[str]:
    """The ids of the keys whose signatures count for a reader who was given one key.

    From the given key each rotation is followed. A revoked key does not count, and nor does a rotation that it
    signed, unless the revocation names the same successor: a thief can sign a rotation, too.

    Args:
        given: The key that the reader was given.
        statements: All rotations and revocations that the reader has.

    Returns:
        The ids.

    Raises:
        NotVerified: If a key names two successors: two people have it.

    >>> from sfumato.ledger import PublicKey
    >>> trusted_keys(PublicKey(bytes(32)), []) == {PublicKey(bytes(32)).id}
    True
    """
    said: dict[str, list[KeyStatement]] = {}
    for statement in statements:
        said.setdefault(statement.key, []).append(statement)
    trusted: set[str] = set()
    seen: set[str] = set()
    key: str | None = given.id
    while key is not None and key not in seen:
        seen.add(key)
        own = said.get(key, [])
        if not any(statement.purpose == REVOCATION for statement in own):
            trusted.add(key)
        key = _successor(key, own)
    return frozenset(trusted)


def _successor(key: str, own: list[KeyStatement]) -> str | None:
    revocations = [statement for statement in own if statement.purpose == REVOCATION]
    if any(statement.successor is None for statement in revocations):
        return None
    named = {statement.successor.id for statement in own if statement.successor is not None}
    if len(named) > 1:
        raise NotVerified(
            f"expected key {key} to name one successor, got {len(named)}; somebody else may have it, "
            "ask the holder for the present key"
        )
    return next(iter(named), None)


def _statement(purpose: str, successor: PublicKey | None) -> dict[str, Any]:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return {"purpose": purpose, "successor": successor.raw.hex() if successor else None, "time": time}


def _public(value: Any, *, needed: bool) -> PublicKey | None:
    if value is None and not needed:
        return None
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise NotVerified("expected successor to be a public key of 64 hexadecimal digits, got another value")
    return PublicKey(bytes.fromhex(value))
