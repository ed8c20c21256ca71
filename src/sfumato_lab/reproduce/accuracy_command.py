"""`sfumato reproduce accuracy`: what privacy costs, beside the best published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sfumato import show


def accuracy(
    out: show.Out = Path("out/accuracy"),
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this line of the table. May be repeated.")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Stop at this many runs of each line.")] = None,
    nets: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of networks that sfumato prior made, for one run of each line in place of those "
            "that ship. May be repeated."
        ),
    ] = None,
    json: show.Json = False,
) -> None:
    """Measure the default recipe at several ε. An interrupted run is resumed.

    Example: sfumato reproduce accuracy --only mnist-1 --only mnist-3
    """
    from sfumato_lab.reproduce import accuracy as recipe

    chosen, folders = tuple(only or ()), tuple(nets or ())
    with show.progress() as bar:
        task = bar.add_task("training", total=recipe.total_runs(chosen, runs, len(folders)), note="")
        lines = recipe.run(
            out,
            only=chosen,
            most=runs,
            nets=folders,
            on_run=lambda name, number: bar.update(task, advance=1, note=f"{name} {number}"),
        )
    if json:
        show.emit_json({"lines": [line.to_json() for line in lines], "out": str(out)})
        return
    table = Table(title="Accuracy on public test images, %, δ = 1e-5", title_justify="left")
    for column in ("data", "ε", "published best", "ours", "runs", "seconds a run"):
        table.add_column(column, justify="left" if column in ("data", "published best") else "right")
    for line in lines:
        spread = f" ± {100 * line.deviation:.2f}" if len(line.accuracies) > 1 else ""
        ours = f"{100 * line.mean:.2f}{spread}"
        cells = (f"{line.epsilon:.3g}", line.cell.published, ours, str(len(line.accuracies)))
        table.add_row(line.cell.title, *cells, f"{line.seconds:.0f}")
    show.console.print(table)
    show.console.print(f"Figure and numbers: {out}")
