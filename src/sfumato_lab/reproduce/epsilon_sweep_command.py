"""`sfumato reproduce epsilon-sweep`: ResNet-18 at several ε and without privacy."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from sfumato import show
from sfumato_lab.reproduce.watching import Quick, Seeds, watching


def epsilon_sweep(
    out: show.Out = Path("out/epsilon-sweep"),
    quick: Quick = False,
    seeds: Seeds = None,
    json: show.Json = False,
) -> None:
    """Train ResNet-18 on 10,000 MNIST digits for five epochs at ε = 1, 5, 10 and without privacy.

    Example: sfumato reproduce epsilon-sweep --quick
    """
    from sfumato_lab.reproduce import epsilon_sweep as recipe

    with watching() as watch:
        result = recipe.run(out, quick=quick, seeds=seeds, watch=watch)
    if json:
        show.emit_json(result.to_json())
        return
    table = Table(title="ResNet-18, five epochs (δ = 1e-5)", title_justify="left")
    for column in ("", "true ε", "noise multiplier", "test accuracy", "seconds a run"):
        table.add_column(column, justify="left" if not column else "right")
    for setting in result.settings:
        multiplier = setting.runs[0].noise_multiplier
        epsilon = "∞" if setting.epsilon is None else f"{setting.epsilon:.3f}"
        noise = "" if multiplier is None else f"{multiplier:.3f}"
        table.add_row(setting.name, epsilon, noise, setting.accuracy_told(), f"{setting.seconds:.0f}")
    show.console.print(table)
    show.console.print(f"Figures: {result.figures[0].parent}")
