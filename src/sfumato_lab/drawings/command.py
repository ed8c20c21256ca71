"""`sfumato prior`: make the public networks that ship with the package again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli import show


def register(app: typer.Typer) -> None:
    app.command()(prior)


def prior(
    name: Annotated[
        str,
        typer.Argument(
            help="strokes, strokes-wide, strokes-wild or strokes-rare (digits), or shapes (things)."
        ),
    ] = "strokes",
    out: Annotated[Path, typer.Option(help="Folder for the weights and their description.")] = Path(
        "out/prior"
    ),
    epochs: Annotated[int | None, typer.Option(help="Epochs. Default: as for the weights that ship.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed. Default: as for the weights that ship.")] = None,
    json: show.Json = False,
) -> None:
    """Pre-train a network on synthetic drawings, and measure it on public images.

    Example: sfumato prior strokes --out out/prior
    """
    from sfumato import _validate
    from sfumato_lab.drawings.prior import SHIPPED, PriorRecipe, make_prior

    recipe: PriorRecipe = SHIPPED[_validate.one_of("name", name, SHIPPED)]
    passes, start = recipe.epochs if epochs is None else epochs, recipe.seed if seed is None else seed
    recipe = replace(recipe, epochs=passes, seed=start)
    with show.progress() as bar:
        task = bar.add_task("pre-training", total=recipe.steps, note="")

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        note = make_prior(out, recipe=recipe, progress=advance)
    if json:
        show.emit_json(note)
        return
    rows = [("weights", str(out / f"{name}.safetensors")), ("sha256", note["sha256"]), *_quality(note)]
    show.facts([*rows, ("seconds", f"{note['seconds']:.0f}")])


def _quality(note: dict[str, Any]) -> list[tuple[str, str]]:
    """On drawings that the network never saw, and on public images."""
    measured = note["accuracy"].items()
    return [(f"accuracy on {source}", f"{value:.2%}") for source, value in measured if value is not None]
