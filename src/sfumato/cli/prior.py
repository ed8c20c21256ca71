"""`sfumato prior`: make the public networks that ship with the package again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import show

_EPOCHS = {"strokes": 10, "shapes": 5}  # of the weights that ship


def register(app: typer.Typer) -> None:
    app.command()(prior)


def prior(
    name: Annotated[str, typer.Argument(help="strokes (digits) or shapes (things).")] = "strokes",
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
    from sfumato.recipes.prior import PriorRecipe, make_prior

    passes = epochs if epochs is not None else _EPOCHS[_validate.one_of("name", name, _EPOCHS)]
    recipe = PriorRecipe(name=name, epochs=passes)
    with show.progress() as bar:
        task = bar.add_task("pre-training", total=recipe.steps, note="")
        note = make_prior(
            out, recipe=recipe, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if json:
        show.emit_json(note)
        return
    rows = [("weights", str(out / f"{name}.safetensors")), ("sha256", note["sha256"])]
    rows += [
        (f"accuracy on {source}", f"{value:.2%}")
        for source, value in note["accuracy"].items()
        if value is not None
    ]
    show.facts([*rows, ("seconds", f"{note['seconds']:.0f}")])
