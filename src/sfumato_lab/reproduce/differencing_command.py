"""`sfumato reproduce differencing`: one person taken out of two averages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sfumato import show


def differencing(
    out: show.Out = Path("out/differencing"),
    epsilon: Annotated[float, typer.Option(help="ε of each of the two queries.")] = 1.0,
    tries: Annotated[int, typer.Option(help="Number of times the private answers are drawn.")] = 1000,
    json: show.Json = False,
) -> None:
    """Compute one person's age from two averages, and try the same with private answers.

    Example: sfumato reproduce differencing
    """
    from sfumato_lab.reproduce import differencing as recipe

    found = recipe.run(out, epsilon=epsilon, tries=tries)
    if json:
        show.emit_json(found.to_json())
        return
    attack = found.attack
    table = Table(title="The age of the only Jan Kees, as an attacker makes it out", title_justify="left")
    table.add_column("protection")
    table.add_column("estimate", justify="right")
    table.add_row("averages only", f"{attack.averages_only:.0f}")
    table.add_row("no group below 50 people", f"{attack.minimum_group:.0f}")
    low, high = attack.to_json()["private_95"]
    table.add_row(f"private answers, ε = {epsilon:g}", f"95% of {tries} tries in [{low:.0f}, {high:.0f}]")
    table.add_row("the truth", f"{attack.truth}")
    show.console.print(table)
    for name, result in (("without a limit", found.unlimited), ("under a budget of ε = 5", found.budgeted)):
        show.console.print(
            f"Reconstruction {name}: {result.answered} questions answered, {result.refused} refused, "
            f"{result.right:.0%} of {result.people} secrets right (guessing: {result.guessing:.0%})"
        )
    show.console.print(f"Figure: {found.figure}")
