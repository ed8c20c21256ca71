"""Flower, as it is used here: what both ends of the network share.

Flower carries the messages (SuperLink, SuperNodes, TLS, keys of nodes, heartbeats). It knows nothing of rounds
and masks: to it a message is one record of bytes. Flower takes a message apart, and each part is a request of
its own; only the record is sent, as the rest goes with the message's head.

Two things are ours. A SuperNode of Flower starts a process for each message and looks for the next one every
three seconds; ours answers in the process that holds the data, which a round of three messages needs. And the
coordinator opens the part of a SuperLink that nodes talk to, not the part through which anyone may start other
runs.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sfumato.errors import InvalidInput, MissingExtra, NotVerified

if TYPE_CHECKING:
    from sfumato.ledger.signing import PrivateKey

_RECORD, _BYTES = "sfumato", "content"
_DEPTH = 2  # of a record in a message: message, dictionary of records, record
_CURVE = ec.SECP384R1()  # what Flower's nodes sign with
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973


def require_flower() -> None:
    """Make sure that Flower is there, and that it tells nobody of its use."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise MissingExtra(package="flwr", extra="holders") from error
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def node_key(key: PrivateKey) -> ec.EllipticCurvePrivateKey:
    """The key by which the SuperLink knows a holder's node; it follows from the holder's signing key.

    64 derived bytes, reduced modulo the order of the curve: within 2⁻¹²⁸ of uniform.
    """
    number = int.from_bytes(key.derive("holders node", 64), "big")
    return ec.derive_private_key(number % (_ORDER - 1) + 1, _CURVE)


def public_line(key: ec.EllipticCurvePrivateKey) -> str:
    """The public half, as a signature under a study carries it."""
    point = key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    return point.hex()


def flower_key(line: Any) -> bytes:
    """The public half as Flower writes it, from what a signature carries."""
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, bytes.fromhex(line))
    except (TypeError, ValueError) as error:
        raise NotVerified(
            "expected a signature with the key of the holder's node, got none; sign the study again"
        ) from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def record_of(content: bytes) -> Any:
    """What a message carries: the content, and a number of its own.

    Flower keeps the parts of messages by their digests. Two messages of the same content would share parts, and
    one that is done with takes them away from one that has yet to arrive.
    """
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({_BYTES: content, "number": os.urandom(16)})})


def part_with_bytes(tree: Any) -> str:
    """Which part of a message holds the record: the only one that has no parts of its own.

    Raises:
        InvalidInput: If the message has another shape than `record_of` gives.
    """
    for _ in range(_DEPTH):
        if len(tree.children) != 1:
            raise InvalidInput("expected a message with one record of bytes, got another")
        tree = tree.children[0]
    return str(tree.object_id)


def bytes_of(name: str, part: bytes) -> bytes:
    """What `record_of` put into a message, from the part that holds it, which somebody else wrote."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    try:
        record: Any = inflate_object_from_contents(name, {name: part})
        content = record[_BYTES]
    except Exception as error:  # whatever Flower's parsers raise
        raise InvalidInput("expected a message with one record of bytes, got another") from error
    if not isinstance(content, bytes):
        raise InvalidInput("expected a message with one record of bytes, got another")
    return content
