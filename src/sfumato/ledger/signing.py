"""Ed25519 signatures over JSON objects: whose they are, and which keys took their place.

What is signed is a purpose, so that a signature of one kind never passes for another, the key's id, and the
canonical JSON of the whole object without its `signature`. A signature carries its public key: that it fits
shows that nobody changed the object since; only a key that the reader got elsewhere shows who signed.

The library that signs is loaded where something is signed or checked: most who look at a ledger do neither.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import InvalidInput, NotVerified
from sfumato.ledger.chain import canonical
from sfumato.storage import write_new

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VARIABLE = "SFUMATO_KEY"
"""Names the private key that signs every certificate that is made."""

FIELD = "signature"
_LARGEST_KEY = 2**14


@dataclass(frozen=True)
class PublicKey:
    """Who signed: an Ed25519 key. Its `id` is the SHA-256 of its 32 bytes, in hexadecimal.

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
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(_key_file(path))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise _no_key(path, "public") from error
        if not isinstance(key, Ed25519PublicKey):
            raise _no_key(path, "public")
        return cls(key.public_bytes_raw())


@dataclass(frozen=True)
class PrivateKey:
    """A key that signs certificates and witnesses. It is never shown.

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
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key, private, public = Ed25519PrivateKey.generate(), Path(path), _public_place(path)
        _write_new(private, _private_pem(key), readable=False)
        try:
            _write_new(public, _public_pem(key), readable=True)
        except BaseException:
            private.unlink()
            raise
        return cls(key)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PrivateKey:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(_key_file(path), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise _no_key(path, "private") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise _no_key(path, "private")
        return cls(key)

    def sign(self, purpose: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """`data` with its signature."""
        bare = _bare(data)
        value = self._key.sign(_message(purpose, self.public, bare))
        signature = {"key": self.public.id, "public": self.public.raw.hex(), "value": value.hex()}
        return {**bare, FIELD: signature}

    def derive(self, purpose: str, length: int) -> bytes:
        """A secret for one other purpose, which says nothing of this key or of other purposes (HKDF)."""
        from cryptography.hazmat.primitives.hashes import SHA512
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = f"sfumato derived 1\n{purpose}".encode()
        return HKDF(algorithm=SHA512(), length=length, salt=None, info=info).derive(
            self._key.private_bytes_raw()
        )


def signer(purpose: str, data: Mapping[str, Any]) -> PublicKey | None:
    """Whose signature `data` carries; None where there is none, NotVerified where it does not fit."""
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
            "expected a signature that fits, got one of another text or key; somebody changed the file, "
            "do not rely on it"
        ) from error
    return public


def environment_key() -> PrivateKey | None:
    """The private key that SFUMATO_KEY names, if it names one."""
    place = os.environ.get(VARIABLE)
    return PrivateKey.read(place) if place else None


def _parts(signature: Any) -> tuple[PublicKey, bytes]:
    expected = {"key": 64, "public": 64, "value": 128}
    if not isinstance(signature, dict) or set(signature) != set(expected):
        raise NotVerified("expected a signature of the fields key, public and value, got another")
    for name, length in expected.items():
        value = signature[name]
        if not isinstance(value, str) or len(value) != length or set(value) - set("0123456789abcdef"):
            raise NotVerified(
                f"expected {name} of the signature to be {length} hexadecimal digits, got another"
            )
    public = PublicKey(bytes.fromhex(signature["public"]))
    if public.id != signature["key"]:
        raise NotVerified("expected the signature's key to be the SHA-256 of its public key, got another")
    return public, bytes.fromhex(signature["value"])


def _bare(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != FIELD}


def _message(purpose: str, key: PublicKey, bare: Mapping[str, Any]) -> bytes:
    return f"sfumato {purpose} 1\n{key.id}\n".encode() + canonical(bare)


def _key_file(path: str | os.PathLike[str]) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(_LARGEST_KEY)


def _no_key(path: str | os.PathLike[str], kind: str) -> InvalidInput:
    return InvalidInput(
        f"expected {os.fspath(path)} to be a {kind} Ed25519 key in PEM, got another file; "
        "make one with: sfumato key create"
    )


def _public_place(path: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(path)}.pub")


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _public_pem(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _write_new(path: Path, content: bytes, *, readable: bool) -> None:
    try:
        write_new(path, content, readable=readable)
    except FileExistsError as error:
        raise InvalidInput(f"expected no file at {path}, got one; a key is never overwritten") from error
