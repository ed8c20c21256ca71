"""Why averages and minimum group sizes do not protect, and how a budget prevents it.

Published (a talk on making differential privacy practical): AVG over {Jan Kees or Peter} = 49.5 with n = 96 and
AVG over {Peter} = 49 with n = 95 reveal 96·49.5 − 95·49 = 97.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import show
from sfumato.ledger import Budget, Ledger
from sfumato.storage import json_bytes, write_whole
from sfumato_lab.reproduce import averages
from sfumato_lab.reproduce.tables import print_table

PUBLISHED_AGE = 97


def differencing(
    out: show.Out = Path("out/differencing"),
    epsilon: Annotated[float, typer.Option(help="ε of each of the two queries.")] = 1.0,
    tries: Annotated[int, typer.Option(help="Number of times the private answers are drawn.")] = 1000,
    json: show.Json = False,
) -> None:
    """Compute one person's age from two averages, and try the same with private answers.

    Example: sfumato reproduce differencing
    """
    out.mkdir(parents=True, exist_ok=True)
    found = averages.differencing(epsilon=epsilon, tries=tries)
    unlimited, budgeted = _reconstruct(Budget(epsilon=10_000)), _reconstruct(Budget(epsilon=5))
    figure = out / "differencing.png"
    averages.draw_differencing(found, figure)
    answer = {
        "published_age": PUBLISHED_AGE,
        "differencing": found.to_json(),
        "reconstruction_without_a_limit": asdict(unlimited),
        "reconstruction_under_a_budget": asdict(budgeted),
        "figure": str(figure),
    }
    write_whole(out / "differencing.json", json_bytes(answer), readable=True)
    if json:
        show.emit_json(answer)
        return
    low, high = found.to_json()["private_95"]
    rows = [
        ("averages only", f"{found.averages_only:.0f}"),
        ("no group below 50 people", f"{found.minimum_group:.0f}"),
        (f"private answers, ε = {epsilon:g}", f"95% of {tries} tries in [{low:.0f}, {high:.0f}]"),
        ("the truth", f"{found.truth}"),
    ]
    title = "The age of the only Jan Kees, as an attacker makes it out"
    print_table(title, ("protection", "estimate"), rows)
    for name, result in (("without a limit", unlimited), ("under a budget of ε = 5", budgeted)):
        show.console.print(
            f"Reconstruction {name}: {result.answered} questions answered, {result.refused} refused, "
            f"{result.right:.0%} of {result.people} secrets right (guessing: {result.guessing:.0%})"
        )
    show.console.print(f"Figure: {figure}")


def _reconstruct(budget: Budget) -> averages.Reconstruction:
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "ward.db", budget=budget) as ledger,
    ):
        return averages.reconstruction(ledger, epsilon=1.0)
