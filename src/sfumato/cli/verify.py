"""`sfumato verify`: recompute what a certificate states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import show


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    certificate: Annotated[Path, typer.Argument(help="The certificate.json beside a release.")],
    json: show.Json = False,
) -> None:
    """Recompute ε from a certificate's events and compare.

    Example: sfumato verify out/release/certificate.json
    """
    from sfumato.ledger import Certificate

    stated = Certificate.read(certificate)
    found = stated.verify()
    if json:
        show.emit_json({"valid": True, "pld": found.pld, "rdp": found.rdp, "delta": stated.delta})
        return
    show.facts(
        [
            ("release", stated.purpose),
            ("protects", f"each {stated.unit}, neighbours by {stated.relation}"),
            ("ε, exact (PLD)", "none" if found.pld is None else f"{found.pld:.4f}"),
            ("ε, Rényi bound (RDP)", "none" if found.rdp is None else f"{found.rdp:.4f}"),
            ("at δ", f"{stated.delta:g}"),
            *(("caveat", caveat) for caveat in stated.caveats),
        ],
        title="The certificate states what its events cost.",
    )
