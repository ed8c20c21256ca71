"""`sfumato reproduce synthesis`: synthetic images, beside the best published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sfumato import show


def synthesis(
    out: show.Out = Path("out/synthesis"),
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this line of the table. May be repeated.")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs of each line. Default: 5.")] = None,
    images: Annotated[int, typer.Option(min=100, help="Images of each run.")] = 60_000,
    json: show.Json = False,
) -> None:
    """Draw synthetic images at several ε, and measure them. An interrupted run is resumed.

    Example: sfumato reproduce synthesis --only mnist-1 --runs 1
    """
    from sfumato_lab.reproduce import synthesis as recipe

    chosen = tuple(only or ())
    with show.progress() as bar:
        task = bar.add_task("drawing", total=recipe.total_runs(chosen, runs), note="")
        lines = recipe.run(
            out,
            only=chosen,
            runs=runs,
            images=images,
            on_run=lambda name, number: bar.update(task, advance=1, note=f"{name} {number}"),
        )
    if json:
        show.emit_json({"lines": [line.to_json() for line in lines], "out": str(out)})
        return
    title = "A network trained on synthetic images alone, % of public test images right, δ = 1e-5"
    table = Table(title=title, title_justify="left")
    for column in (
        "data",
        "ε",
        "published best",
        "ours",
        "Fréchet (drawings)",
        "as labelled",
        "coverage",
        "nearest",
        "CPU s",
    ):
        table.add_column(column, justify="left" if column in ("data", "published best") else "right")
    for line in lines:
        ours = f"{100 * line.mean('test_accuracy'):.2f} ± {100 * line.deviation('test_accuracy'):.2f}"
        read = f"{100 * line.mean('read_as_labelled'):.1f}%"
        apart = f"{line.mean('frechet_prior'):.3f} ({line.mean('frechet_prior_drawings'):.3f})"
        cells = (f"{line.cell.epsilon:g}", line.cell.published, ours, apart, read)
        styles, near = f"{100 * line.mean('coverage'):.0f}%", f"{line.mean('nearest_median'):.3f}"
        table.add_row(line.cell.title, *cells, styles, near, f"{line.mean('cpu_seconds'):.0f}")
    show.console.print(table)
    show.console.print(f"Images, sheets and numbers: {out}")
