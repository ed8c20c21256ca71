"""`sfumato tune`: settings chosen on the private data, and paid for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import (
    PAYS,
    SHARES,
    Allocation,
    Classes,
    Delta,
    PublicSize,
    Purpose,
    TrainSize,
    Unit,
    charged,
    check,
    read_data,
    take_some,
)


def register(app: typer.Typer) -> None:
    app.command()(tune)


def tune(
    context: typer.Context,
    data: Annotated[str, typer.Option(help="mnist, fashion-mnist, digits; or your folder or .npz of images.")],
    epsilon: Annotated[float, typer.Option(help="ε to spend on all trials together.")],
    delta: Delta = 1e-5,
    trials: Annotated[float, typer.Option(help="Mean number of trials. The number itself stays secret.")] = 5,
    learning_rates: Annotated[str, typer.Option(help="Values to choose from, separated by commas.")] = "2,8,32",
    clip_norms: Annotated[str, typer.Option(help="Values to choose from, separated by commas.")] = "0.1,0.5",
    train_size: TrainSize = None,
    public_size: PublicSize = None,
    classes: Classes = None,
    test_data: Annotated[str | None, typer.Option(help="Public images to measure accuracy on.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger of the data set. It is charged before any trial.")
    ] = None,
    unit: Unit = "record",
    allocation: Allocation = None,
    purpose: Purpose = None,
    out: Annotated[Path | None, typer.Option(help="Run folder for the best trial.")] = None,
    json: show.Json = False,
) -> None:
    """Train a random number of times with settings drawn from a list, and release the best.

    The whole search is charged before it begins; the score is a noised count of right answers among the rows.

    Example: sfumato tune --data digits --epsilon 3 --trials 5 --out out/tuned
    """
    from sfumato.learn import tuning
    from sfumato.storage import RunFolder

    check(context, (PAYS, *SHARES))
    if out is not None:
        RunFolder(out).refuse_finished()
    search = tuning.Tuning(
        learning_rates=_numbers("learning_rates", learning_rates),
        clip_norms=_numbers("clip_norms", clip_norms),
        mean_trials=trials,
    )
    rows, test = read_data(data, side=None, public_size=public_size, classes=classes, test_data=test_data)
    rows = replace(take_some(rows, train_size, None), unit=unit)  # a search goes to its end, or begins anew
    book = charged(ledger, allocation=allocation, purpose=purpose)
    with show.errors.status("training a secret number of times"):
        found = tuning.run(rows, test, epsilon=epsilon, delta=delta, tuning=search, ledger=book, out=out)
    answer: dict[str, Any] = {
        "test_accuracy": found.test_accuracy,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "learning_rate": found.recipe.learning_rate,
        "clip_norm": found.recipe.clip_norm,
        **({} if out is None else {"out": str(out)}),
        **({} if book is None else {"epsilon_spent": book.epsilon_spent, "epsilon_left": book.epsilon_left}),
    }
    if json:
        show.emit_json(answer)
    else:
        show.answer(answer, remedies={"test_accuracy": "give public images as --test-data"})


def _numbers(name: str, text: str) -> tuple[float, ...]:
    from sfumato.errors import InvalidInput

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInput(f"expected {name} to be numbers with commas between, got {name}={text!r}") from error
