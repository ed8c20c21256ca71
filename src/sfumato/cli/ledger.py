"""`sfumato ledger`: make a budget, see it being spent, check that it was not changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli import show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.ledger import PublicKey

Place = Annotated[str, typer.Argument(help="A file, or a postgresql:// address.")]
Readable = Annotated[str, typer.Argument(help="A file, an export of one, or a postgresql:// address.")]
EXPORTED = "This is an export: what was charged since it was written is not in it."


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make, show and verify privacy budgets.", no_args_is_help=True)
    for command in (create, show_, head, verify, export, allocate, release, move):
        group.command(command.__name__.strip("_"))(command)
    app.add_typer(group, name="ledger")


def create(
    place: Place,
    epsilon: Annotated[float, typer.Option(help="Total ε of the budget.")],
    delta: Annotated[float, typer.Option(help="Total δ of the budget; 0 for pure ε.")] = 0.0,
    unit: Annotated[str, typer.Option(help="The unit that the budget protects: record, person, …")] = "record",
    relation: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")] = "add-remove",
    dataset: Annotated[
        str | None, typer.Option(help="An id for the data set; policies that name it must use this ledger.")
    ] = None,
    people: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many people there are. Kept in the ledger; compared with δ, now and in statements."
        ),
    ] = None,
    json: show.Json = False,
) -> None:
    """Make a ledger with a budget.

    Example: sfumato ledger create people.db --epsilon 3 --delta 1e-5
    """
    from sfumato.accounting import warn_of_little_protection
    from sfumato.ledger import Budget, Ledger, statement

    budget = Budget(epsilon=epsilon, delta=delta, unit=unit, relation=relation)  # type: ignore[arg-type]
    if people is None:  # with it, the ledger warns itself
        warn_of_little_protection("this budget", budget.epsilon, budget.delta)
    with Ledger.create(place, budget, dataset=dataset, people=people) as ledger:
        if json:
            show.emit_json(statement.as_json(ledger))
        else:
            show.console.print(f"Made {place}: ε = {budget.epsilon:g} at δ = {budget.delta:g} for each {unit}.")


def show_(place: Readable, json: show.Json = False) -> None:
    """Show the charges, their purposes, and the budget left.

    Every entry is checked against its hash and the one before. `ledger verify` also computes prices and sums
    anew. In the JSON, `private` says that no noise was seeded, and no more: values read off the data without
    a price, such as by a scaler before a fit, are in the certificate of the release.

    Example: sfumato ledger show people.db
    """
    from sfumato.ledger import Ledger, statement

    with Ledger.open(place) as ledger:
        if json:
            show.emit_json(statement.as_json(ledger))
        else:
            show.console.print(statement.render(ledger))
            if ledger.exported:
                show.console.print(EXPORTED, markup=False)


def head(
    place: Place,
    sign: Annotated[Path | None, typer.Option(help="The private key to sign it with.")] = None,
    out: Annotated[
        str | None, typer.Option(help="Where it goes: a file, or an http(s):// address to post it to.")
    ] = None,
) -> None:
    """Print a witness of the newest entry as JSON. Keep it elsewhere: it reveals a later roll-back.

    A file is replaced only by a later witness of the same ledger under the same signature.

    Example: sfumato ledger head people.db --sign holder --out /elsewhere/people-head.json
    """
    from sfumato.cli.key import deliver
    from sfumato.ledger import Ledger, PrivateKey, Witness

    key = None if sign is None else PrivateKey.read(sign)
    with Ledger.open(place) as ledger:
        if out is not None and Path(out).exists():
            Witness.read(out).check_followed_by(ledger, key)
        witness = Witness.of(ledger).to_json(key)
    if out is None:
        show.emit_json(witness)
    else:
        deliver(witness, out)
        show.console.print(f"Wrote entry {witness['sequence']} of {place} to {out}.")


def verify(
    place: Readable,
    certificate: Annotated[
        Path | None,
        typer.Option(help="Newest certificate. Fail if the ledger was cut off or rolled back since."),
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option(help="Newest witness, from `ledger head`. Fail as above, or if it is of another ledger."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Public key of the holder. Fail unless the signature is by this key.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Check every entry and sum. With a certificate or a witness, also check that no newer entry was lost.

    Example: sfumato ledger verify people.db --certificate out/release/certificate.json
    """
    from sfumato.cli.verify import check_signer
    from sfumato.ledger import Certificate, Ledger, Witness

    newest = None if certificate is None else Certificate.read(certificate)
    seen = None if witness is None else Witness.read(witness)
    if key is not None and newest is None and seen is None:
        raise InvalidInput(
            "expected --certificate or --witness with --key, got neither; a ledger is not signed"
        )
    for presented in (newest, seen):
        if presented is not None:
            check_signer(presented.signer, key, [])
    with Ledger.open(place) as ledger:
        expected = None if seen is None else seen.expected_in(ledger)
        exported = ledger.exported
        head, moved_to = ledger.verify(certificate=newest, head=expected), ledger.moved_to
    if json:
        signers = {
            name: None if one.signer is None else one.signer.id
            for name, one in (("certificate", newest), ("witness", seen))
            if one is not None
        }
        show.emit_json(
            {
                "valid": True,
                "head": head.to_json(),
                "moved_to": moved_to,
                "exported": exported,
                "signers": signers,
            }
        )
    else:
        show.console.print(f"All {head.sequence + 1} entries hold. Head: {head.hash}")
        if moved_to is not None:
            show.console.print(f"Moved to {moved_to}: closed here, and charged there.", markup=False)
        for name, presented in (("certificate", newest), ("witness", seen)):
            if presented is not None and key is None:
                show.console.print(_whose(name, presented.signer), markup=False)
        if exported:
            show.console.print(EXPORTED, markup=False)
        if certificate is None and witness is None:
            show.console.print(
                "A cut-off tail shows only against --certificate FILE or --witness FILE.",
                style="dim",
            )


def _whose(name: str, signer: PublicKey | None) -> str:
    if signer is None:
        return f"The {name} is not signed: whoever had the file could change it."
    return f"The {name} is signed by the key {signer.id}; whose that is was not checked: give --key."


def export(place: Place) -> None:
    """Print the whole ledger as JSON, for others to read. `ledger show` and `ledger verify` take that file too.

    Example: sfumato ledger export people.db > people-ledger.json
    """
    from sfumato.ledger import Ledger

    with Ledger.open(place) as ledger:
        show.emit_json(ledger.export())


def allocate(
    place: Place,
    name: Annotated[str, typer.Argument(help="The purpose or team.")],
    epsilon: Annotated[float, typer.Option(help="The share of ε set aside.")],
    json: show.Json = False,
) -> None:
    """Set a share of the budget aside for a purpose or a team.

    Example: sfumato ledger allocate people.db statistics --epsilon 1
    """
    from sfumato.ledger import Ledger, statement

    with Ledger.open(place) as ledger:
        ledger.allocate(name, epsilon)
        if json:
            show.emit_json(statement.as_json(ledger))
        else:
            show.console.print(f"Set ε = {epsilon:g} of {place} aside for {name}.")


def release(
    place: Place,
    entry: Annotated[int, typer.Argument(help="The number of the reservation, as `ledger show` prints it.")],
    json: show.Json = False,
) -> None:
    """Give back a reservation whose run ended before it touched a row.

    Every other reservation is refused. A run that is about to start is stopped.

    Example: sfumato ledger release people.db 3
    """
    from sfumato.ledger import Ledger, statement

    with Ledger.open(place) as ledger:
        given = ledger.give_back(entry)
        if json:
            show.emit_json(statement.as_json(ledger))
        else:
            show.console.print(
                f"Gave back entry {entry} ({given.purpose}): nothing ran under it.", markup=False
            )


def move(
    source: Annotated[str, typer.Argument(help="Where the ledger is: a file, or a postgresql:// address.")],
    target: Annotated[str, typer.Argument(help="Where it goes; there must be no other ledger.")],
    json: show.Json = False,
) -> None:
    """Take a ledger to another place with all its entries, and close it here.

    Example: sfumato ledger move people.db "postgresql://host/budgets?ledger=people"
    """
    from sfumato.ledger import move as move_ledger
    from sfumato.ledger import statement

    with move_ledger(source, target) as ledger:
        if json:
            show.emit_json(statement.as_json(ledger))
        else:
            count = ledger.head.sequence + 1
            show.console.print(f"Moved {count} entries to {ledger.place}; {source} is closed.", markup=False)
