"""Digits of nobody: chosen drawings with private labels, beside drawings and the nearest real digits."""

from __future__ import annotations

import numpy as np

from sfumato.datasets import Dataset
from sfumato.learn import features
from sfumato.randomness import SecretStream
from sfumato.runs import SyntheticDigits
from sfumato.storage import CERTIFICATE
from sfumato_lab.demo.context import StageContext
from sfumato_lab.demo.pictures import save_grey, tiles
from sfumato_lab.demo.size import DELTA
from sfumato_lab.images import Drawn, ImageRequest, StyleSettings, learn_sampler
from sfumato_lab.images import measures as measure
from sfumato_lab.images.styles import DRAW, Images, to_inputs

_EPSILON = 1.0
_SHEET = "synthetic.png"
_ROWS = ("drawings", "synthetic", "synthetic", "nearest real")
_SETTINGS = StyleSettings(drawings=5000, directions=32)  # less than by default, for fewer people and seconds
_COMPARED = 300  # images whose nearest neighbours are looked for
_EPOCHS, _WIDTH, _READ = 6, 16, 5000  # of the networks, and real images that the second learns from
_EMPTY = np.zeros((28, 28), dtype=np.uint8)  # of a class without images


def synthetic_digits(context: StageContext) -> SyntheticDigits:
    """Charged to the ledger of all stages; what is compared with real digits is so because these are public."""
    rows, test = context.rows().excerpt(context.size.synthetic_rows), context.test()
    request = ImageRequest.of(
        rows,
        images=context.size.synthetic_images,
        epsilon=_EPSILON,
        delta=DELTA,
        settings=_SETTINGS,
        recipe=features.DIGITS,
    )
    with context.ledger() as ledger:
        sampler = learn_sampler(request, rows, ledger=ledger, sampler=SecretStream())
    assert sampler.certificate is not None
    sampler.certificate.write(context.folder.release / CERTIFICATE)
    context.progress(0.5)
    drawn = sampler.draw(request.images, seed=1)
    context.progress(0.7)
    real = _grey(rows)
    save_grey(_sheet(drawn, real), context.folder.figures / _SHEET)
    learned = measure.learn(drawn.images, drawn.labels, classes=10, epochs=_EPOCHS, width=_WIDTH)
    reader = measure.learn(real[:_READ], rows.targets[:_READ], classes=10, epochs=_EPOCHS // 2, width=_WIDTH)
    return SyntheticDigits(
        data=context.size.data,
        epsilon=request.plan.epsilon(DELTA),
        delta=DELTA,
        people=len(rows),
        images=len(drawn),
        left_out=drawn.unsure / drawn.tried,
        agreement=measure.accuracy(reader.net, to_inputs(drawn.images), measure.to_targets(drawn.labels)),
        test_accuracy=measure.accuracy(learned.net, *features.fitted(test).tensors()),
        nearest=float(np.median(measure.nearest_distances(drawn.images[:_COMPARED], real))),
        nearest_test=float(np.median(measure.nearest_distances(_grey(test)[:_COMPARED], real))),
        sheet=_SHEET,
        rows=_ROWS,
    )


def _sheet(drawn: Drawn, real: Images) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """A column for each class: a drawing, two synthetic images, and the real one nearest to the second."""
    drawings, kinds = DRAW[_SETTINGS.prior](400, seed=3)
    first = [drawings[np.flatnonzero(kinds == digit)[0]] for digit in range(10)]
    chosen = [np.flatnonzero(drawn.labels == digit)[:2] for digit in range(10)]
    shown = [[drawn.images[places[at]] if len(places) > at else _EMPTY for places in chosen] for at in (0, 1)]
    near = [real[measure.nearest_places(image[np.newaxis], real)[0]] for image in shown[1]]
    return tiles(np.stack([*first, *shown[0], *shown[1], *near]) / 255, across=10)


def _grey(rows: Dataset) -> Images:
    """(rows, 28, 28) in bytes."""
    found: Images = np.rint(255 * features.fitted(rows).inputs[:, 0]).astype(np.uint8)
    return found
