"""A certificate for the coordinator's address, signed by itself: what holders need to know it again."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sfumato.errors import InvalidInput
from sfumato.storage import write_new

_DAYS = 365


def write_certificate(certificate: Path, key: Path, *, host: str) -> None:
    """Write a new key, readable by its owner only, and the certificate that holders are given."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sfumato coordinator")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([_host(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        write_new(key, private, readable=False)
        write_new(certificate, signed.public_bytes(pem), readable=True)
    except FileExistsError as error:
        raise InvalidInput(
            f"expected no files at {certificate} and {key}, got one; choose other names"
        ) from error


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidInput(
            "expected the name or the IP address of the coordinator's machine, got another"
        ) from error
