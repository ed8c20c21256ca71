"""`sfumato reproduce private-cnn`: a CNN on MNIST, plain and private, at an ε that holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sfumato import show
from sfumato_lab.reproduce.watching import Quick, Seeds, watching

if TYPE_CHECKING:
    from sfumato_lab.reproduce.private_cnn import Result


def private_cnn(
    out: show.Out = Path("out/private-cnn"),
    quick: Quick = False,
    seeds: Seeds = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Train one network only, and draw no figures. plain: without privacy, with the published "
            "settings; source: private, with the published settings; priced: the same with the noise that "
            "makes the published ε true; ours: our settings at that ε; moved: ours, each image moved by a "
            "pixel too; drawn: ours, from weights that learned drawings."
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Only compare learning rates, on synthetic digits.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Train a small CNN on MNIST, plain and private, beside the published figures and their true ε.

    Example: sfumato reproduce private-cnn --quick
    """
    from sfumato_lab.reproduce import private_cnn as recipe

    if tune:
        _tune(json)
        return
    with watching() as watch:
        result = recipe.run(out, quick=quick, seeds=seeds, only=only, watch=watch)
    if json:
        show.emit_json(result.to_json())
        return
    show.console.print(_table(result))
    show.facts(
        [
            (f"true ε of the private-CNN report, {name}", f"{value:.3g}")
            for name, value in result.real_epsilon.items()
        ]
    )
    if result.figures:
        show.console.print(f"Figures: {result.figures[0].parent}")


def _tune(json: bool) -> None:
    from sfumato_lab.reproduce.private_cnn import tune

    with watching() as watch:
        found = tune(watch=watch)
    if json:
        show.emit_json({"accuracy_by_learning_rate": found})
    else:
        show.facts([(f"rate {rate:g}", f"{accuracy:.2%}") for rate, accuracy in found.items()])


def _table(result: Result) -> Table:
    from sfumato_lab.reproduce.private_cnn import PUBLISHED

    title = "The same CNN on MNIST (δ = 1e-5)"
    if result.quick:
        title += (
            "\nWith --quick ours learn from few images in one or two epochs, to try the command: "
            "not comparable with the published rows, which had 60,000."
        )
    table = Table(title=title, title_justify="left")
    for column in ("", "ε stated", "ε true", "test accuracy", "test loss", "seconds a run"):
        table.add_column(column, justify="left" if not column else "right")
    plain, private = PUBLISHED["plain"], PUBLISHED["private"]
    real = result.real_epsilon["shuffled, zero-out"]
    table.add_row(
        "the private-CNN report, plain",
        "∞",
        "∞",
        f"{plain['test_accuracy']:.1%}",
        f"{plain['test_loss']:.2f}",
        "",
    )
    table.add_row(
        "the private-CNN report, private",
        f"{private['printed_epsilon']:.2f}",
        f"{real:.1f}",
        f"{private['test_accuracy']:.1%}",
        "",
        "",
        end_section=True,
    )
    for setting in result.settings:
        epsilon = "∞" if setting.epsilon is None else f"{setting.epsilon:.3f}"
        told = setting.accuracy_told(), f"{setting.test_loss:.3f}", f"{setting.seconds:.0f}"
        table.add_row(setting.name, epsilon, epsilon, *told)
    return table
