"""`sfumato reproduce`: published systems and tables, side by side with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sfumato.cli import show

Out = Annotated[Path, typer.Option(help="Where figures and figures' numbers go.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Published systems and tables, side by side with ours.", no_args_is_help=True)
    group.command()(differencing)
    group.command()(tracing)
    group.command()(membership)
    app.add_typer(group, name="reproduce")


def differencing(
    out: Out = Path("out/differencing"),
    epsilon: Annotated[float, typer.Option(help="ε of each of the attacker's two questions.")] = 1.0,
    tries: Annotated[int, typer.Option(help="How often the private answers are drawn anew.")] = 1000,
    json: show.Json = False,
) -> None:
    """Take one person's age out of two averages; then try the same against private answers.

    Example: sfumato reproduce differencing
    """
    from sfumato.experiments import differencing as recipe

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


def tracing(
    out: Out = Path("out/tracing"),
    simulator: Annotated[str, typer.Option(help="seir or covasim.")] = "seir",
    people: Annotated[int, typer.Option(help="People in the simulated town.")] = 10_000,
    days: Annotated[int, typer.Option(help="Days to live through.")] = 80,
    json: show.Json = False,
) -> None:
    """Peak infection rate against ε for each way of scoring, beside the published table.

    Example: sfumato reproduce tracing --simulator covasim
    """
    from dataclasses import asdict

    from sfumato.experiments import tracing as recipe

    with show.errors.status("simulating") as status:
        rows = recipe.run(
            out, simulator=simulator, people=people, days=days, progress=lambda text: status.update(text)
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


def membership(out: Out = Path("out/membership"), json: show.Json = False) -> None:
    """Attack a plain and private networks: who was among the training rows?

    Example: sfumato reproduce membership
    """
    from sfumato.experiments import membership as recipe

    with show.errors.status("training and attacking networks"):
        found = recipe.run(out)
    if json:
        show.emit_json(found)
        return
    table = Table(title="Membership attacks, MNIST", title_justify="left")
    columns = ("network", "attack", "AUC", "TPR at 0.1% FPR", "precision", "recall")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    measures = ("auc", "tpr_at_fpr_0.001", "precision_at_median", "recall_at_median")
    for network, attacks in found["attacks"].items():
        for attack, scores in attacks.items():
            if isinstance(scores, dict) and "auc" in scores:
                table.add_row(network, attack, *(f"{scores[name]['value']:.3f}" for name in measures))
    show.console.print(table)
    show.console.print(f"Figures: {out}")


def _epsilon(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.2f}"
