"""`sfumato ledger`: make a budget, see it being spent, check that nobody changed it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import show

Place = Annotated[str, typer.Argument(help="A file, or a postgresql:// address.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make, show and verify privacy budgets.", no_args_is_help=True)
    for command in (create, show_, verify, export, allocate):
        group.command(command.__name__.strip("_"))(command)
    app.add_typer(group, name="ledger")


def create(
    place: Place,
    epsilon: Annotated[float, typer.Option(help="The ε that may be spent in all.")],
    delta: Annotated[float, typer.Option(help="The δ of the whole budget; 0 for pure ε.")] = 0.0,
    unit: Annotated[str, typer.Option(help="Whom the budget protects: record, person, …")] = "record",
    relation: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")] = "add-remove",
    json: show.Json = False,
) -> None:
    """Make a ledger with a budget.

    Example: sfumato ledger create people.db --epsilon 3 --delta 1e-5
    """
    from sfumato.accounting import warn_of_little_protection
    from sfumato.ledger import Budget, Ledger, statement

    budget = Budget(epsilon=epsilon, delta=delta, unit=unit, relation=relation)  # type: ignore[arg-type]
    warn_of_little_protection("this budget", budget.epsilon, budget.delta)
    with Ledger.create(place, budget) as ledger:
        if json:
            show.emit_json(statement.as_json(ledger))
        else:
            show.console.print(f"Made {place}: ε = {budget.epsilon:g} at δ = {budget.delta:g} for each {unit}.")


def show_(place: Place, json: show.Json = False) -> None:
    """What was spent, on what, and what is left.

    Example: sfumato ledger show people.db
    """
    from sfumato.ledger import Ledger, statement

    with Ledger.open(place) as ledger:
        if json:
            show.emit_json(statement.as_json(ledger))
        else:
            show.console.print(statement.render(ledger))


def verify(
    place: Place,
    certificate: Annotated[
        Path | None, typer.Option(help="The newest certificate: shows a cut-off or rolled-back ledger.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Check every entry and sum, and against a certificate that nothing newer was lost.

    Example: sfumato ledger verify people.db --certificate out/release/certificate.json
    """
    from sfumato.ledger import Certificate, Ledger

    newest = None if certificate is None else Certificate.read(certificate)
    with Ledger.open(place) as ledger:
        head = ledger.verify(certificate=newest)
    if json:
        show.emit_json({"valid": True, "head": head.to_json()})
    else:
        show.console.print(f"All {head.sequence + 1} entries hold. Head: {head.hash}")
        if certificate is None:
            show.console.print(
                "A cut-off tail shows only against a certificate: --certificate FILE", style="dim"
            )


def export(place: Place) -> None:
    """The whole ledger as JSON, with the head to check later copies against.

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
