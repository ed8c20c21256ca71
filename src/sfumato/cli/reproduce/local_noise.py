"""`sfumato reproduce local-noise`: images noised at the source's five ε, and the honest ε beside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sfumato.cli import show


def local_noise(
    out: show.Out = Path("out/local-noise"),
    people: Annotated[int, typer.Option(help="Images that are noised and learnt from.")] = 60_000,
    epochs: Annotated[int, typer.Option(help="Passes of the network over the noised images.")] = 3,
    clustering_epochs: Annotated[
        int, typer.Option(help="Passes of the clustering at each ε; 0 leaves it out.")
    ] = 12,
    json: show.Json = False,
) -> None:
    """Local noise on images: the source's ε, the honest ε, and errors with and without labels.

    Example: sfumato reproduce local-noise --people 10000 --clustering-epochs 0
    """
    from dataclasses import asdict

    from sfumato.experiments import local_noise as recipe

    settings = recipe.Settings(people=people, epochs=epochs, clustering_epochs=clustering_epochs)
    with show.errors.status("noising") as status:
        rows = recipe.run(out, settings, progress=lambda text: status.update(text))
    if json:
        show.emit_json({"rows": [asdict(row) for row in rows]})
        return
    table = Table(title="Images of length 1, noised once", title_justify="left")
    for column in ("source ε", "honest ε", "honest ε, 80 epochs", "source error", "network", "clustering"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.source_epsilon:,g}",
            f"{row.honest_epsilon:,.0f}",
            f"{row.honest_epsilon_redrawn:,.0f}",
            f"{row.source_error:.0%}",
            f"{row.network_error:.1%}",
            "" if row.clustering_error is None else f"{row.clustering_error:.1%}",
        )
    show.console.print(table)
    show.console.print(f"Figures: {out}")
