"""`sfumato reproduce tracing`: the peak of an epidemic under each way of scoring."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sfumato import show

if TYPE_CHECKING:
    from sfumato_lab.reproduce.tracing import Ratio, TracingRow


def tracing(
    out: show.Out = Path("out/tracing"),
    simulator: Annotated[str, typer.Option(help="seir or covasim.")] = "seir",
    people: Annotated[int, typer.Option(help="Number of people in the simulated town.")] = 10_000,
    days: Annotated[int, typer.Option(help="Number of days to simulate.")] = 80,
    towns: Annotated[int, typer.Option(min=1, help="Number of simulated towns. The median is shown.")] = 3,
    first_town: Annotated[int, typer.Option(help="Seed of the first town; the others follow.")] = 1,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each town, with other test errors and other noise.")
    ] = 1,
    false_positives: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Chance of a positive test for somebody who is not infectious. "
            "0 is the setting in the public configurations of the published work.",
        ),
    ] = 0.01,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="An ε to measure at. May be repeated. Default: 0.3, 1 and 3.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to measure. May be repeated. Default: all, or none beside --confirm."),
    ] = None,
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            help="A method to measure with confirming tests: somebody counts as positive only if a second test "
            "of the same day agrees; one in twenty tests a day is set aside for that. May be repeated."
        ),
    ] = None,
    ages: Annotated[bool, typer.Option(help="Let the scores of dpfn know people's age (covasim).")] = True,
    unprotected: Annotated[bool, typer.Option(help="Measure each method without noise, too.")] = True,
    json: show.Json = False,
) -> None:
    """Measure the peak infection rate against ε for each method, beside the published table.

    If the method traditional is measured, each other method is compared with it at the same ε, town by town and
    repeat by repeat: the geometric mean of the ratios is shown with a standard error. Ratios are to traditional
    without confirming tests; with --confirm traditional, ratios to that are shown below.

    Example: sfumato reproduce tracing --simulator covasim --epsilon 1 --method dpfn --method traditional
    """
    from dataclasses import asdict

    from sfumato_lab.reproduce import tracing as recipe
    from sfumato_lab.tracing import TestKit

    measured = recipe.Towns(
        simulator=simulator,
        people=people,
        days=days,
        seeds=range(first_town, first_town + towns),
        repeats=repeats,
        kit=TestKit(false_positive_rate=false_positives),
        ages=ages,
    )
    with show.errors.status("simulating") as status:
        rows = recipe.run(
            out,
            measured,
            epsilons=tuple(epsilon or (0.3, 1.0, 3.0)),
            methods=tuple(method or (() if confirm else recipe.METHODS)),
            confirmed=tuple(confirm or ()),
            unprotected=unprotected,
            progress=lambda text: status.update(text),
        )
    if json:
        show.emit_json({"rows": [asdict(row) for row in rows]})
        return
    title = f"Peak infection rate, ‰, {simulator}, {people} people, {towns} × {repeats} runs"
    show.console.print(_table(title, rows))
    for row in rows:
        if row.ratio_confirmed is not None and row.confirm:
            medians, mean = _ratios(row.ratio_confirmed)
            show.console.print(
                f"{row.method}, ε of a {row.span}, against {recipe.COMPARED_WITH}, both with confirming tests: "
                f"ratio of medians {medians}, mean ratio {mean}."
            )
    published = ", ".join(f"{name} {peak:g}" for name, peak in recipe.PUBLISHED[simulator].items())
    show.console.print(
        f"Ratios in the table are to {recipe.COMPARED_WITH} without confirming tests at the same ε: of the "
        "medians, and the geometric mean over all runs ± one standard error.\n"
        "Noise is set for the ε of one message (of a contact, about a day): in a single day's release, or over "
        "its lifetime, all the daily releases in which it counts. Both columns of ε are of the same noise.\n"
        f"Published peaks: {published}; stated for ε = {recipe.PUBLISHED_EPSILON:g}, of one release.\n"
        f"Figures: {out}"
    )


def _table(title: str, rows: list[TracingRow]) -> Table:
    from sfumato_lab.reproduce.tracing import label

    table = Table(title=title, title_justify="left")
    for column in ("method", "noise\nset for"):
        table.add_column(column)
    for column in (
        "ε, one\nrelease",
        "ε, a\nlifetime",
        "peak",
        "ratio of\nmedians",
        "mean\nratio",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            label(row),
            row.span,
            _epsilon(row.epsilon_release),
            _epsilon(row.epsilon_lifetime),
            f"{1000 * row.peak:.2f}",
            *_ratios(row.ratio),
        )
    return table


def _ratios(ratio: Ratio | None) -> tuple[str, str]:
    """The ratio of medians, and the mean ratio with its standard error."""
    if ratio is None:
        return "", ""
    mean = f"{ratio.geometric_mean:.2f}"
    if ratio.error is not None:
        mean += f" ± {ratio.geometric_mean * ratio.error:.2f}"
    return f"{ratio.of_medians:.2f}", mean


def _epsilon(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.2f}"
