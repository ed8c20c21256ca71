"""`sfumato query`: statistics by SQL under a budget, from a CSV to a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as Grid
from rich.text import Text

from sfumato import interruption
from sfumato.cli import prompt, show
from sfumato.cli.expected import Expected, show_expected
from sfumato.cli.options import Allocation, Purpose, TableName, by_default
from sfumato.errors import InvalidInput, SfumatoError

if TYPE_CHECKING:
    from sfumato.ledger import Ledger
    from sfumato.query import Answer, Table
    from sfumato.query.risk import Risk

app = typer.Typer(
    cls=by_default("ask"),
    help="Ask statistics of a table by SQL. `sfumato query POLICY.toml …` is short for `sfumato query ask …`.",
    no_args_is_help=True,
)

EngineName = Annotated[
    str | None, typer.Option(help="duckdb, postgres or spark. Default: the engine of the policy's source.")
]
Master = Annotated[str, typer.Option(help="Spark's master URL.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="query")


@app.command()
def ask(
    policy: Annotated[
        Path, typer.Argument(help="The policy of the table, or a study of several holders; a TOML file.")
    ],
    sql: Annotated[
        str | None, typer.Argument(help="The query. Without one, open a prompt with history.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε to spend on the answer.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ to spend, for GROUP BY on a column without categories.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the expected error. Nothing is spent.")
    ] = False,
    engine: EngineName = None,
    master: Master = "local[*]",
    try_: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Also show the expected error if fewer rows and groups of a person counted. Nothing is spent.",
        ),
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(help="How to share ε among the aggregates, in the order of the query, such as 3,1."),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(help="laplace or gaussian. Default: whichever errs less and leaves as much budget."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the answer to a new .csv, .parquet or .json file.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Also write the answer's certificate to a new file.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat an answer that was already paid for, at no cost."),
    ] = False,
    allocation: Allocation = None,
    purpose: Purpose = None,
    json: show.Json = False,
) -> None:
    """Answer a query, each value with its 95% interval, for a share of the budget.

    Example: sfumato query people.toml "SELECT city, AVG(age) FROM people GROUP BY city" --epsilon 0.1
    """
    from sfumato.policy import declares_study
    from sfumato.query import KeptAnswers, Table, load_policy
    from sfumato.query.answer import open_ledger

    if declares_study(policy):
        only = {"--epsilon", "--split", "--out", "--json"}
        _refuse_others(only, dry_run=dry_run, engine=engine, try_=try_, again=again, delta=delta, noise=noise,
                       certificate=certificate, allocation=allocation, purpose=purpose)  # fmt: skip
        _ask_holders(policy, sql, epsilon, _weights(split), out, json=json)
        return
    rules = load_policy(policy)
    asked: dict[str, Any] = {"delta": delta, "split": _weights(split), "noise": noise}
    if (sql is None or dry_run or try_) and (out is not None or certificate is not None):
        raise InvalidInput("expected a query that is answered for --out and --certificate, got none")
    _refuse_places(out, certificate)
    kept = KeptAnswers.of(rules, policy)
    with open_ledger(rules, policy) as ledger:
        ledger.spend_under(allocation, purpose=purpose)
        table = Table(rules, ledger, engine=engine, master=master, kept=kept)
        if sql is None:
            shown = 0.1 if epsilon is None else epsilon
            _converse(table, ledger, epsilon=shown, again=again, json=json)
            return
        if epsilon is None:
            raise InvalidInput("expected --epsilon, got none; 0.1 is a careful share of a budget of 1")
        if dry_run or try_:
            show_expected(Expected.of(table, sql, epsilon, **asked, tries=try_), ledger, json=json)
            return
        with show.errors.status("asking"):  # a file is looked through before the first query
            answer = table.ask(sql, epsilon=epsilon, again=again, **asked)
        if kept.has_kept:
            interruption.offer("the answer is kept: the same command with --again shows it at no cost")
        _show_answer(answer, json=json)
        if out is not None:
            answer.write(out)
        if certificate is not None:
            table.certificate(answer).write(certificate)


def _refuse_others(taken: set[str], **options: object) -> None:
    for name, value in options.items():
        if value:
            raise InvalidInput(
                f"expected of options only {', '.join(sorted(taken))} with a study of several holders, got "
                f"--{name.strip('_').replace('_', '-')}; leave it out"
            )


def _ask_holders(
    study: Path,
    sql: str | None,
    epsilon: float | None,
    split: tuple[float, ...] | None,
    out: Path | None,
    *,
    json: bool,
) -> None:
    """Ask the tables of several holders together."""
    from sfumato.holders import TableStudy

    if sql is None or epsilon is None:
        raise InvalidInput("expected a query and --epsilon with a study of several holders, got none")
    _refuse_places(out, None)
    with show.errors.status("asking"):
        found = TableStudy.read(study).ask(sql, epsilon=epsilon, split=split)
    if json:
        show.emit_json(found.to_json())
    else:
        _show_answer(found.answer, json=False)
        words = ", ".join(f"{name} {value:.3g}" for name, value in found.against.items())
        show.console.print(f"ε against each adversary: {words}", style="dim", markup=False)
    if out is not None:
        found.answer.write(out)


def _weights(text: str | None) -> tuple[float, ...] | None:
    """The weights that --split lists."""
    try:
        return None if text is None else tuple(float(item) for item in text.split(","))
    except ValueError:
        raise InvalidInput(f"expected weights such as 3,1 for --split, got {text!r}") from None


def _refuse_places(out: Path | None, certificate: Path | None) -> None:
    """A file that cannot be written is refused before anything is spent."""
    from sfumato.query.answer import refuse_existing, refuse_place

    if out is not None:
        refuse_place(out)
    if certificate is not None:
        refuse_existing(certificate)


@app.command()
def init(
    data: Annotated[Path, typer.Argument(help="A text, Parquet or DuckDB file.")],
    out: Annotated[Path | None, typer.Option(help="File to write. Default: beside the data.")] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Say whether the first line holds column names. Without names, columns are called c1, c2, ….",
        ),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="Separator of values in a text file.")] = ",",
    table: Annotated[str | None, typer.Option(help="The table of a DuckDB file.")] = None,
    json: show.Json = False,
) -> None:
    """Draft a policy for a file, with blanks for values that must be declared.

    Example: sfumato query init people.csv
    """
    from sfumato.query import draft_policy
    from sfumato.storage import write_whole

    place = out or data.with_name(f"{data.name.split('.')[0]}.toml")
    if place.exists():
        raise InvalidInput(f"expected no file at {place}, got one; choose another with --out")
    draft = draft_policy(data, header=header, delimiter=delimiter, table=table)
    write_whole(place, draft.text.encode(), readable=True)
    if json:
        show.emit_json({"policy": str(place), "fill_in": list(draft.blanks)})
        return
    show.console.print(f"Wrote {place}. No value of the data is in it. Fill in:")
    for blank in draft.blanks:
        show.console.print(f"  {blank}", markup=False)


@app.command()
def bounds(
    policy: Annotated[Path, typer.Argument(help="The policy of the table, a TOML file.")],
    column: Annotated[
        str,
        typer.Argument(help="A column of numbers, with bounds or without; of several tables as visits.cost."),
    ],
    epsilon: Annotated[float, typer.Option(help="The ε to spend on the bounds.")],
    table: TableName = None,
    allocation: Allocation = None,
    purpose: Purpose = None,
    engine: EngineName = None,
    master: Master = "local[*]",
    json: show.Json = False,
) -> None:
    """Find bounds of a column privately, for a share of the budget, to write into the policy.

    Example: sfumato query bounds people.toml income --epsilon 0.1
    """
    from sfumato.query import Table, load_policy
    from sfumato.query.answer import open_ledger

    rules = load_policy(policy)
    with open_ledger(rules, policy) as ledger:
        ledger.spend_under(allocation, purpose=purpose)
        asked = Table(rules, ledger, engine=engine, master=master)
        found = asked.approx_bounds(column, epsilon=epsilon, table=table)
    if json:
        show.emit_json(found.to_json())
        return
    if not found.found:
        show.console.print("Noise hid every value: these are the widest bounds. Ask with a larger epsilon.")
    show.console.print(found.to_toml(), markup=False)
    left = (
        f"ε {found.epsilon:g} for these bounds; {found.epsilon_spent:.4g} is spent so far, and a further "
        f"answer may cost up to {found.epsilon_left:.4g}."
    )
    show.console.print(left, style="dim")


@app.command()
def risk(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    quasi: Annotated[
        str,
        typer.Option(
            help="Columns that others may know, separated by commas. Default: all but the sensitive one."
        ),
    ] = "",
    sensitive: Annotated[str | None, typer.Option(help="The sensitive column.")] = None,
    k: Annotated[int, typer.Option(help="Group size of the k-anonymous release to attack.")] = 5,
    json: show.Json = False,
) -> None:
    """Measure how exposed people in a table are: unique rows, k, l, and an attack on a k-anonymous release.

    The figures are exact and not private: only for the data holder.

    Example: sfumato query risk people.csv --quasi age,zip,sex --sensitive disease
    """
    from sfumato.query.risk import measure_risk

    names = tuple(name.strip() for name in quasi.split(",") if name.strip())
    found = measure_risk(data, quasi_identifiers=names, sensitive=sensitive, k=k)
    if json:
        show.emit_json(found.to_json())
    else:
        _show_risk(found)


def _converse(table: Table, ledger: Ledger, *, epsilon: float, again: bool, json: bool) -> None:
    """Answer line after line; a refusal does not end the conversation."""
    if sys.stdin.isatty():
        show.console.print(
            f"Table {table.policy.table}: {', '.join(table.policy.columns)}. "
            f"ε = {epsilon:g} a query, {ledger.epsilon_left:g} left.",
            markup=False,
        )
        show.console.print(prompt.HELP, style="dim", markup=False)
    lines = prompt.lines("sfumato> ") if sys.stdin.isatty() else prompt.piped(sys.stdin)
    for line in lines:
        try:
            epsilon = _one_line(table, ledger, line, epsilon, again=again, json=json)
        except SfumatoError as error:
            interruption.check()
            show.errors.print(str(error), markup=False)


def _one_line(table: Table, ledger: Ledger, line: str, epsilon: float, *, again: bool, json: bool) -> float:
    """Run one line; return the ε for the next ones."""
    command, _, rest = line.partition(" ")
    if command == "\\epsilon":
        return prompt.positive(rest)
    if command == "\\left":
        show.console.print(ledger.balance.in_words())
    elif command == "\\try":
        several = table.policy.unit.column is not None
        show_expected(Expected.of(table, rest, epsilon, tries=several), ledger, json=json)
    elif command == "\\help":
        show.console.print(prompt.HELP, markup=False)
    else:
        _show_answer(table.ask(line, epsilon=epsilon, again=again), json=json)
    return epsilon


def _show_answer(answer: Answer, *, json: bool) -> None:
    if json:
        show.emit_json(answer.to_json())
        return
    grid = Grid(box=None, pad_edge=False)
    measured = [any(row[place] is not None for row in answer.intervals) for place in range(len(answer.columns))]
    for name, has_interval in zip(answer.columns, measured, strict=True):
        grid.add_column(Text(name))
        if has_interval:
            grid.add_column("95% interval", style="dim")
    for row, intervals in zip(answer.rows, answer.intervals, strict=True):
        cells: list[Text] = []  # no value is markup
        for value, interval, has_interval in zip(row, intervals, measured, strict=True):
            cells.append(Text(_shown(value, named=interval is None)))
            if has_interval:
                ends = "" if interval is None else f"{_figure(interval[0])} to {_figure(interval[1])}"
                cells.append(Text(ends))
        grid.add_row(*cells)
    show.console.print(grid)
    for line in (*answer.notes, answer.cost_in_words()):
        show.console.print(line, style="dim", markup=False)


def _shown(value: object, *, named: bool) -> str:
    """A value; a whole number that names a group is a year such as 2024, not 2,024."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return _figure(value)
    return str(value) if named or isinstance(value, bool | str) else f"{value:,}"


def _figure(value: float) -> str:
    """Six digits; of a larger number all before the point: 3,680,330 and not 3.68033e+06."""
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}"


def _show_risk(found: Risk) -> None:
    show.facts(
        [
            ("quasi-identifiers", ", ".join(found.quasi_identifiers)),
            ("rows", f"{found.rows:,}"),
            ("unique in the quasi-identifiers", f"{found.unique:,} ({found.unique_share:.1%})"),
            ("k (smallest group)", str(found.k)),
            ("l (least diverse group)", "–" if found.l is None else str(found.l)),
        ],
        title="As the table is (exact: not private, for the holder only)",
    )
    attack = found.attack
    if attack is None:
        show.console.print("Name the column to protect with --sensitive to see the linkage attack.")
        return
    show.facts(
        [
            ("k of the release", str(attack.k)),
            (f"{found.sensitive} learned for certain from one release", f"{attack.certain_one:.1%} of people"),
            ("from two k-anonymous releases", f"{attack.certain_two:.1%} of people"),
            ("guessed right without any release", f"{attack.guess_before:.1%}"),
            ("guessed right with both", f"{attack.guess_after:.1%}"),
            (f"guessed right with DP counts, ε = {attack.epsilon:g}", f"{attack.guess_private:.1%}"),
        ],
        title="Linkage attack on a k-anonymous release",
    )
