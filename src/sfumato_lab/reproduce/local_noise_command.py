"""`sfumato reproduce local-noise`: images noised at the five published ε, and the true ε beside."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sfumato import show

if TYPE_CHECKING:
    from sfumato_lab.reproduce.local_noise import LocalNoiseRow
    from sfumato_lab.reproduce.local_noise_releases import Released


def local_noise(
    out: show.Out = Path("out/local-noise"),
    people: Annotated[int, typer.Option(help="Number of images to noise and learn from.")] = 60_000,
    epochs: Annotated[int, typer.Option(help="Epochs of the network on the noised images.")] = 3,
    clustering_steps: Annotated[
        int,
        typer.Option(
            help="Steps of clustering raw images (a quarter as many for noised ones); 0 leaves it out."
        ),
    ] = 800,
    releases: Annotated[int, typer.Option(help="Number of releases at each ε, for mean and spread.")] = 5,
    only_releases: Annotated[
        bool, typer.Option("--only-releases", help="Leave out the published ε, networks and clustering.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Noise images locally: the published ε, the true ε, and the error with and without labels.

    Example: sfumato reproduce local-noise --clustering-steps 0
    """
    from dataclasses import asdict

    from sfumato_lab.reproduce import local_noise as recipe

    settings = recipe.Settings(
        people=people, epochs=epochs, clustering_steps=clustering_steps, releases=releases
    )
    rows: list[LocalNoiseRow] = []
    with show.errors.status("noising") as status:
        if only_releases:
            honest = recipe.releases(out, settings, progress=lambda text: status.update(text))
        else:
            rows, honest = recipe.run(out, settings, progress=lambda text: status.update(text))
    if json:
        show.emit_json({"rows": [asdict(row) for row in rows], "honest": [part.to_json() for part in honest]})
        return
    if rows:
        show.console.print(_source_table(rows))
    show.console.print(_honest_table(honest))
    if rows:
        show.console.print(f"Figures: {out}")


def _source_table(rows: Sequence[LocalNoiseRow]) -> Table:
    table = Table(title="Images of length 1, noised once; labels as they are", title_justify="left")
    for column in (
        "ε claimed",
        "ε true",
        "ε over 80 epochs",
        "error published",
        "network",
        "clustering",
        "time",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            "raw" if row.source_epsilon == inf else f"{row.source_epsilon:,g}",
            _large(row.honest_epsilon),
            _large(row.honest_epsilon_redrawn),
            f"{row.source_error:.0%}",
            f"{row.network_error:.1%}",
            "" if row.clustering_error is None else f"{row.clustering_error:.1%}",
            "" if row.clustering_seconds is None else f"{row.clustering_seconds:,.0f} s",
        )
    return table


def _large(epsilon: float) -> str:
    """In full up to millions, then in powers of ten."""
    return f"{epsilon:,.0f}" if epsilon < 1e7 else f"{epsilon:.1e}"


def _honest_table(honest: Sequence[Released]) -> Table:
    table = Table(title="Image and label noised, one report a person, ε that holds", title_justify="left")
    for column in ("people", "ε", "accuracy", "spread", "prior alone", "classifier"):
        table.add_column(column, justify="left" if column in ("people", "classifier") else "right")
    for part in honest:
        table.add_row(
            part.case.words,
            f"{part.case.epsilon:g}",
            f"{part.mean:.2%}",
            f"±{part.spread:.2%}",
            "" if part.prior_accuracy is None else f"{part.prior_accuracy:.2%}",
            "/".join(sorted(set(part.classifiers))),
        )
    return table
