"""The images of `sfumato synthesize`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.cli import show
from sfumato.cli.inputs import read_data
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato.learn.images import PublicSet
    from sfumato.ledger import Ledger


def synthesize_images(
    source: str,
    *,
    images: int,
    epsilon: float,
    delta: float,
    out: Path,
    prior: str | None,
    public_size: int | None,
    classes: str | None,
    book: Ledger | None,
    test_seed: int | None,
    json: bool,
) -> None:
    """Plan, charge, learn, draw, and say what it cost."""
    from sfumato.learn.images import ImagePlaces, ImageRequest, StyleSettings, release_images
    from sfumato.learn.images.release import STAGES
    from sfumato.learn.images.styles import DRAW, PUBLIC
    from sfumato.ledger import Unrecorded
    from sfumato.randomness import SecretStream

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
    """A folder or .npz file of public images with the classes of the private ones."""
    import numpy as np

    from sfumato import datasets
    from sfumato.learn.features import fitted
    from sfumato.learn.images import PublicSet
    from sfumato.released import class_names

    found = fitted(
        datasets.read_images(prior, classes=list(class_names(rows)), public_size=None, visibility="public")
    )
    return PublicSet(images=np.rint(255 * found.inputs[:, 0]).astype(np.uint8), kinds=found.targets)
