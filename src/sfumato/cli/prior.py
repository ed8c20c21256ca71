"""`sfumato prior`: make the public networks that ship with the package again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli import show

_EPOCHS = {"strokes": 10, "shapes": 5, "strokes-latents": 6, "shapes-latents": 6}  # of the weights that ship


def register(app: typer.Typer) -> None:
    app.command()(prior)


def prior(
    name: Annotated[
        str,
        typer.Argument(
            help="strokes (digits), shapes (things), or an autoencoder: strokes-latents, shapes-latents."
        ),
    ] = "strokes",
    out: Annotated[Path, typer.Option(help="Folder for the weights and their description.")] = Path(
        "out/prior"
    ),
    epochs: Annotated[int | None, typer.Option(help="Epochs. Default: as for the weights that ship.")] = None,
    json: show.Json = False,
) -> None:
    """Pre-train a network on synthetic drawings, and measure it on public images.

    Example: sfumato prior strokes --out out/prior
    """
    from sfumato import _validate
    from sfumato.recipes.latents import LatentsRecipe, make_latents
    from sfumato.recipes.prior import PriorRecipe, make_prior

    passes = epochs if epochs is not None else _EPOCHS[_validate.one_of("name", name, _EPOCHS)]
    autoencoder = name.endswith("-latents")
    recipe = (LatentsRecipe if autoencoder else PriorRecipe)(name=name, epochs=passes)
    with show.progress() as bar:
        task = bar.add_task("pre-training", total=recipe.steps, note="")

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if isinstance(recipe, LatentsRecipe):
            note = make_latents(out, recipe=recipe, progress=advance)
        else:
            note = make_prior(out, recipe=recipe, progress=advance)
    if json:
        show.emit_json(note)
        return
    rows = [("weights", str(out / f"{name}.safetensors")), ("sha256", note["sha256"]), *_quality(note)]
    show.facts([*rows, ("seconds", f"{note['seconds']:.0f}")])


def _quality(note: dict[str, Any]) -> list[tuple[str, str]]:
    """On drawings that the network never saw, and on public images."""
    if "accuracy" not in note:
        return [("mean squared error of a pixel", str(note["mean_squared_error"]))]
    measured = note["accuracy"].items()
    return [(f"accuracy on {source}", f"{value:.2%}") for source, value in measured if value is not None]
