"""Ed25519 signatures over JSON objects, and statements about the keys that made them.

The signed text is a purpose, so that a signature of one kind never passes for another, the key's id, and the
canonical JSON of the whole object without its `signature`. A signature carries its public key. A fitting
signature shows that the object was not changed since; only a key that the reader got elsewhere identifies the
signer.

The library that signs is imported where it is used: most readers of a ledger neither sign nor check.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from sfumato.errors import InvalidInput, NotVerified
from sfumato.ledger.chain import Digest, canonical
from sfumato.schema import Json, Made, Model, Words, read, read_file
from sfumato.storage import write_new

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VARIABLE = "SFUMATO_KEY"
"""The environment variable with the path of the private key that signs every new certificate."""

FIELD = "signature"
_LARGEST_KEY = 2**14
_ROTATION, _REVOCATION = "key rotation", "key revocation"


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key. Its `id` is the SHA-256 of its 32 bytes, in hexadecimal.

    Args:
        raw: The 32 bytes.

    >>> len(PublicKey(bytes(32)).id)
    64
    """

    raw: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PublicKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        return cls(_read_key(path, load_pem_public_key, Ed25519PublicKey, "public").public_bytes_raw())


@dataclass(frozen=True)
class PrivateKey:
    """A key that signs certificates and witnesses. It is never printed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     key = PrivateKey.create(f"{folder}/holder.key")
    ...     PublicKey.read(f"{folder}/holder.key.pub") == key.public
    True
    """

    _key: Ed25519PrivateKey

    @property
    def public(self) -> PublicKey:
        return PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> PrivateKey:
        """Write a new private key, readable by its owner only, and `path`.pub beside it; overwrite neither."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key, private, public = Ed25519PrivateKey.generate(), Path(path), Path(f"{os.fspath(path)}.pub")
        pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        _write_new(private, pem, readable=False)
        pem = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
        try:
            _write_new(public, pem, readable=True)
        except BaseException:
            private.unlink()
            raise
        return cls(key)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        load = partial(load_pem_private_key, password=None)
        return cls(_read_key(path, load, Ed25519PrivateKey, "private"))

    def sign(self, purpose: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return `data` with its signature."""
        bare = _bare(data)
        value = self._key.sign(_message(purpose, self.public, bare))
        signature = {"key": self.public.id, "public": self.public.raw.hex(), "value": value.hex()}
        return {**bare, FIELD: signature}

    def derive(self, purpose: str, length: int) -> bytes:
        """Derive a secret for one other purpose, independent of this key's other secrets (HKDF)."""
        from cryptography.hazmat.primitives.hashes import SHA512
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = f"sfumato derived 1\n{purpose}".encode()
        return HKDF(algorithm=SHA512(), length=length, salt=None, info=info).derive(
            self._key.private_bytes_raw()
        )


def signer(purpose: str, data: Mapping[str, Any]) -> PublicKey | None:
    """Return the key of the signature in `data`; None without one, NotVerified where it does not fit."""
    signature = data.get(FIELD)
    if signature is None:
        return None
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public, value = _parts(signature)
    try:
        Ed25519PublicKey.from_public_bytes(public.raw).verify(value, _message(purpose, public, _bare(data)))
    except (InvalidSignature, ValueError) as error:
        raise NotVerified(
            "expected a signature that fits, got one of another text or key; the file was changed, do not rely "
            "on it"
        ) from error
    return public


def environment_key() -> PrivateKey | None:
    """Read the private key that SFUMATO_KEY names, if it names one."""
    place = os.environ.get(VARIABLE)
    return PrivateKey.read(place) if place else None


class _Signature(Model):
    key: Digest
    public: Digest
    value: Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z", description="128 hexadecimal digits")]


def _parts(signature: Any) -> tuple[PublicKey, bytes]:
    found = _verified(_Signature, signature, "the signature")
    public = PublicKey(bytes.fromhex(found.public))
    if public.id != found.key:
        raise NotVerified("expected the signature's key to be the SHA-256 of its public key, got another")
    return public, bytes.fromhex(found.value)


def _verified(kind: type[Made], data: Any, name: str) -> Made:
    try:
        return read(kind, data, name=name)
    except InvalidInput as error:
        raise NotVerified(str(error)) from error


def _bare(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != FIELD}


def _message(purpose: str, key: PublicKey, bare: Mapping[str, Any]) -> bytes:
    return f"sfumato {purpose} 1\n{key.id}\n".encode() + canonical(bare)


def _read_key(path: str | os.PathLike[str], load: Callable[[bytes], Any], kind: Any, name: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    with Path(path).open("rb") as file:
        content = file.read(_LARGEST_KEY)
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        key = load(content)
        if isinstance(key, kind):
            return key
    raise InvalidInput(
        f"expected {os.fspath(path)} to be a {name} Ed25519 key in PEM, got another file; "
        "make one with: sfumato key create"
    )


def _write_new(path: Path, content: bytes, *, readable: bool) -> None:
    try:
        write_new(path, content, readable=readable)
    except FileExistsError as error:
        raise InvalidInput(f"expected no file at {path}, got one; a key is never overwritten") from error


# Statements about keys


class _KeyFile(Model):
    purpose: Literal["key rotation", "key revocation"]
    successor: Digest | None
    time: Words
    signature: Json


@dataclass(frozen=True, kw_only=True)
class KeyStatement:
    """A statement that a key signed about itself: rotation adds another key, revocation withdraws this one.

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
        return cls.from_json(read_file(path, "a statement about a key"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KeyStatement:
        said = _verified(_KeyFile, data, "a statement about a key")
        key = signer(said.purpose, data)
        if key is None:
            raise NotVerified("expected a signed statement about a key, got one without a signature")
        if said.successor is None and said.purpose == _ROTATION:
            raise NotVerified("expected successor to be a public key of 64 hexadecimal digits, got none")
        successor = None if said.successor is None else PublicKey(bytes.fromhex(said.successor))
        return cls(purpose=said.purpose, key=key.id, successor=successor)


def rotation(old: PrivateKey, new: PublicKey) -> dict[str, Any]:
    """Sign with the old key that the new one is of the same holder."""
    if new == old.public:
        raise InvalidInput("expected another key to take the place of the old one, got the same")
    return old.sign(_ROTATION, _statement(_ROTATION, new))


def revocation(key: PrivateKey, successor: PublicKey | None = None) -> dict[str, Any]:
    """Sign that this key's signatures no longer count, and name the key that takes over, if one does."""
    return key.sign(_REVOCATION, _statement(_REVOCATION, successor))


def trusted_keys(given: PublicKey, statements: Iterable[KeyStatement]) -> frozenset[str]:
    """Return the ids of the keys whose signatures count for a reader who was given one key.

    From the given key each rotation is followed. A revoked key does not count, and nor does a rotation that it
    signed, unless the revocation names the same successor: a thief can sign a rotation, too.

    Args:
        given: The key that the reader was given.
        statements: All rotations and revocations that the reader has.

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
        if not any(statement.purpose == _REVOCATION for statement in own):
            trusted.add(key)
        key = _successor(key, own)
    return frozenset(trusted)


def _successor(key: str, own: list[KeyStatement]) -> str | None:
    revocations = [statement for statement in own if statement.purpose == _REVOCATION]
    if any(statement.successor is None for statement in revocations):
        return None
    named = {statement.successor.id for statement in own if statement.successor is not None}
    if len(named) > 1:
        raise NotVerified(
            f"expected key {key} to name one successor, got {len(named)}; it may be stolen, ask the holder for "
            "the present key"
        )
    return next(iter(named), None)


def _statement(purpose: str, successor: PublicKey | None) -> dict[str, Any]:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return {"purpose": purpose, "successor": successor.raw.hex() if successor else None, "time": time}
