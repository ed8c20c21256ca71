"""`sfumato reproduce synthetic-tables`: synthetic copies of public tables, beside the real rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sfumato import show


def synthetic_tables(
    out: show.Out = Path("out/synthetic-tables"),
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this table: randhie or fair. May be repeated.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs at each ε.")] = 5,
    json: show.Json = False,
) -> None:
    """Draw synthetic copies of public tables at several ε, and measure them. An interrupted run is resumed.

    Example: sfumato reproduce synthetic-tables --only fair --runs 1
    """
    from sfumato_lab.reproduce import synthetic_tables as recipe

    chosen = tuple(only or ())
    with show.progress() as bar:
        total = len(chosen or recipe.CUTS) * len(recipe.EPSILONS) * runs
        task = bar.add_task("drawing", total=total, note="")
        lines = recipe.run(
            out, only=chosen, runs=runs, on_run=lambda name: bar.update(task, advance=1, note=name)
        )
    if json:
        show.emit_json({"lines": [line.to_json() for line in lines], "out": str(out)})
        return
    title = (
        "A classifier trained on synthetic rows and tested on real ones; mean distance of marginals; δ = 1e-6"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("table")
    for column in ("ε", "accuracy", "AUC", "1-way", "2-way", "3-way"):
        table.add_column(column, justify="right")
    for line in lines:
        cells = [f"{line.mean(name):.4f} ± {line.deviation(name):.4f}" for name in recipe.MEASURES]
        name = recipe.TITLES[line.table]
        table.add_row(name, "real rows" if line.epsilon is None else f"{line.epsilon:g}", *cells)
    show.console.print(table)
    show.console.print(f"Numbers: {out}")
