"""`sfumato reproduce published-mnist`: published accuracies, trained again, at the ε that holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sfumato import show
from sfumato_lab.reproduce.watching import Quick, watching

if TYPE_CHECKING:
    from sfumato_lab.reproduce.published_mnist import Reproduction


def published_mnist(
    out: show.Out = Path("out/published-mnist"),
    row: Annotated[list[str] | None, typer.Option(help="Run only this row. May be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs of each row.")] = 1,
    quick: Quick = False,
    json: show.Json = False,
) -> None:
    """Train published private models on MNIST again: accuracy and ε, published and ours.

    Example: sfumato reproduce published-mnist --row "scattering + linear"
    """
    from sfumato_lab.reproduce import published_mnist as recipe

    with watching() as watch:
        result = recipe.run(out, quick=quick, seeds=seeds, only=row or (), watch=watch)
    if json:
        show.emit_json(result.to_json())
        return
    table = Table(title="Published private accuracies on MNIST (δ = 1e-5)", title_justify="left")
    for column in ("", "theirs", "ε claimed", "ε true", "ε if shuffled", "ours", "our ε", "seconds a run"):
        table.add_column(column, justify="left" if not column else "right")
    for item in result.reproductions:
        table.add_row(*_cells(item))
    show.console.print(table)
    show.console.print("ε true: of their settings under Poisson sampling, by privacy loss distributions.")
    show.console.print(f"Figures: {result.figures[0].parent}")


def _cells(item: Reproduction) -> tuple[str, ...]:
    row, ours = item.row, item.ours
    return (
        row.name,
        f"{row.accuracy:.1%}",
        f"{row.claimed_epsilon:.2f}",
        f"{row.true_epsilon():.3f}",
        f"{row.shuffled_epsilon():.1f}",
        ours.accuracy_told(),
        f"{item.epsilon:.3f}",
        f"{ours.seconds:.0f}",
    )
