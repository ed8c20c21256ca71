"""`sfumato synthesize`: a table or images of nobody, with the statistics of private ones."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import SHARES, Allocation, Purpose, Rule, TableName, charged, check
from sfumato.cli.synthesize_images import synthesize_images
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.ledger import Ledger
    from sfumato.synthesis import Places, Released, Request

Found = dict[str, Any]
"""What an attack came to."""

CANARIES = 200  # a few among the people, so that the run is like the released one


_NEITHER = (
    "expected a policy or images and --epsilon, or --from with a model, got neither; as in sfumato synthesize "
    "people.toml --rows 1000 --epsilon 1 --out s.csv"
)
_TABLES_ONLY = "they describe a table, which has a policy"
_IMAGES_ONLY = "a table's policy says it"
_DRAWN_ONLY = "the model is released and paid for; give only --rows and --out with it"
RULES = (
    *(
        Rule(option=name, excludes=("images",), because=_TABLES_ONLY)
        for name in ("rows", "target", "columns", "workload", "engine", "master", "attack", "table", "dry_run")
    ),
    *(
        Rule(option=name, needs=("images",), because=_IMAGES_ONLY)
        for name in ("prior", "public_size", "classes", "ledger")
    ),
    *(
        Rule(option="from_", excludes=(name,), because=_DRAWN_ONLY)
        for name in (
            "source", "epsilon", "images", "delta", "target", "table", "columns", "workload", "engine",
            "master", "attack", "allocation", "purpose", "dry_run",
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
        typer.Argument(
            help="Policy of a table, a TOML file; or images: mnist, fashion-mnist, a folder, an .npz file."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="What the table or the images may cost.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A new .csv, .parquet or, for images, .npz file; certificate, model and report go beside it."
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="How many rows of a table to draw.")] = None,
    images: Annotated[int | None, typer.Option(help="How many images to draw.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: the budget's for a table, 1e-5 for images.")
    ] = None,
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
    workload: Annotated[
        str | None,
        typer.Option(help='Columns to keep related, such as "age,income;city,region". Default: all pairs.'),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="duckdb, postgres or spark. Default: what the policy's source needs.")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark's master URL.")] = "local[*]",
    attack: Annotated[
        bool,
        typer.Option(
            "--attack",
            help="Also attack a second run that has invented people in it. The outcome goes to private/.",
        ),
    ] = False,
    prior: Annotated[
        str | None,
        typer.Option(
            help="What images start from: strokes or shapes, which are drawings, or a folder or .npz file of "
            "public images with the same classes. Default: drawings, by the data set."
        ),
    ] = None,
    public_size: Annotated[
        int | None, typer.Option(help="With your own images: how many people they are from.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="With your own images: how many classes, or their names (cat,dog).")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger of the images. It is charged before any is looked at.")
    ] = None,
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
    """Draw a synthetic table or synthetic images, for a share of the budget.

    Example: sfumato synthesize people.toml --rows 50000 --epsilon 1 --out people-synthetic.parquet
    """
    check(context, RULES)
    if from_ is not None:
        _draw_more(from_, rows, out, json=json)
        return
    if source is None or epsilon is None:
        raise InvalidInput(_NEITHER)
    if images is not None:
        check(context, SHARES)
        synthesize_images(
            source,
            images=images,
            epsilon=epsilon,
            delta=1e-5 if delta is None else delta,
            out=_place(out),
            prior=prior,
            public_size=public_size,
            classes=classes,
            book=charged(ledger, allocation=allocation, purpose=purpose),
            test_seed=test_seed,
            json=json,
        )
        return
    if rows is None:
        raise InvalidInput("expected --rows for a table or --images for images, got neither")
    from sfumato.policy import load_policy
    from sfumato.query.opening import open_ledger
    from sfumato.synthesis import Places, Request
    from sfumato.synthesis.inference import load_mbi

    started, policy = time.perf_counter(), Path(source)
    load_mbi()  # what is not installed is said before anything is spent
    drawn = None if columns is None else _names(columns)
    rules = load_policy(policy).one_table(table, having=[*(drawn or []), *([] if target is None else [target])])
    request = Request.of(
        rules,
        rows=rows,
        epsilon=epsilon,
        delta=delta,
        target=target,
        columns=drawn,
        marginals=None if workload is None else [_names(part) for part in workload.split(";")],
    )
    places = None if dry_run and out is None else Places(_place(out))
    _tell(request)
    with open_ledger(rules, policy) as book:
        book.spend_under(allocation, purpose=purpose)
        if dry_run or places is None:
            _show_price(request, book, json=json)
            return
        released = _released(request, book, places, engine, master, test_seed)
        left = book.epsilon_left
    attacked = _attack(request, released.epsilon, places, engine, master) if attack else None
    answer = {
        **_answer(request, released, places),
        "epsilon_left": left,
        "attack": str(places.attack) if attack else None,
        "seconds": time.perf_counter() - started,
    }
    _show(answer, attacked, json=json)


def _tell(request: Request) -> None:
    """What is to be known before anything is spent."""
    rules = request.policy
    if rules.tables:
        others = ", ".join(name for name in rules.tables if name != rules.table)
        show.errors.print(f"Of the policy's tables, {rules.table} is drawn; not {others}.", markup=False)
    if request.forecast is not None:
        show.errors.print(request.forecast, markup=False)


def _answer(request: Request, released: Released, places: Places) -> dict[str, Any]:
    return {
        "out": str(places.table),
        "table": request.policy.table,
        "epsilon": released.epsilon,
        "delta": request.delta,
        "rows": request.rows,
        "columns": [column.name for column in request.drawn],
        "left_out": list(request.left_out),
        "notes": list(released.notes),
        "certificate": str(places.certificate),
        "model": str(places.model),
        "fidelity": str(places.page),
        "distances": str(places.distances),
    }


def _place(out: Path | None) -> Path:
    if out is None:
        raise InvalidInput("expected --out, got none; what is paid for has to be kept somewhere")
    return out


def _draw_more(model: Path, rows: int | None, out: Path | None, *, json: bool) -> None:
    """More rows of a released model: post-processing, for nothing."""
    from sfumato.synthesis import SyntheticModel
    from sfumato.synthesis.values import new_place, write_table

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


def _show_price(request: Request, book: Ledger, *, json: bool) -> None:
    """What the table would cost, once the ledger has said that it fits."""
    plan, budget = request.plan, request.policy.budget
    book.check(plan.event(), relation=budget.relation, unit=budget.unit)
    answer: dict[str, Any] = {
        "dry_run": True,
        "table": request.policy.table,
        "epsilon": plan.epsilon(request.delta),
        "delta": request.delta,
        "columns": [column.name for column in request.drawn],
        "left_out": list(request.left_out),
        "deviation_of_counts": plan.single_sigma,
        "deviation_of_joint_counts": plan.joint_sigma if plan.measured else None,
        "epsilon_spent": book.epsilon_spent,
        "epsilon_left": book.epsilon_left,
    }
    if json:
        show.emit_json(answer)
        return
    joint = answer["deviation_of_joint_counts"]
    show.facts(
        [
            ("table", request.policy.table),
            ("columns", ", ".join(answer["columns"])),
            ("epsilon, delta", f"{answer['epsilon']:.4g}, {request.delta:g}"),
            ("noise on counts", f"± {plan.single_sigma:,.3g} (standard deviation), of a single column"),
            *([] if joint is None else [("", f"± {joint:,.3g}, of columns together")]),
        ]
    )
    if request.left_out:
        names = ", ".join(request.left_out)
        show.console.print(f"left out, without categories or bounds: {names}", style="dim", markup=False)
    show.console.print(f"Nothing was spent; ε left {book.epsilon_left:.4g}.", style="dim")


def _released(
    request: Request, book: Ledger, places: Places, engine: str | None, master: str, test_seed: int | None
) -> Released:
    from sfumato.randomness import SecretStream
    from sfumato.recipes.marginals import engine_marginals
    from sfumato.synthesis import release

    with show.stages(request.stages) as next_stage:
        marginals = engine_marginals(request, request.policy, engine=engine, master=master)
        return release(
            request,
            marginals,
            ledger=book,
            out=places.table,
            sampler=SecretStream(test_seed=test_seed),
            progress=next_stage,
        )


def _attack(request: Request, epsilon: float, places: Places, engine: str | None, master: str) -> Found:
    """How well an attacker tells who was in, beside what ε allows: a run for the holder, never released."""
    from sfumato.audit import one_run
    from sfumato.randomness import SecretStream
    from sfumato.recipes.marginals import engine_marginals
    from sfumato.synthesis import PaidTable, Synthesizer, WithCanaries, draw_canaries, linked, membership_scores

    sampler = SecretStream()
    included = one_run.toss(CANARIES, sampler)
    canaries = draw_canaries(request.columns, CANARIES, sampler)
    counts = engine_marginals(request, request.policy, engine=engine, master=master)
    table = WithCanaries(counts, canaries, included)
    with show.stages(request.stages) as next_stage:
        paid = PaidTable(request.plan, table, sampler)
        found = Synthesizer(
            paid,
            request.columns,
            request.candidates,
            fixed=request.fixed,
            progress=lambda words: next_stage(f"attack: {words}"),
        ).run()
    made = one_run.planned_guesses(CANARIES)
    guesses = one_run.Guesses.of_scores(membership_scores(found.model, canaries), included, guesses=made)
    bound = one_run.epsilon_bound(guesses, delta=request.delta, alpha=0.05)
    secret = request.plan.target or max(request.columns, key=lambda column: column.size).name
    right = linked(found.model, canaries, secret)
    by_chance = float(right[~included].mean()) if (~included).any() else 0.0
    outcome: Found = {
        "claimed_epsilon": epsilon,
        "lower_bound": bound,
        "confidence": 0.95,
        "canaries": CANARIES,
        "guesses": guesses.made,
        "right": guesses.right,
        "linkage": {
            "column": secret,
            "right_if_in": float(right[included].mean()) if included.any() else 0.0,
            "right_if_not_in": by_chance,
            "allowed_if_in": min(1.0, math.exp(min(epsilon, 700.0)) * by_chance + request.delta),
            "means": "share of canaries whose value was guessed by someone who knows the rest of the row",
        },
        "means": "of a run like this one, never released; canaries are invented rows, in by a fair coin",
    }
    places.write_private(places.attack, outcome)
    return outcome


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidInput('expected names separated by commas, such as "age,income", got none')
    return names


def _show(answer: dict[str, Any], attacked: Found | None, *, json: bool) -> None:
    """The outcome of an attack is for the holder at the terminal, and not in what other programs read."""
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            ("written", answer["out"]),
            *((name, answer[name]) for name in ("certificate", "model", "fidelity")),
            ("keep to yourself", answer["distances"]),
            *([] if answer["attack"] is None else [("", answer["attack"])]),
            ("table", answer["table"]),
            ("rows", f"{answer['rows']:,}"),
            ("epsilon, delta", f"{answer['epsilon']:.4g}, {answer['delta']:g}"),
            ("epsilon left", f"{answer['epsilon_left']:.4g}"),
            ("seconds", f"{answer['seconds']:.1f}"),
        ]
    )
    for note in answer["notes"]:
        show.console.print(note, style="dim", markup=False)
    if attacked is not None:
        _show_attack(attacked)


def _show_attack(found: Found) -> None:
    linkage = found["linkage"]
    show.facts(
        [
            (
                "who was in",
                f"{found['right']} of {found['guesses']} guesses right, {found['canaries']} canaries",
            ),
            (
                "epsilon it proves",
                f"{found['lower_bound']:.3g} (95%), of {found['claimed_epsilon']:.3g} claimed",
            ),
            (
                f"{linkage['column']} guessed right",
                f"{linkage['right_if_in']:.0%} of who was in, {linkage['right_if_not_in']:.0%} of who was not",
            ),
        ],
        title="Attack on a second run with invented people (not private: for the holder only)",
    )
