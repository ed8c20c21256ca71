"""`sfumato plan`: the price and accuracy of releases, before a budget is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Grid
from rich.text import Text

from sfumato.cli import show
from sfumato.cli.options import Allocation

if TYPE_CHECKING:
    from sfumato.governance import PlanPrice

File = Annotated[Path, typer.Argument(help="The plan, a TOML file.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Plan releases together: price, expected errors, one charge.", no_args_is_help=True
    )
    group.command("show")(show_)
    group.command()(charge)
    app.add_typer(group, name="plan")


def show_(file: File, json: show.Json = False) -> None:
    """Show the total price of a plan's releases, the error of each, and the possible gain of an attacker.

    Example: sfumato plan show year.toml
    """
    from sfumato.governance import Plan

    price = Plan.read(file).price()
    if json:
        show.emit_json(price.to_json())
    else:
        _print(price)


def charge(
    file: File,
    ledger: Annotated[str, typer.Option(help="The ledger to charge, a file or a postgresql:// address.")],
    allocation: Allocation = None,
    json: show.Json = False,
) -> None:
    """Charge all releases of a plan as one. Each is then made with --allocation NAME-OF-THE-PLAN, for nothing.

    Example: sfumato plan charge year.toml --ledger people.db
    """
    from sfumato.governance import Plan
    from sfumato.ledger import Ledger

    plan = Plan.read(file)
    with Ledger.open(ledger) as book:
        charged = plan.charge(book, allocation=allocation)
        left = book.state.left(allocation)
        if json:
            entry = charged.head.sequence
            show.emit_json(
                {"plan": plan.name, "entry": entry, "epsilon_spent": book.epsilon_spent, "epsilon_left": left}
            )
            return
        show.console.print(
            f"Charged the plan {plan.name!r}. {book.balance.in_words()} Make its "
            f"releases with --allocation {plan.name!r}.",
            markup=False,
        )


def _print(price: PlanPrice) -> None:
    from sfumato.accounting import protection_warning

    grid = Grid(title=Text(f"Plan {price.plan.name}"), title_justify="left", box=None, pad_edge=False)
    for heading in ("release", "times", "ε each", "expected error (95%)"):
        grid.add_column(heading, justify="left" if heading in ("release", "expected error (95%)") else "right")
    for release, each in zip(price.plan.releases, price.each, strict=True):
        errors = ", ".join(f"{name} ± {value:.3g}" for name, value in release.errors.items())
        grid.add_row(Text(release.name), str(release.times), f"{each:.4g}", Text(errors))
    show.console.print(grid)
    budget = price.plan.budget
    rows = [
        (
            "ε as one plan",
            f"{price.together:.4g} at δ = {budget.delta:g}, each {budget.unit}, {budget.relation}",
        ),
        ("ε one by one, by the ledger's filter", f"{price.one_by_one:.4g}"),
        ("sum of the releases' ε", f"{price.added_up:.4g}"),
    ]
    if not price.fits:
        rows.append(("warning", f"it does not fit ε = {budget.epsilon:g}"))
    weak = protection_warning(price.together, budget.delta)
    if weak is not None:
        rows.append(("warning", f"it {weak}"))
    show.facts(rows)
    show.console.print(price.in_words(), markup=False)
