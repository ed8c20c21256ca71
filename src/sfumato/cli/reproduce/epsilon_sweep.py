"""`sfumato reproduce epsilon-sweep`: ResNet-18 at several ε and without privacy."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from sfumato.cli import show
from sfumato.cli.reproduce.watching import Quick, Seed, watching


def epsilon_sweep(
    out: show.Out = Path("out/epsilon-sweep"), quick: Quick = False, seed: Seed = 0, json: show.Json = False
) -> None:
    """ResNet-18 on 10,000 MNIST digits, five epochs, at ε = 1, 5, 10 and without privacy.

    Example: sfumato reproduce epsilon-sweep --quick
    """
    from sfumato.experiments import epsilon_sweep as recipe

    with watching() as watch:
        result = recipe.run(out, quick=quick, seed=seed, watch=watch)
    if json:
        show.emit_json(result.to_json())
        return
    table = Table(title="ResNet-18, five epochs (δ = 1e-5)", title_justify="left")
    for column in ("", "true ε", "noise multiplier", "test accuracy", "seconds"):
        table.add_column(column, justify="left" if not column else "right")
    for run in result.runs:
        epsilon = "∞" if run.epsilon is None else f"{run.epsilon:.3f}"
        noise = "" if run.noise_multiplier is None else f"{run.noise_multiplier:.3f}"
        table.add_row(run.name, epsilon, noise, f"{run.test_accuracy:.2%}", f"{run.seconds:.0f}")
    show.console.print(table)
    show.console.print(f"Figures: {result.figures[0].parent}")
