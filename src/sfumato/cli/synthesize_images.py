"""The images of `sfumato synthesize`."""

from __future__ import annotations

import time
from pathlib import Path

from sfumato.cli import show
from sfumato.cli.inputs import read_data


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
    ledger: str | None,
    test_seed: int | None,
    json: bool,
) -> None:
    """Plan, charge, learn, draw, and say what it cost."""
    from sfumato import _validate
    from sfumato.ledger import Ledger, Unrecorded
    from sfumato.randomness import SecretStream
    from sfumato.recipes.images import ImagePlaces, ImageRequest, StyleSettings, release_images
    from sfumato.recipes.images.release import STAGES
    from sfumato.recipes.images.styles import DRAW

    started = time.perf_counter()
    places = ImagePlaces(out)
    if prior is not None:
        _validate.one_of("prior", prior, DRAW)
    rows, test = read_data(source, side=None, public_size=public_size, classes=classes, test_data=None)
    settings = StyleSettings.for_data(rows.name, prior)
    request = ImageRequest.of(rows, images=images, epsilon=epsilon, delta=delta, settings=settings)
    book = Unrecorded(delta=delta) if ledger is None else Ledger.open(ledger)
    with show.stages(STAGES) as next_stage:
        made = release_images(
            request,
            rows,
            ledger=book,
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
        "epsilon_left": book.epsilon_left if isinstance(book, Ledger) else None,
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
