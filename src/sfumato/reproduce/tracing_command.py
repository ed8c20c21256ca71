"""`sfumato reproduce tracing`: the peak of an epidemic under each way of scoring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sfumato import show


def tracing(
    out: show.Out = Path("out/tracing"),
    simulator: Annotated[str, typer.Option(help="seir or covasim.")] = "seir",
    people: Annotated[int, typer.Option(help="Number of people in the simulated town.")] = 10_000,
    days: Annotated[int, typer.Option(help="Number of days to simulate.")] = 80,
    towns: Annotated[int, typer.Option(min=1, help="Number of simulated towns. The median is shown.")] = 3,
    first_town: Annotated[int, typer.Option(help="Seed of the first town; the others follow.")] = 1,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="An ε to measure at. May be repeated. Default: 0.3, 1 and 3.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method to measure. May be repeated. Default: all.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Measure the peak infection rate against ε for each method, beside the published table.

    Example: sfumato reproduce tracing --simulator covasim --epsilon 1 --method dpfn --method traditional
    """
    from dataclasses import asdict

    from sfumato.reproduce import tracing as recipe

    with show.errors.status("simulating") as status:
        rows = recipe.run(
            out,
            simulator=simulator,
            people=people,
            days=days,
            epsilons=tuple(epsilon or (0.3, 1.0, 3.0)),
            seeds=range(first_town, first_town + towns),
            methods=tuple(method or recipe.METHODS),
            progress=lambda text: status.update(text),
        )
    if json:
        show.emit_json({"rows": [asdict(row) for row in rows]})
        return
    table = Table(title=f"Peak infection rate, ‰, {simulator}, {people} people", title_justify="left")
    for column in ("method", "ε of", "ε a release", "ε over a message's life", "peak", "published"):
        table.add_column(column, justify="left" if column in ("method", "ε of") else "right")
    for row in rows:
        published = recipe.PUBLISHED[simulator].get(row.method)
        table.add_row(
            row.method,
            row.span,
            _epsilon(row.epsilon_release),
            _epsilon(row.epsilon_lifetime),
            f"{1000 * row.peak:.2f}",
            "" if published is None else f"{published:g}",
        )
    show.console.print(table)
    show.console.print(f"Figures: {out}")


def _epsilon(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.2f}"
