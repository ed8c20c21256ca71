"""`sfumato key`: make keys, sign certificates, replace and revoke keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli import show
from sfumato.errors import InvalidInput, LedgerError

PATIENCE = 30.0


def deliver(data: Mapping[str, Any], place: str, *, replace: bool = True) -> None:
    """Write `data` to the file `place`, or post it if that is an http(s) address."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if place.startswith(("http://", "https://")):
        _post(place, text.encode())
        return
    from sfumato.storage import write_new, write_whole

    if replace:
        write_whole(place, text.encode(), readable=True)
        return
    try:
        write_new(place, text.encode(), readable=True)
    except FileExistsError as error:
        raise InvalidInput(f"expected no file at {place}, got one; choose another --out") from error


def _post(address: str, content: bytes) -> None:
    import urllib.error  # slow to load, and hardly any command posts
    import urllib.request

    request = urllib.request.Request(
        address, data=content, headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            pass
    except (urllib.error.URLError, ValueError) as error:
        raise LedgerError(f"expected {address} to take the witness, got: {error}; nothing was kept") from error


Private = Annotated[Path, typer.Argument(help="The private key.")]
Out = Annotated[Path, typer.Option(help="File to write the statement to.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make keys, sign certificates, rotate and revoke.", no_args_is_help=True)
    for command in (create, sign, rotate, revoke):
        group.command()(command)
    app.add_typer(group, name="key")


def create(
    key: Annotated[Path, typer.Argument(help="The private key; the public one is KEY.pub.")],
    json: show.Json = False,
) -> None:
    """Make an Ed25519 key. SFUMATO_KEY=KEY signs every certificate that is made.

    Example: sfumato key create holder
    """
    from sfumato.ledger import PrivateKey

    made = PrivateKey.create(key).public.id
    if json:
        show.emit_json({"private": str(key), "public": f"{key}.pub", "id": made})
    else:
        show.facts([("private, keep it", str(key)), ("public, give it out", f"{key}.pub"), ("id", made)])


def sign(
    certificate: Annotated[Path, typer.Argument(help="The certificate file; the signature is added to it.")],
    key: Annotated[Path, typer.Option(help="The private key.")],
    json: show.Json = False,
) -> None:
    """Sign a certificate, after checking that it states the price of its events.

    Example: sfumato key sign out/release/certificate.json --key holder
    """
    from sfumato.ledger import Certificate, PrivateKey

    own = PrivateKey.read(key)
    stated = Certificate.read(certificate)
    stated.verify()
    stated.signed(own).write(certificate)
    if json:
        show.emit_json({"certificate": str(certificate), "signer": own.public.id})
    else:
        show.console.print(f"Signed {certificate} by {own.public.id}.")


def rotate(
    old: Private,
    new: Annotated[Path, typer.Argument(help="The new public key.")],
    out: Out,
) -> None:
    """Write a statement, signed by the old key, that a new key replaces it.

    Example: sfumato key rotate holder holder-2027.pub --out rotation.json
    """
    from sfumato.ledger import PrivateKey, PublicKey
    from sfumato.ledger.signing import rotation

    deliver(rotation(PrivateKey.read(old), PublicKey.read(new)), str(out), replace=False)
    show.console.print(f"Wrote {out}: give it out beside {old}.pub.")


def revoke(
    key: Private,
    out: Out,
    successor: Annotated[Path | None, typer.Option(help="The public key that takes over.")] = None,
) -> None:
    """Write a statement, signed by the key, that its signatures are no longer valid.

    Example: sfumato key revoke holder --successor holder-2027.pub --out revocation.json
    """
    from sfumato.ledger import PrivateKey, PublicKey
    from sfumato.ledger.signing import revocation

    following = None if successor is None else PublicKey.read(successor)
    deliver(revocation(PrivateKey.read(key), following), str(out), replace=False)
    show.console.print(f"Wrote {out}: give it out wherever {key}.pub was.")
