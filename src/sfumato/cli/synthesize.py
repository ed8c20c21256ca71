"""`sfumato synthesize`: a table or images of nobody, with the statistics of private ones."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import Rule, check
from sfumato.cli.synthesize_images import synthesize_images
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.synthesis import Places, Released, Request

CANARIES = 200  # a few among the people, so that the run is like the released one


_TABLES_ONLY = "they describe a table, which has a policy"
_IMAGES_ONLY = "a table's policy says it"
RULES = (
    *(
        Rule(option=name, excludes=("images",), because=_TABLES_ONLY)
        for name in ("rows", "target", "columns", "workload", "engine", "master", "attack")
    ),
    *(
        Rule(option=name, needs=("images",), because=_IMAGES_ONLY)
        for name in ("prior", "public_size", "classes", "ledger")
    ),
)


def register(parent: typer.Typer) -> None:
    parent.command()(synthesize)


def synthesize(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Policy of a table, a TOML file; or images: mnist, fashion-mnist, a folder, an .npz file."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="What the table or the images may cost.")],
    out: Annotated[
        Path,
        typer.Option(
            help="A new .csv, .parquet or, for images, .npz file; certificate, model and report go beside it."
        ),
    ],
    rows: Annotated[int | None, typer.Option(help="How many rows of a table to draw.")] = None,
    images: Annotated[int | None, typer.Option(help="How many images to draw.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: the budget's for a table, 1e-5 for images.")
    ] = None,
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
    if images is not None:
        synthesize_images(
            source,
            images=images,
            epsilon=epsilon,
            delta=1e-5 if delta is None else delta,
            out=out,
            prior=prior,
            public_size=public_size,
            classes=classes,
            ledger=ledger,
            test_seed=test_seed,
            json=json,
        )
        return
    if rows is None:
        raise InvalidInput("expected --rows for a table or --images for images, got neither")
    from sfumato.policy import load_policy
    from sfumato.synthesis import Places, Request
    from sfumato.synthesis.inference import load_mbi

    started, policy = time.perf_counter(), Path(source)
    load_mbi()  # what is not installed is said before anything is spent
    rules = load_policy(policy)
    request = Request.of(
        rules,
        rows=rows,
        epsilon=epsilon,
        delta=delta,
        target=target,
        columns=None if columns is None else _names(columns),
        marginals=None if workload is None else [_names(part) for part in workload.split(";")],
    )
    places = Places(out)
    if request.forecast is not None:
        show.errors.print(request.forecast, markup=False)
    released, left = _released(request, policy, out, engine, master, test_seed)
    if attack:
        _attack(request, released.epsilon, places, engine, master)
    answer = {
        "out": str(out),
        "epsilon": released.epsilon,
        "delta": request.delta,
        "rows": rows,
        "columns": [column.name for column in request.drawn],
        "left_out": list(request.left_out),
        "notes": list(released.notes),
        "epsilon_left": left,
        "attack": str(places.attack) if attack else None,
        "seconds": time.perf_counter() - started,
    }
    _show(answer, json=json)


def _released(
    request: Request,
    place: Path,
    out: Path,
    engine: str | None,
    master: str,
    test_seed: int | None,
) -> tuple[Released, float]:
    from sfumato.query.opening import open_ledger
    from sfumato.randomness import SecretStream
    from sfumato.recipes.marginals import engine_marginals
    from sfumato.synthesis import release

    rules = request.policy
    with (
        open_ledger(rules, place) as opened,
        show.stages(request.stages) as next_stage,
    ):
        marginals = engine_marginals(request, rules, engine=engine, master=master)
        released = release(
            request,
            marginals,
            ledger=opened,
            out=out,
            sampler=SecretStream(test_seed=test_seed),
            progress=next_stage,
        )
        return released, opened.epsilon_left


def _attack(request: Request, epsilon: float, places: Places, engine: str | None, master: str) -> None:
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
    with show.errors.status("attacking"):
        paid = PaidTable(request.plan, table, sampler)
        found = Synthesizer(paid, request.columns, request.candidates, fixed=request.fixed).run()
    made = one_run.planned_guesses(CANARIES)
    guesses = one_run.Guesses.of_scores(membership_scores(found.model, canaries), included, guesses=made)
    bound = one_run.epsilon_bound(guesses, delta=request.delta, alpha=0.05)
    secret = request.plan.target or max(request.columns, key=lambda column: column.size).name
    right = linked(found.model, canaries, secret)
    by_chance = float(right[~included].mean()) if (~included).any() else 0.0
    places.write_private(
        places.attack,
        {
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
        },
    )


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidInput('expected names separated by commas, such as "age,income", got none')
    return names


def _show(answer: dict[str, Any], *, json: bool) -> None:
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            ("written", answer["out"]),
            ("rows", f"{answer['rows']:,}"),
            ("epsilon, delta", f"{answer['epsilon']:.4g}, {answer['delta']:g}"),
            ("epsilon left", f"{answer['epsilon_left']:.4g}"),
            ("seconds", f"{answer['seconds']:.1f}"),
        ]
    )
    for note in answer["notes"]:
        show.console.print(note, style="dim", markup=False)
