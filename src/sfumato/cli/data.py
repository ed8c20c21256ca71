"""`sfumato data`: fetch a data set and verify it."""

from __future__ import annotations

from typing import Annotated

import typer

from sfumato.cli import show


def register(app: typer.Typer) -> None:
    app.command()(data)


def data(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or digits.")], json: show.Json = False
) -> None:
    """Fetch a data set, check its digests, and say where it is.

    Example: sfumato data mnist
    """
    from sfumato.datasets import DATASETS, fetch, load

    files = fetch(name)
    spec = DATASETS[name]
    for split in spec.public_size:
        load(name, split)  # type: ignore[arg-type]
    answer = {
        "name": name,
        "files": [str(found.path) for found in files],
        "sizes": dict(spec.public_size),
        "classes": spec.classes,
    }
    if json:
        show.emit_json(answer)
        return
    sizes = ", ".join(f"{size} {split}" for split, size in spec.public_size.items())
    rows = [("data set", name), ("rows", sizes), ("classes", str(spec.classes))]
    rows += [("file", str(found.path)) for found in files] or [("file", "inside scikit-learn")]
    show.facts(rows, title="Digests hold.")
