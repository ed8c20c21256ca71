"""`sfumato synthesize`: synthetic tables with the statistics of private ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import show
from sfumato.cli.options import Allocation, LeaveOut, Purpose, Rule, TableName, check
from sfumato.cli.synthesize_table import synthesize_table
from sfumato.errors import InvalidInput

_NEITHER = (
    "expected a policy and --epsilon, or --from with a model, got neither; as in sfumato synthesize "
    "people.toml --rows 1000 --epsilon 1 --out s.csv (for images: sfumato images)"
)
_DRAWN_ONLY = "the model is released and paid for; give only --rows and --out with it"
RULES = (
    *(
        Rule(option="from_", excludes=(name,), because=_DRAWN_ONLY)
        for name in (
            "source", "epsilon", "delta", "target", "table", "columns", "leave_out", "workload",
            "engine", "master", "attack", "allocation", "purpose", "dry_run",
        )
    ),
    Rule(option="attack", excludes=("dry_run",), because="without a run there is nothing to attack"),
)  # fmt: skip


def register(parent: typer.Typer) -> None:
    parent.command()(synthesize)


def synthesize(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(help="Policy of the table, a TOML file."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Price of the release.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A new .csv or .parquet file. Certificate, model and report go beside it."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Number of rows to draw.")] = None,
    delta: Annotated[float | None, typer.Option(help="Default: the budget's.")] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Model of an earlier table (.model.npz): draw more rows from it. Nothing is spent."
        ),
    ] = None,
    table: TableName = None,
    target: Annotated[
        str | None,
        typer.Option(help="The column that models will predict: how it depends on the rest is kept."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns to draw, separated by commas. Default: all.")
    ] = None,
    leave_out: LeaveOut = None,
    workload: Annotated[
        str | None,
        typer.Option(help='Columns to keep related, such as "age,income;city,region". Default: all pairs.'),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="duckdb, postgres or spark. Default: the engine of the policy's source.")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark's master URL.")] = "local[*]",
    attack: Annotated[
        bool,
        typer.Option(
            "--attack",
            help="Also attack a second run that has invented people in it. The outcome goes to private/.",
        ),
    ] = False,
    allocation: Allocation = None,
    purpose: Purpose = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the price and the noise. Nothing is spent.")
    ] = False,
    test_seed: Annotated[
        int | None,
        typer.Option(
            "--test-seed", help="Seed for the noise, for tests only: the release is marked not private."
        ),
    ] = None,
    json: show.Json = False,
) -> None:
    """Draw a synthetic table, for a share of the budget.

    Example: sfumato synthesize people.toml --rows 50000 --epsilon 1 --out people-synthetic.parquet
    """
    check(context, RULES)
    if from_ is not None:
        _draw_more(from_, rows, out, json=json)
        return
    if source is None or epsilon is None:
        raise InvalidInput(_NEITHER)
    if rows is None:
        raise InvalidInput("expected --rows, got none; say how many rows to draw")
    synthesize_table(
        Path(source),
        rows=rows,
        epsilon=epsilon,
        delta=delta,
        table=table,
        target=target,
        columns=columns,
        leave_out=leave_out or (),
        workload=workload,
        out=None if dry_run and out is None else _place(out),
        engine=engine,
        master=master,
        attack=attack,
        spend_under=(allocation, purpose),
        dry_run=dry_run,
        test_seed=test_seed,
        json=json,
    )


def _place(out: Path | None) -> Path:
    if out is None:
        raise InvalidInput("expected --out, got none; what is paid for has to be kept somewhere")
    return out


def _draw_more(model: Path, rows: int | None, out: Path | None, *, json: bool) -> None:
    """More rows of a released model: post-processing, for nothing."""
    from sfumato.synthesis import SyntheticModel
    from sfumato.synthesis.cells import new_place, write_table

    if rows is None:
        raise InvalidInput("expected --rows with --from, got none; say how many rows to draw")
    place = new_place(_place(out))
    table = SyntheticModel.read(model).table(rows)
    write_table(table, place)
    answer = {"out": str(place), "rows": table.num_rows, "columns": table.column_names, "epsilon": 0.0}
    if json:
        show.emit_json(answer)
        return
    show.facts([("written", str(place)), ("rows", f"{table.num_rows:,}")])
    show.console.print("Nothing was spent: the certificate of the model holds for these rows.", style="dim")
