"""`sfumato reproduce clustering`: digits told apart without labels, from several first weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato import show


def clustering(
    out: show.Out = Path("out/clustering"),
    data: Annotated[
        str, typer.Option(help="mnist, or drawings: settings are chosen on drawings, never on MNIST.")
    ] = "mnist",
    seeds: Annotated[int, typer.Option(help="Number of runs, each from other first weights.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 800,
    people: Annotated[int, typer.Option(help="Number of images.")] = 60_000,
    turn: Annotated[float, typer.Option(help="Most that a copy is turned, in degrees.")] = 15.0,
    slant: Annotated[float, typer.Option(help="Most that a copy is slanted.")] = 0.2,
    json: show.Json = False,
) -> None:
    """Cluster raw images without labels (invariant information clustering), several times.

    Example: sfumato reproduce clustering --seeds 5
    """
    from sfumato_lab.reproduce import clustering_runs
    from sfumato_lab.reproduce.clustering import ClusteringPlan, Distortion

    plan = ClusteringPlan(steps=steps, distortion=Distortion(turn=turn, slant=slant))
    with show.errors.status("clustering") as status:
        found = clustering_runs.run(
            out, plan, data=data, people=people, seeds=seeds, progress=lambda text: status.update(text)
        )
    if json:
        show.emit_json(found.to_json())
        return
    show.facts(
        [
            ("accuracy", f"{found.mean:.2%} ± {found.spread:.2%}"),
            ("each run", ", ".join(f"{accuracy:.2%}" for accuracy in found.accuracies)),
            ("CPU seconds a run", f"{sum(found.cpu_seconds) / len(found.cpu_seconds):.0f}"),
        ]
    )
