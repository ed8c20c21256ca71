"""`sfumato images`: synthetic images with the statistics of private ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli import SHARES, Allocation, Purpose, charged, check, read_data, show
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato_lab.images import PublicSet


def register(app: typer.Typer) -> None:
    app.command()(images)


def images(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="The private images: mnist, fashion-mnist, a folder, or an .npz file.")
    ],
    images: Annotated[int, typer.Option(help="Number of images to draw.")],
    epsilon: Annotated[float, typer.Option(help="Price of the release.")],
    out: Annotated[Path, typer.Option(help="A new .npz file. Certificate, sampler and report go beside it.")],
    delta: Annotated[float, typer.Option(help="The δ at which ε is stated.")] = 1e-5,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Where images start from: strokes or shapes, which are drawings, or a folder or .npz file of "
            "public images with the same classes. Default: drawings, by the data set."
        ),
    ] = None,
    public_size: Annotated[
        int | None, typer.Option(help="With your own images: the number of people they are from.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="With your own images: the number of classes, or their names (cat,dog).")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Ledger to charge before any private image is read.")
    ] = None,
    allocation: Allocation = None,
    purpose: Purpose = None,
    test_seed: Annotated[
        int | None,
        typer.Option(
            "--test-seed", help="Seed for the noise, for tests only: the release is marked not private."
        ),
    ] = None,
    json: show.Json = False,
) -> None:
    """Draw synthetic images, for a share of the budget.

    Example: sfumato images mnist --images 60000 --epsilon 1 --out digits.npz
    """
    from sfumato.ledger import Unrecorded
    from sfumato.randomness import SecretStream
    from sfumato_lab.images import ImagePlaces, ImageRequest, StyleSettings, release_images
    from sfumato_lab.images.release import STAGES
    from sfumato_lab.images.styles import DRAW, PUBLIC

    check(context, SHARES)
    started = time.perf_counter()
    places = ImagePlaces(out)
    if prior is not None and prior not in DRAW and not Path(prior).expanduser().exists():
        raise InvalidInput(
            f"expected --prior {' or '.join(DRAW)}, or a folder or .npz file of public images, got {prior}"
        )
    rows, test = read_data(source, side=None, public_size=public_size, classes=classes, test_data=None)
    public = None if prior is None or prior in DRAW else _public_set(prior, rows)
    settings = StyleSettings.for_data(rows.name, prior if public is None else PUBLIC)
    request = ImageRequest.of(
        rows, images=images, epsilon=epsilon, delta=delta, settings=settings, public=public
    )
    book = charged(ledger, allocation=allocation, purpose=purpose)
    with show.stages(STAGES) as next_stage:
        made = release_images(
            request,
            rows,
            ledger=Unrecorded(delta=delta) if book is None else book,
            out=out,
            sampler=SecretStream(test_seed=test_seed),
            test=test,
            progress=next_stage,
        )
    answer = {
        "out": str(out),
        "epsilon": made.epsilon,
        "delta": delta,
        "images": images,
        "rows": images,
        "sampler": str(places.sampler),
        "fidelity": made.report,
        "epsilon_left": None if book is None else book.epsilon_left,
        "seconds": time.perf_counter() - started,
    }
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            ("written", str(out)),
            ("images", f"{images:,}"),
            ("epsilon, delta", f"{made.epsilon:.4g}, {delta:g}"),
            ("seconds", f"{answer['seconds']:.1f}"),
        ]
    )


def _public_set(prior: str, rows: Dataset) -> PublicSet:
    """Public images with the classes of the private ones."""
    import numpy as np

    from sfumato import datasets
    from sfumato.learn.features import fitted
    from sfumato.released import class_names
    from sfumato_lab.images import PublicSet

    found = fitted(
        datasets.read_images(prior, classes=list(class_names(rows)), public_size=None, visibility="public")
    )
    return PublicSet(images=np.rint(255 * found.inputs[:, 0]).astype(np.uint8), kinds=found.targets)
