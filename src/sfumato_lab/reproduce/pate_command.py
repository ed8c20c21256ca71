"""`sfumato reproduce pate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sfumato import show

if TYPE_CHECKING:
    from sfumato_lab.reproduce.pate import Report


def pate(
    out: show.Out = Path("out/pate"),
    seeds: Annotated[
        int, typer.Option(help="Number of runs at each ε, each with its own shards and noise.")
    ] = 5,
    prior: Annotated[str, typer.Option(help="Prior that teachers and student stand on.")] = "strokes-together",
    adapt_steps: Annotated[
        int, typer.Option(help="Steps of adapting the prior to the public images; 0 for none.")
    ] = 240,
    source: Annotated[bool, typer.Option(help="Also run the published table of MLP teachers.")] = True,
    json: show.Json = False,
) -> None:
    """Run PATE beside the published results of 2017 and 2018 and a table of MLP teachers.

    Example: sfumato reproduce pate --seeds 5
    """
    from sfumato_lab.reproduce import pate as recipe

    with show.errors.status("adapting the prior") as status:
        report = recipe.run(
            out,
            seeds=seeds,
            prior=prior,
            adapt_steps=adapt_steps,
            source=source,
            progress=lambda text: status.update(text),
        )
    if json:
        show.emit_json(report.to_json())
        return
    show.console.print(_ours(report))
    if report.source:
        show.console.print(_source(report))
    show.console.print(f"Figures: {out}")


def _ours(report: Report) -> Table:
    from sfumato_lab.reproduce.pate import PUBLISHED

    table = Table(title="Student accuracy on MNIST, δ = 1e-5", title_justify="left")
    for column in ("method", "ε", "which", "accuracy"):
        table.add_column(column)
    for name, epsilon, kind, accuracy in PUBLISHED:
        table.add_row(name, f"{epsilon:g}", kind, f"{accuracy:.1%}")
    table.add_row("ours, no private labels", "0", "data-independent", f"{report.rows[0].start_accuracy:.2%}")
    for row in report.rows:
        name = f"ours, {row.teachers} teachers, {row.queries} answers"
        shown = f"{row.student_accuracy:.2%} ± {row.deviation:.2%}"
        table.add_row(name, f"{row.epsilon:.3f}", "data-independent", shown)
    return table


def _source(report: Report) -> Table:
    from sfumato_lab.reproduce.pate_source import PUBLISHED

    table = Table(
        title="The PySyft PATE project: MLP teachers, Laplace noise, 9,000 answers", title_justify="left"
    )
    names = (
        "teachers",
        "epochs",
        "γ",
        "student",
        "labels",
        "ε exact",
        "ε of these votes",
        "ε by the 2017 moments",
    )
    for column in names:
        table.add_column(column, justify="right")
    table.add_row(
        str(PUBLISHED["teachers"]),
        str(PUBLISHED["epochs"]),
        f"{PUBLISHED['gamma']:g}",
        f"{PUBLISHED['student']:.1%} (published)",
        "",
        "",
        "",
        f"{PUBLISHED['epsilon']:g}",
    )
    for row in report.source:
        table.add_row(
            str(row.teachers),
            str(row.epochs),
            f"{row.gamma:g}",
            f"{row.student_accuracy:.1%}",
            f"{row.label_accuracy:.1%}",
            f"{row.epsilon:.1f}",
            f"{row.data_dependent_epsilon:.2f}",
            f"{row.source_moments_epsilon:.1f}",
        )
    return table
