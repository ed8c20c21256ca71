"""Synthetic images on disk: plan, charge, learn, draw, write."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import _validate
from sfumato.accounting import warn_of_little_protection
from sfumato.caveats import Code
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.learn import Classifier, Recipe, Trained, features
from sfumato.learn.features import declared
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.models import FeatureClassifier
from sfumato.randomness import Sampler
from sfumato.released import MODEL, class_names
from sfumato.storage import CERTIFICATE, json_bytes, make_folder, write_whole
from sfumato_lab.images import measures as fidelity
from sfumato_lab.images.plan import HEAD_SHARE, RELATION, ImagePlan, Layout
from sfumato_lab.images.sampler import Choice, Drawn, ImageSampler, sampler_bytes
from sfumato_lab.images.styles import PUBLIC, Images, Integers, PublicSet, Styles, StyleSettings

_COLUMNS, _ZOOM = 20, 2


def sheet_bytes(images: Images, labels: Integers, *, classes: int) -> bytes:
    """A PNG with the first images of each class, a class a row."""
    from PIL import Image

    side = images.shape[1]
    sheet = np.zeros((classes * side, _COLUMNS * side), dtype=np.uint8)
    for label in range(classes):
        for column, image in enumerate(images[labels == label][:_COLUMNS]):
            sheet[label * side : (label + 1) * side, column * side : (column + 1) * side] = image
    content = io.BytesIO()
    Image.fromarray(sheet.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)).save(content, format="PNG")
    return content.getvalue()


PURPOSE = "synthetic images"
CAVEATS = (Code.DRAWINGS(), Code.LABELS_BY_HEAD(), Code.IMAGE_CHOICES(), Code.IDEAL_SAMPLER())
NAMED = Code.PUBLIC_BY_WORD()
MOST_IMAGES = 1_000_000
STAGES = 4  # that a release tells of
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ImageRequest:
    """A request for images, made from the declared facts about the rows; no row is read."""

    plan: ImagePlan
    recipe: Recipe
    settings: StyleSettings
    images: int
    epsilon: float
    delta: float
    head_share: float
    unit: str
    data: str
    declared: tuple[int, int]  # size and classes of the rows
    public: PublicSet | None = None

    @classmethod
    def of(
        cls,
        rows: Dataset,
        *,
        images: int,
        epsilon: float,
        delta: float = 1e-5,
        settings: StyleSettings | None = None,
        recipe: Recipe | None = None,
        head_share: float = HEAD_SHARE,
        public: PublicSet | None = None,
    ) -> ImageRequest:
        """The plan for rows that declare size and classes; `public`: images to start from instead of drawings.

        Raises:
            InvalidInput: size or classes are not declared, people have several rows, or δ is 0.
        """
        _validate.integer("images", images, least=1)
        if images > MOST_IMAGES:
            raise InvalidInput(
                f"expected images <= {MOST_IMAGES}, got images={images}; draw the rest from the sampler"
            )
        size, classes = declared(rows)
        if len(rows.shape) != 3:
            raise InvalidInput(
                f"expected images (channels, height, width), got rows of shape {rows.shape}; for a table give "
                "its policy"
            )
        if rows.unit != "record":
            raise InvalidInput(
                f"expected one image for each person (unit='record'), got unit={rows.unit!r}; what is bounded "
                "is the share of one image"
            )
        warn_of_little_protection("these images", epsilon, delta, people=rows.public_size)
        found = settings or StyleSettings.for_data(rows.name, None if public is None else PUBLIC)
        recipe = recipe or features.head_only(rows.name)
        if recipe.shape != features.SHAPE:
            raise InvalidInput(
                f"expected a recipe for images of shape {features.SHAPE}, as they are drawn, got "
                f"shape={recipe.shape}; choose another recipe"
            )
        plan = ImagePlan.calibrated(
            epsilon=epsilon,
            delta=delta,
            recipe=recipe,
            layout=Layout.of(found, classes=classes),
            public_size=size,
            unit=rows.unit,
            head_share=head_share,
        )
        return cls(
            plan=plan,
            recipe=recipe,
            settings=found,
            images=images,
            epsilon=epsilon,
            delta=delta,
            head_share=head_share,
            unit=rows.unit,
            data=rows.name,
            declared=(size, classes),
            public=public,
        )

    def check_rows(self, rows: Dataset) -> None:
        """Refuse other rows than those that the plan is for."""
        if (rows.name, rows.unit, declared(rows)) != (self.data, self.unit, self.declared):
            raise InvalidInput(
                f"expected rows of {self.data!r} with public_size={self.declared[0]} and "
                f"classes={self.declared[1]}, for which the request was made, got others; make another request"
            )

    def to_json(self) -> dict[str, Any]:
        return {**self.plan.to_json(), "drawn": self.images, "prior": self.settings.prior}

    @property
    def caveats(self) -> tuple[str, ...]:
        named = () if self.public is None else (NAMED,)
        return (*CAVEATS, *named, *features.features_from(self.recipe, self.data))


@dataclass(frozen=True)
class ImagePlaces:
    """Where the files of one release go; none of them may be there yet."""

    images: Path

    def __post_init__(self) -> None:
        if self.images.suffix.lower() != ".npz":
            raise InvalidInput(f"expected --out to end in .npz for images, got {self.images}")
        if not self.images.parent.is_dir():
            raise InvalidInput(
                f"expected --out in a folder that exists, got {self.images}; make the folder first"
            )
        for place in (self.images, self.sheet, self.certificate, self.report, self.text, self.sampler):
            if place.exists():
                raise InvalidInput(
                    f"expected nothing at {place}, got something; a release is made once, choose another --out"
                )

    @property
    def sheet(self) -> Path:
        return self.images.with_suffix(".png")

    @property
    def certificate(self) -> Path:
        return self.images.with_suffix(".certificate.json")

    @property
    def report(self) -> Path:
        return self.images.with_suffix(".fidelity.json")

    @property
    def text(self) -> Path:
        return self.images.with_suffix(".fidelity.txt")

    @property
    def sampler(self) -> Path:
        """A folder for `sfumato.load`."""
        return self.images.with_suffix(".sampler")


@dataclass(frozen=True, kw_only=True)
class ReleasedImages:
    """Synthetic images, the sampler that can draw more, and their cost."""

    drawn: Drawn
    sampler: ImageSampler
    certificate: Certificate
    epsilon: float
    report: dict[str, Any]


def learn_sampler(
    request: ImageRequest,
    rows: Dataset,
    *,
    ledger: Ledger | Unrecorded,
    sampler: Sampler,
    progress: Progress = lambda words: None,
) -> ImageSampler:
    """Charge everything at once; only then look at a row."""
    request.check_rows(rows)
    progress("drawing styles")
    styles = Styles.of(request.settings, classes=request.declared[1], public=request.public)
    certificate = ledger.pay_for(
        request.plan.event(),
        purpose=PURPOSE,
        relation=RELATION,
        unit=request.unit,
        private=rows.chosen.private_with(sampler),
        plan=request.to_json(),
        eta=request.plan.eta,
        caveats=(*request.caveats, *rows.chosen.caveats_with(sampler)),
    )
    private = features.fitted(rows)
    statistics = request.plan.statistics
    progress("measuring")
    measured = None if statistics is None else statistics.measure(private, styles, sampler)
    progress("training the head")
    trained = _head(request, private, sampler)
    if trained is not None:
        certificate = certificate.with_part(trained.certificate)
    return ImageSampler(
        styles=styles,
        statistics=measured,
        head=None if trained is None else _classifier(trained),
        class_names=class_names(rows),
        choice=None if measured is None or styles.settings.moved else Choice.of(measured, styles),
        certificate=certificate,
    )


def _head(request: ImageRequest, rows: Dataset, sampler: Sampler) -> Trained | None:
    """The classifier of the recipe, trained under the plan that was paid for, and under no other."""
    plan = request.plan
    if plan.head is None:
        return None
    ready = Classifier.prepare(
        rows, epsilon=request.head_share * request.epsilon, delta=request.delta, recipe=request.recipe
    )
    whole = replace(ready, statistic=plan.measured, plan=plan.head)
    return whole.train(paid=plan.head_event(), sampler=sampler)


def _classifier(trained: Trained) -> FeatureClassifier:
    assert isinstance(trained.model, FeatureClassifier)
    return trained.model.eval()


def release_images(
    request: ImageRequest,
    rows: Dataset,
    *,
    ledger: Ledger | Unrecorded,
    out: Path,
    sampler: Sampler,
    test: Dataset | None = None,
    progress: Progress = lambda words: None,
) -> ReleasedImages:
    """Check, charge, learn, draw, write; the certificate comes last. `test`: public images to compare with."""
    places = ImagePlaces(out)
    if isinstance(ledger, Ledger):
        ledger.check(request.plan.event(), relation=RELATION, unit=request.unit)
    made = learn_sampler(request, rows, ledger=ledger, sampler=sampler, progress=progress)
    assert made.certificate is not None
    progress("drawing images")
    drawn = made.draw(request.images, seed=int(sampler.integers(2**31, 1)[0]))
    report = fidelity.report(made, drawn, test)
    _write(places, made, drawn, report, request.recipe)
    return ReleasedImages(
        drawn=drawn,
        sampler=made,
        certificate=made.certificate,
        epsilon=request.plan.epsilon(request.delta),
        report=report,
    )


def _write(
    places: ImagePlaces, made: ImageSampler, drawn: Drawn, report: dict[str, Any], recipe: Recipe
) -> None:
    assert made.certificate is not None
    write_whole(places.images, npz_bytes(drawn, made.class_names), readable=True)
    write_whole(
        places.sheet, sheet_bytes(drawn.images, drawn.labels, classes=len(made.class_names)), readable=True
    )
    write_whole(places.report, json_bytes(report), readable=True)
    write_whole(places.text, fidelity.in_words(report).encode(), readable=True)
    make_folder(places.sampler, readable=True)
    write_whole(places.sampler / MODEL, sampler_bytes(made, recipe), readable=True)
    made.certificate.write(places.sampler / CERTIFICATE)
    made.certificate.write(places.certificate)


def npz_bytes(drawn: Drawn, names: tuple[str, ...]) -> bytes:
    """`images` (images, 28, 28) in bytes, and `labels`: whole numbers, or names where the classes have some."""
    numbers = names == tuple(str(number) for number in range(len(names)))
    labels = drawn.labels if numbers else np.array(names)[drawn.labels]
    content = io.BytesIO()
    np.savez_compressed(content, images=drawn.images, labels=labels)
    return content.getvalue()
