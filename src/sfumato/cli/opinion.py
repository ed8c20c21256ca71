"""`sfumato opinion`: the price of a run of other software."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.governance import Opinion
    from sfumato.ledger import Ledger


def register(app: typer.Typer) -> None:
    app.command()(opinion)


def opinion(
    file: Annotated[
        Path | None,
        typer.Argument(help="Settings of the run: .json, .toml or .yaml. Nothing in it is executed."),
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting as NAME=VALUE. May be repeated.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="Record the release in this ledger. This is final: one that does not fit closes the ledger "
            "for good. First look without --ledger."
        ),
    ] = None,
    purpose: Annotated[str | None, typer.Option(help="The purpose of the release, for the ledger.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Record it without asking on a terminal first.")] = False,
    json: show.Json = False,
) -> None:
    """Compute the cost of a run of other software (Opacus, TF-Privacy, JAX-Privacy, Flower, NVFlare, PATE).

    Example: sfumato opinion run.toml --set delta=1e-5
    """
    from sfumato.governance import opinion_of

    if purpose is not None and ledger is None:
        raise InvalidInput("expected --ledger with --purpose, got none; a purpose is written into a ledger")
    if yes and ledger is None:
        raise InvalidInput("expected --ledger with --yes, got none; only what is recorded is asked about")
    found = opinion_of(_settings(file, setting or []))
    recorded = None if ledger is None else _record(found, ledger, purpose, asks=not yes and sys.stdin.isatty())
    if json:
        show.emit_json({**found.to_json(), **(recorded or {})})
        return
    _show(found, recorded)


def _settings(file: Path | None, words: Sequence[str]) -> list[tuple[str, Any]]:
    from sfumato.governance import read_settings

    given = _given(words)
    names = {name for name, _ in given}
    read = [] if file is None else [item for item in read_settings(file) if item[0] not in names]
    if file is not None and not read and not given:
        raise InvalidInput(
            f"expected names with values in {file.name!r}, got none; write what the run did into it"
        )
    if not read and not given:
        raise InvalidInput("expected a file or --set, got neither; write what the run did into run.toml")
    return [*read, *given]


def _given(words: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise InvalidInput(f"expected --set NAME=VALUE, got --set {name!r}; for example --set delta=1e-5")
    return [(name, value) for name, _, value in pairs]


def _record(found: Opinion, place: str, purpose: str | None, *, asks: bool) -> dict[str, Any]:
    """Show the charge, ask for consent on a terminal, and record it."""
    from sfumato.ledger import Ledger

    with Ledger.open(place) as ledger:
        show.errors.print(_before(found, ledger), markup=False)
        if asks and not typer.confirm("Record it?", err=True):
            show.errors.print("Nothing was recorded.")
            raise typer.Exit(1)
        what = purpose or f"released with {found.library}, outside this ledger"
        charge = ledger.record(found.event, purpose=what, relation=found.relation, unit=found.unit)
        return {
            "recorded": True,
            "ledger_closed": charge is None,
            "epsilon_spent": ledger.epsilon_spent,
            "epsilon_left": ledger.epsilon_left,
            "balance": ledger.balance.in_words(),
        }


def _before(found: Opinion, ledger: Ledger) -> str:
    from sfumato.ledger.rule import counted_event

    left = ledger.epsilon_left
    counted = counted_event(found.event, ledger.budget, relation=found.relation, unit=found.unit)
    after = ledger.state.take(counted)
    charged = f"ε = {found.epsilon:.4g} at δ = {found.delta:g}"
    if after is None:
        return (
            f"{charged} does not fit in {ledger.place}, where ε = {left:.4g} is left: the entry closes this "
            "ledger for good, and nothing can be charged to it after that."
        )
    then = after.left(ledger.allocation)
    return f"{charged} is charged to {ledger.place} for good; ε left {left:.4g}, and {then:.4g} after it."


def _show(found: Opinion, recorded: dict[str, Any] | None) -> None:
    stated = "none" if found.claimed_epsilon is None else f"{found.claimed_epsilon:g}"
    rows = [
        ("software", found.library),
        ("ε claimed", stated),
        ("ε that holds", f"{found.epsilon:.4g} at δ = {found.delta:g}, each {found.unit}, {found.relation}"),
        *((f"ε {name}", f"{value:.4g}") for name, value in found.others.items()),
        *(("problem", text) for text in found.problems),
        *(("assumed", text) for text in found.assumed),
    ]
    if found.ignored:
        rows.append(("not used", ", ".join(found.ignored)))
    if recorded is not None:
        rows.append(("ledger", _after(recorded)))
    show.facts(rows, title=_title(found))


def _title(found: Opinion) -> str:
    if found.holds is None:
        return "No ε was claimed."
    if not found.holds:
        return "The claim does not hold."
    return "The claimed ε holds; read the problems." if found.problems else "The claim holds."


def _after(recorded: dict[str, Any]) -> str:
    if recorded["ledger_closed"]:
        return f"closed: the budget is broken, at most ε = {recorded['epsilon_spent']:.4g} is owed in all"
    return f"recorded. {recorded['balance']}"
