"""`sfumato demo`: what privacy costs, on real data, in a minute or two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli import show

if TYPE_CHECKING:
    from sfumato.experiments.first_look import FirstLook


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs, the ledger and the figure go.")] = Path("out"),
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the data: under a minute.")] = False,
    json: show.Json = False,
) -> None:
    """Train one network plainly and privately on MNIST under one budget, and show what privacy cost.

    Example: sfumato demo --quick
    """
    from sfumato.experiments import first_look

    with show.progress() as bar:
        task = bar.add_task("getting data", total=first_look.STAGES, note="")
        look = first_look.run(
            out, quick=quick, on_stage=lambda name, done: bar.update(task, description=name, completed=done)
        )
    if json:
        show.emit_json(look.to_json())
    else:
        _tell(look)


def _tell(look: FirstLook) -> None:
    from rich.table import Table

    from sfumato.accounting import in_words
    from sfumato.ledger import Ledger, statement

    table = Table(title="The same network, with and without privacy", title_justify="left")
    for column in ("", "ε (δ = 1e-5)", "test accuracy", "seconds"):
        table.add_column(column, justify="left" if not column else "right")
    for run in look.runs:
        spent = "∞" if run.epsilon is None else f"{run.epsilon:.2f}"
        table.add_row(run.name, spent, f"{run.test_accuracy:.2%}", f"{run.seconds:.0f}")
    show.console.print(table)
    show.console.print(in_words(look.attacker_true_positive_rate) + "\n")
    with Ledger.open(look.ledger) as ledger:
        show.console.print(statement.render(ledger))
    show.console.print(f"A further run was refused, as it should be: {look.refusal}\n")
    show.facts(
        [
            ("figure", str(look.figure)),
            ("certificates", f"sfumato verify {look.certificates[0]}"),
            ("next", "sfumato train --help, sfumato query --help, and docs/"),
        ]
    )
