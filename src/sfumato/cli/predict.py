"""`sfumato predict`: predictions of a released model for new images or rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfumato.learn.table.model import TableModel
    from sfumato.released import Predictor


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder of train, tune, pate or local learn.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder of images, an .npz or .npy file, a data set's name (its test images); "
            "for a model of a table a CSV or Parquet file.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the answers to this .csv file.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Show the probability of each class too.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Predict with the model of a finished run. Nothing is charged: the release was paid for.

    Example: sfumato predict out/mnist mnist --out answers.csv
    """
    from sfumato.loading import load

    model = load(run)
    if not hasattr(model, "predict"):
        raise InvalidInput(
            f"expected a model that answers, got a sampler of synthetic images at {run}; draw images with "
            "sfumato.load(folder).draw(count, seed=1)"
        )
    rows, names = _inputs(model, data)
    answer: dict[str, Any] = {"predictions": model.predict(rows).tolist()}
    if probabilities:
        answer["classes"] = model.classes.tolist()
        answer["probabilities"] = model.predict_proba(rows).tolist()
    if out is not None:
        _write(out, names, answer)
        answer["out"] = str(out)
    if json:
        show.emit_json(answer)
    elif out is not None:
        show.console.print(f"Wrote {len(names)} answers to {out}.", markup=False)
    else:
        for line in _table(names, answer):
            show.console.print("  ".join(line), markup=False, highlight=False)


def _inputs(model: Predictor | TableModel, data: str) -> tuple[Any, Sequence[str]]:
    from sfumato.datasets import read_pictures
    from sfumato.datasets.clean import read_rows
    from sfumato.datasets.text_table import TextForm
    from sfumato.learn.table.model import TableModel

    if isinstance(model, TableModel):
        rows = read_rows(Path(data).expanduser(), TextForm(), model.encoding.names)
        return rows, [str(number) for number in range(1, rows.num_rows + 1)]
    pictures = read_pictures(data)
    return pictures.images, pictures.names


def _write(out: Path, names: Sequence[str], answer: dict[str, Any]) -> None:
    from sfumato.display import csv_bytes
    from sfumato.storage import write_whole

    write_whole(out, csv_bytes(_table(names, answer)))


def _table(names: Sequence[str], answer: dict[str, Any]) -> list[list[str]]:
    """A header, and for each input its name, the answer, and the probabilities if they were asked for."""
    shares = answer.get("probabilities", [[]] * len(names))
    header = ["input", "prediction", *(f"p({name})" for name in answer.get("classes", []))]
    lines = [
        [name, str(label), *(f"{share:.6g}" for share in row)]
        for name, label, row in zip(names, answer["predictions"], shares, strict=True)
    ]
    return [header, *lines]
