"""`sfumato predict`: what a released model says of new images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show

if TYPE_CHECKING:
    from sfumato.datasets import Pictures


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder of train, tune, pate or local learn.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder of images, an .npz or .npy file, or a data set's name: its test half.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the answers to this .csv file.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Show the probability of each class too.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Answer with the model of a finished run; nothing is charged, as its release was paid for.

    Example: sfumato predict out/mnist mnist --out answers.csv
    """
    from sfumato.datasets import read_pictures
    from sfumato.loading import load

    model, pictures = load(run), read_pictures(data)
    answer: dict[str, Any] = {"predictions": model.predict(pictures.images).tolist()}
    if probabilities:
        answer["classes"] = model.classes.tolist()
        answer["probabilities"] = model.predict_proba(pictures.images).tolist()
    if out is not None:
        _write(out, pictures, answer)
        answer["out"] = str(out)
    if json:
        show.emit_json(answer)
    elif out is not None:
        show.console.print(f"Wrote {len(pictures.names)} answers to {out}.", markup=False)
    else:
        for line in _table(pictures, answer):
            show.console.print("  ".join(line), markup=False, highlight=False)


def _write(out: Path, pictures: Pictures, answer: dict[str, Any]) -> None:
    import csv
    import io

    from sfumato.storage import write_whole

    text = io.StringIO()
    header = ["input", "prediction", *(f"p({name})" for name in answer.get("classes", []))]
    csv.writer(text, lineterminator="\n").writerows([header, *_table(pictures, answer)])
    write_whole(out, text.getvalue().encode())


def _table(pictures: Pictures, answer: dict[str, Any]) -> list[list[str]]:
    """One line a picture: its name, the answer, and the probabilities if they were asked for."""
    shares = answer.get("probabilities", [[]] * len(pictures.names))
    return [
        [name, str(label), *(f"{share:.6g}" for share in row)]
        for name, label, row in zip(pictures.names, answer["predictions"], shares, strict=True)
    ]
