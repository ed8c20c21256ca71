"""`sfumato train`: a model under a budget, of images or of a table from its policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.expected import room, show_room
from sfumato.cli.options import (
    SHARES,
    SPEND,
    Allocation,
    Classes,
    Delta,
    LeaveOut,
    PublicSize,
    Purpose,
    Rule,
    TableName,
    TrainSize,
    Unit,
    charged,
    check,
    read_data,
    take_some,
    was_given,
)
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.fitting import Evaluation
    from sfumato.learn import Canaries, Classifier, HoldOut, Trained
    from sfumato.learn.plain import PlainlyTrained
    from sfumato.learn.table import TableRun, TableTraining
    from sfumato.ledger import Ledger
    from sfumato.policy import Policy

PolicyFile = Annotated[
    Path | None,
    typer.Argument(help="Policy of a table, to learn one of its columns. For images give --data instead."),
]
TargetColumn = Annotated[str | None, typer.Option(help="Column to learn, of a policy's table.")]

DEFAULT = "boosted"
_TAKEN = {"policy", "target", "model", "epsilon", "delta", "test_data", "out", "dry_run", "json"} | {
    "allocation",
    "purpose",
    "table",
    "hold_out",
    "hold_out_epsilon",
    "leave_out",
}
_TABLE_RULES = (
    Rule(option="target", needs=("policy",), because="it is a column of a policy's table"),
    Rule(option="table", needs=("policy",), because="it is a table of a policy"),
    Rule(option="leave_out", needs=("policy",), because="it is a column of a policy's table"),
    Rule(option="hold_out_epsilon", needs=("hold_out",), because="it pays for what is kept out"),
)
_MEASURED = ("test_accuracy", "test_rmse")  # of classes, of a number
_PUBLIC_ROWS = "give public rows as --test-data"
_KEPT_OUT = "or measure on private ones at a price with --hold-out"
_ELSEWHERE = {
    "finish": "a table is learned in seconds to minutes and keeps no checkpoints: begin anew",
    "ledger": "the policy names its ledger",
    "public_size": "the policy declares it",
    "unit": "the policy declares it",
}


def train_from_policy(context: typer.Context) -> bool:
    """Whether the words name a policy; if so, the run is done."""
    given = {name: value for name, value in context.params.items() if was_given(context, name)}
    if not {"policy", "data", "target"} & given.keys():
        raise InvalidInput(
            "expected a policy and --target, or --data, got neither; as in sfumato train people.toml "
            "--target ill, or sfumato train --data mnist"
        )
    check(context, _TABLE_RULES)
    if "policy" not in given:
        return False
    if missing := [name for name in ("target", "epsilon") if name not in given]:
        raise InvalidInput(
            f"expected --{missing[0]} with a policy, got none; say which column to learn, and the ε that may "
            "be spent"
        )
    if other := sorted(given.keys() - _TAKEN):
        raise InvalidInput(
            f"expected no --{other[0].replace('_', '-')} with a policy, got one; "
            f"{_ELSEWHERE.get(other[0], 'that is for images')}"
        )
    ready, answer = _run(given)
    if given.get("json"):
        show.emit_json(answer)
    else:
        _show_table(ready, answer)
    return True


def _show_table(ready: TableTraining, answer: dict[str, Any]) -> None:
    apart = ("dry_run", "epsilon_left", "epsilon_left_after") if "dry_run" in answer else ()
    told = {name: value for name, value in answer.items() if value != [] and name not in apart}
    remedy = f"{_PUBLIC_ROWS}, {_KEPT_OUT}" if ready.can_hold_out else _PUBLIC_ROWS
    show.answer(told, remedies=dict.fromkeys(_MEASURED, remedy))
    if apart:
        show_room(answer)


def _run(given: dict[str, Any]) -> tuple[TableTraining, dict[str, Any]]:
    from sfumato.learn import HoldOut
    from sfumato.learn.table import TableTraining
    from sfumato.policy import load_policy

    policy = load_policy(given["policy"]).one_table(given.get("table"), having=[given["target"]])
    ready = TableTraining.prepare(
        policy,
        target=given["target"],
        epsilon=given["epsilon"],
        delta=given.get("delta"),
        model=given.get("model", DEFAULT),
        leave_out=given.get("leave_out", ()),
        hold_out=HoldOut(share=given["hold_out"], **_paid_by(given)) if "hold_out" in given else None,
    )
    with _open_ledger(policy, given) as book:
        if given.get("dry_run"):
            left = room(book, ready.events, relation=policy.budget.relation, unit=policy.budget.unit)
            return ready, {"dry_run": True, "table": policy.table, **_priced(ready), **left}
        out = given.get("out") or _free_folder(policy.table, ready.target.name)
        run = _trained(ready, book, out, given.get("test_data"))
        spent = {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}
        return ready, {**_table_answer(ready, run), **spent, "table": policy.table, "out": str(out)}


def _paid_by(given: dict[str, Any]) -> dict[str, float]:
    return {"epsilon": given["hold_out_epsilon"]} if "hold_out_epsilon" in given else {}


def _open_ledger(policy: Policy, given: dict[str, Any]) -> Ledger:
    """The policy's own and no other: a second one would have a budget of its own."""
    from sfumato.query.answer import open_ledger

    book = open_ledger(policy, Path(given["policy"]))
    return book.spend_under(given.get("allocation"), purpose=given.get("purpose"))


def _trained(ready: TableTraining, book: Ledger, out: Path, test: str | None) -> TableRun:
    with show.progress() as bar:
        task = bar.add_task("training", total=ready.releases, note="")
        return ready.train(ledger=book, out=out, test=test, watch=lambda done: bar.update(task, completed=done))


def _priced(ready: TableTraining) -> dict[str, Any]:
    both = {} if ready.hold_out is None else {"epsilon_with_hold_out": ready.epsilon_with_hold_out}
    return {
        "epsilon": ready.epsilon,
        **both,
        "delta": ready.delta,
        "left_out": list(ready.encoding.left_out),
    }


def _table_answer(ready: TableTraining, run: TableRun) -> dict[str, Any]:
    held = run.held_out
    name = _MEASURED[0] if ready.classes is not None else _MEASURED[1]
    measured: dict[str, Any] = run.measured or ({name: None} if held is None else {})
    if held is not None:
        measured |= {
            "held_out_accuracy": held.accuracy,
            "held_out_interval": (held.low, held.high),
            "held_out_epsilon": held.epsilon,
            "epsilon_with_hold_out": ready.epsilon_with_hold_out,
        }
    return {
        **measured,
        "epsilon": run.epsilon,
        "delta": run.delta,
        "seconds": run.seconds,
        "left_out": list(run.left_out),
    }


def _free_folder(table: str, target: str) -> Path:
    """Return out/people-ill, or the next free folder, so that a paid release is always kept."""
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{table}-{target}")
    places = (Path("out") / (name if number == 1 else f"{name}-{number}") for number in range(1, 1_000_000))
    return next(place for place in places if not place.exists())


_RECIPE = "recipe"
TRAINING, MEASURE = "How it is trained", "Measuring and auditing"
RULES = (
    Rule(option="data", needs=("epsilon", "plain"), because="say how much privacy may be spent"),
    Rule(
        option="plain",
        excludes=(
            "epsilon",
            "delta",
            "clip_norm",
            "ledger",
            "hold_out",
            "audit",
            "dry_run",
            "device",
            "noise",
            "moved",
        ),
        because="without privacy nothing is clipped, charged or measured at a price; that takes --epsilon",
    ),
    Rule(option="hold_out_epsilon", needs=("hold_out",), because="it pays for what is kept out"),
    Rule(
        option="noise",
        excludes=("hold_out", "audit"),
        because="a fixed order has other neighbours (zero-out) than what is kept out, and than canaries",
    ),
    Rule(
        option="finish",
        needs=("out",),
        excludes=("plain", "dry_run", "audit"),
        because="it ends the interrupted private run in --out",
    ),
    Rule(
        option="accept_new_graph",
        needs=("out",),
        excludes=("plain", "dry_run"),
        because="it goes on with the interrupted private run in --out",
    ),
    Rule(option="canaries", needs=("audit",), because="it says of which kind the canaries are"),
    Rule(option="audit", needs=("out",), because="what the canaries show goes to its private folder"),
    Rule(option="ledger", needs=("out", "dry_run"), because="a model that is paid for must be kept somewhere"),
    *SHARES,
)


_REMEDIES = {
    "test_accuracy": "give public images as --test-data, or measure on private ones at a price with --hold-out"
}


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    context: typer.Context,
    policy: PolicyFile = None,
    target: TargetColumn = None,
    table: TableName = None,
    leave_out: LeaveOut = None,
    data: Annotated[
        str, typer.Option(help="mnist, fashion-mnist, cifar10, digits; or your folder or .npz of images.")
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            help="recipe: a head on public features; or cnn, tanh-cnn, resnet18, mlp. "
            "For a table: boosted (default), linear, mlp."
        ),
    ] = _RECIPE,
    epsilon: Annotated[float | None, typer.Option(help="ε to spend.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Train without privacy.")] = False,
    delta: Delta = 1e-5,
    epochs: Annotated[
        float | None,
        typer.Option(help="Number of epochs. Default: 10, or the recipe's."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Expected batch size. Default: 1024, or less for 100 to 200 steps; or the recipe's.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Learning rate. Default: 0.5, or less if the noise would be too much for that; 0.05 plain.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(help="Clip each person's gradient to this norm. Default: 1.", rich_help_panel=TRAINING),
    ] = None,
    train_size: TrainSize = None,
    public_size: PublicSize = None,
    classes: Classes = None,
    test_data: Annotated[str | None, typer.Option(help="Public images or rows to measure on.")] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the records to keep out of training, for a private measurement of accuracy.",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    hold_out_epsilon: Annotated[
        float, typer.Option(help="ε of that measurement, in addition.", rich_help_panel=MEASURE)
    ] = 0.1,
    seed: Annotated[
        int,
        typer.Option(help="Seed for the first weights. The noise cannot be seeded.", rich_help_panel=TRAINING),
    ] = 0,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger of the data set. It is charged before training.")
    ] = None,
    unit: Unit = "record",
    allocation: Allocation = None,
    purpose: Purpose = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="banded, lambda-cgd: fixed order of records, noise that later steps take back in part.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    moved: Annotated[
        bool,
        typer.Option(
            "--moved",
            help="Learn from each image moved by a pixel in four directions too: five times the work, mostly "
            "more accurate. For images with a margin; not for the recipe.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            help="Where the model is trained: cpu, cuda, or another device of torch.", rich_help_panel=TRAINING
        ),
    ] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Run folder. An interrupted run is resumed from it.")] = None,
    audit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Insert this many canaries, and audit the run with them.", rich_help_panel=MEASURE
        ),
    ] = None,
    canaries: Annotated[
        str,
        typer.Option(
            help="dirac: own weights, observed in every step; labels: mislabelled rows, black box.",
            rich_help_panel=MEASURE,
        ),
    ] = "dirac",
    finish: Annotated[
        bool,
        typer.Option(
            "--finish",
            help="End an interrupted run: take no further step, and release the model of its last checkpoint.",
            rich_help_panel=SPEND,
        ),
    ] = False,
    accept_new_graph: Annotated[
        bool,
        typer.Option(
            "--accept-new-graph",
            help="Resume although the model's code or torch's version is another than before.",
            rich_help_panel=SPEND,
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show price, time and memory. Nothing is spent.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Train a model with differential privacy, or without.

    Example: sfumato train --data mnist --epsilon 1 --delta 1e-5 --out out/mnist
    """
    from sfumato.learn import Classifier, Settings
    from sfumato.learn.plain import train as train_plainly

    if train_from_policy(context):
        return
    check(context, RULES)
    settings = Settings(
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        seed=seed,
        noise=noise,
        moved=moved,
    )
    place = _new_place(None if dry_run else out)
    side = 28 if data == "digits" and model not in ("mlp", _RECIPE) else None
    rows, test = read_data(data, side=side, public_size=public_size, classes=classes, test_data=test_data)
    rows = replace(take_some(rows, train_size, place), unit=unit)
    if epsilon is None:
        answer = _plain_answer(train_plainly(rows, test, model=model, settings=settings, out=place))
    else:
        book = charged(ledger, allocation=allocation, purpose=purpose)
        ready = Classifier.prepare(
            rows,
            test,
            epsilon=epsilon,
            delta=delta,
            model=model,
            settings=settings,
            hold_out=_hold_out(hold_out, hold_out_epsilon),
            canaries=_canaries(audit, canaries),
        ).on(device)
        answer = (
            _dry_run(ready, book)
            if dry_run
            else _private(ready, book, out, finish=finish, accept_new_graph=accept_new_graph)
        )
    _show(answer, place, json=json)


def _new_place(out: Path | None) -> Path | None:
    from sfumato.storage import RunFolder

    if out is not None:
        RunFolder(out).refuse_finished()
    return out


def _hold_out(share: float | None, epsilon: float) -> HoldOut | None:
    from sfumato.learn import HoldOut

    return None if share is None else HoldOut(share=share, epsilon=epsilon)


def _canaries(count: int | None, kind: str) -> Canaries | None:
    from sfumato.learn import Canaries

    return None if count is None else Canaries(count=count, kind=kind)


def _show(answer: dict[str, Any], out: Path | None, *, json: bool) -> None:
    shown = answer if out is None else answer | {"out": str(out)}
    if json:
        show.emit_json(shown)
        return
    apart = {"epsilon_left", "epsilon_left_after"} if "epsilon_left_after" in shown else set()
    show.answer({name: shown[name] for name in shown if name not in apart}, remedies=_REMEDIES)
    if apart:
        show_room(shown)


def _private(
    ready: Classifier, book: Ledger | None, out: Path | None, *, finish: bool, accept_new_graph: bool
) -> dict[str, Any]:
    """Charge and train, under a bar."""
    from sfumato.training import EpochReport, PrivateTrainer

    with show.progress() as bar:
        task = bar.add_task("training", total=ready.plan.steps, note="")

        def after_epoch(report: EpochReport) -> None:
            if report.test_accuracy is not None:
                bar.update(task, note=f"test {report.test_accuracy:.2%}")

        def after_step(trainer: PrivateTrainer) -> None:
            bar.update(task, completed=trainer.steps_done)

        trained = ready.train(
            ledger=book,
            out=out,
            on_step=after_step,
            on_epoch=after_epoch,
            finish=finish,
            accept_new_graph=accept_new_graph,
        )
    answer = _answer(ready, trained)
    if book is not None:
        answer |= {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}
    return answer


def _answer(ready: Classifier, trained: Trained) -> dict[str, Any]:
    answer = {
        **_measured(trained.test),
        "epsilon": trained.epsilon,
        "delta": ready.delta,
        "noise_multiplier": ready.plan.noise_multiplier,
        "steps": trained.result.steps,
        **({} if trained.result.steps == ready.plan.steps else {"steps_planned": ready.plan.steps}),
        "seconds": trained.seconds,
    }
    if trained.verdict is not None:
        answer |= {"audit_lower_bound": trained.verdict.lower_bound, "audit": trained.verdict.in_words}
    if trained.held_out is not None:
        answer |= {
            "held_out_accuracy": trained.held_out.accuracy,
            "held_out_interval": (trained.held_out.low, trained.held_out.high),
            "held_out_epsilon": trained.held_out.epsilon,
            "epsilon_with_hold_out": trained.epsilon_with_hold_out,
        }
    return answer


def _plain_answer(trained: PlainlyTrained) -> dict[str, Any]:
    return {**_measured(trained.test), "epsilon": float("inf"), "delta": 0.0, "seconds": trained.seconds}


def _measured(test: Evaluation | None) -> dict[str, Any]:
    return {
        "test_accuracy": None if test is None else test.accuracy,
        "test_loss": None if test is None else test.loss,
    }


def _dry_run(ready: Classifier, book: Ledger | None) -> dict[str, Any]:
    left: dict[str, float] = {}
    if book is not None:
        with book:
            ready.check_room(book)
            left = room(book, ready.events, relation=ready.plan.relation, unit=ready.plan.unit)
    guess, both = ready.estimate(), ready.epsilon_with_hold_out
    return {
        "epsilon": ready.epsilon,
        "delta": ready.delta,
        "noise_multiplier": ready.plan.noise_multiplier,
        "sample_rate": ready.plan.sample_rate,
        "expected_batch": ready.plan.expected_batch,
        "steps": ready.plan.steps,
        "learning_rate": ready.optimization.highest_rate,
        "seconds_expected": guess.seconds,
        "memory_expected_mb": guess.megabytes,
        **({} if both is None else {"epsilon_with_hold_out": both}),
        **left,
    }
