"""`sfumato statement`: the promise and the charges, for people who sign and people who check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Grid
from rich.text import Text

from sfumato.cli import show
from sfumato.cli.verify import Key, Trust, check_signer
from sfumato.errors import InvalidInput, NotVerified

if TYPE_CHECKING:
    from sfumato.ledger import Certificate, Ledger

Place = Annotated[str, typer.Argument(help="The ledger: a file, or a postgresql:// address.")]
Holder = Annotated[str | None, typer.Option(help="Who answers for the data.")]
Certificates = Annotated[
    list[Path] | None,
    typer.Option(help="A certificate of a release that the ledger charged, to count its caveats. Repeatable."),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Write and check statements of a ledger for others.", no_args_is_help=True)
    for command in (make, check, registry, checklist):
        group.command()(command)
    app.add_typer(group, name="statement")


def make(
    ledger: Place,
    out: Annotated[Path, typer.Option(help="A file that ends in .html, .pdf or .json.")],
    holder: Holder = None,
    key: Annotated[Path | None, typer.Option(help="The private key to sign it with.")] = None,
    hazards: Annotated[bool, typer.Option(help="Append the checklist of hazards.")] = False,
    certificate: Certificates = None,
) -> None:
    """Write a statement: the promise, the charges with their purposes, and their meaning.

    Example: sfumato statement make people.db --out statement.html --holder "City clinic"
    """
    from sfumato.governance import Statement, checklist, write_statement
    from sfumato.ledger import Ledger, PrivateKey

    if out.exists():
        raise InvalidInput(f"expected no file at {out}, got one; choose another --out, or move that one away")
    if certificate and not hazards:
        raise InvalidInput("expected --hazards with --certificate, got none; caveats are counted in that list")
    signing = None if key is None else PrivateKey.read(key)
    with Ledger.open(ledger) as book:
        statement = Statement.of(book, holder=holder, key=signing)
        released = _released(book, certificate)
    write_statement(statement, out, checklist(statement, released) if hazards else None)
    show.console.print(f"Wrote {out}.", markup=False)


def check(
    file: Annotated[Path, typer.Argument(help="A statement that ends in .json.")],
    key: Key = None,
    trust: Trust = None,
    json: show.Json = False,
) -> None:
    """Check the signature of a statement; one by a key that was revoked does not count.

    Example: sfumato statement check statement.json --key holder.pub --trust holder.revocation.json
    """
    from sfumato.governance import Statement
    from sfumato.ledger.documents import STATEMENT, refuse_others
    from sfumato.schema import read_file

    statement = Statement(read_file(file, "a statement"))
    refuse_others(statement.data, STATEMENT)
    signer = statement.signer
    check_signer(signer, key, trust or [])
    if signer is None:
        raise NotVerified("expected a signed statement, got one without a signature; ask the holder for one")
    if json:
        show.emit_json({"valid": True, "signer": signer.id})
    else:
        show.console.print(f"Nobody changed it since the key {signer.id} signed it.", markup=False)
        if key is None:
            show.console.print("Whose key that is was not checked: give the holder's with --key.", markup=False)


def registry(ledger: Place, holder: Holder = None, json: show.Json = False) -> None:
    """Print an entry for the public registry of DP deployments, as YAML. Questions for you are in capitals.

    Example: sfumato statement registry people.db --holder "City clinic"
    """
    import yaml

    from sfumato.governance import Statement, registry_entry
    from sfumato.ledger import Ledger

    with Ledger.open(ledger) as book:
        entry = registry_entry(Statement.of(book, holder=holder))
    if json:
        show.emit_json(entry)
    else:
        print(yaml.safe_dump(entry, sort_keys=False, allow_unicode=True), end="")


def checklist(ledger: Place, certificate: Certificates = None, json: show.Json = False) -> None:
    """Go through the hazards of NIST SP 800-226: answers from the ledger, and questions for you.

    Example: sfumato statement checklist people.db
    """
    from sfumato.governance import Statement
    from sfumato.governance import checklist as hazards_of
    from sfumato.governance.hazards import as_rows
    from sfumato.ledger import Ledger

    with Ledger.open(ledger) as book:
        hazards = hazards_of(Statement.of(book), _released(book, certificate))
    if json:
        show.emit_json({"hazards": as_rows(hazards)})
        return
    grid = Grid("hazard", "status", "answer", box=None, pad_edge=False)
    for item in hazards:
        grid.add_row(Text(item.hazard), Text(item.status), Text(item.answer))
    show.console.print(grid)


def _released(book: Ledger, places: list[Path] | None) -> list[Certificate]:
    """Certificates of releases that this ledger charged; others are refused."""
    from sfumato.ledger import Certificate

    found = [Certificate.read(place) for place in places or ()]
    for place, each in zip(places or (), found, strict=True):
        if each.head is None:
            raise InvalidInput(f"expected a certificate of this ledger, got {place}, which names no ledger")
        book.check_head(each.head)
    return found
