"""The plan of synthetic images: the head's training and the statistics, priced and charged as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent, GaussianEvent, Relation
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.learn import Recipe, features
from sfumato.learn.statistic import StatisticPlan
from sfumato.mechanisms import GridGaussian, to_grid
from sfumato.models import rows_apart
from sfumato.randomness import Sampler
from sfumato.training import TrainingPlan
from sfumato_lab.images.styles import Floats, Integers, Styles, StyleSettings, clipped

CHOSEN_WEIGHTS, MOVED_WEIGHTS = (0.05, 0.95, 0.0), (0.05, 0.25, 0.7)
"""Of counts, sums and products, where drawings are chosen and where they are moved."""

_FLOAT_ERROR = 2.0**-30  # of a vector's norm, computed in doubles
_FEWEST = 20.0  # people in a class whose sums are believed, in standard deviations of its count
_ROWS = 250  # people whose vectors are made at a time


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The parts of the vector: by class the count, the sum of residuals, and the sum of their products, if any.

    `weights`: of the three parts in the squared length of one person's vector.
    """

    classes: int
    directions: int
    weights: tuple[float, float, float]

    def __post_init__(self) -> None:
        for name in ("classes", "directions"):
            _validate.integer(name, getattr(self, name), least=1)
        for weight in self.weights:
            _validate.non_negative("weight", weight)
        if len(self.weights) != 3 or not math.isclose(sum(self.weights), 1.0) or not self.weights[0]:
            raise InvalidInput(f"expected three weights that add up to 1, got weights={self.weights}")

    @classmethod
    def of(cls, settings: StyleSettings, *, classes: int) -> Layout:
        weights = MOVED_WEIGHTS if settings.moved else CHOSEN_WEIGHTS
        return cls(classes=classes, directions=settings.size, weights=weights)

    @property
    def products(self) -> int:
        """Different products of two directions, where they are summed."""
        return self.directions * (self.directions + 1) // 2 if self.weights[2] else 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.classes, self.classes * self.directions, self.classes * self.products

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    def mechanism(self, noise_multiplier: float) -> GridGaussian:
        return GridGaussian(
            clip_norm=1.0,
            dimension=self.dimension,
            noise_multiplier=noise_multiplier,
            float_error=_FLOAT_ERROR,
        )


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan:
    """One Gaussian release of all sums.

    A person with label c and residual r (its place in the view less the centre of c, over `reach`, clipped to
    length 1) adds √w₁, √w₂·r and, where drawings are moved, √w₃·rrᵀ, all at c. As the length of rrᵀ is that of
    r squared, the vector's length is at most √(w₁ + w₂ + w₃) = 1.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier` under add/remove of one row. A row with
    a label outside the classes, or with pixels that are no numbers, adds nothing. Public: all fields. Secret:
    the rows, the sums, the noise.
    """

    layout: Layout
    noise_multiplier: float

    def __post_init__(self) -> None:
        _validate.positive("noise_multiplier", self.noise_multiplier)

    def event(self) -> DpEvent:
        return self.layout.mechanism(self.noise_multiplier).event()

    def measure(self, rows: Dataset, styles: Styles, sampler: Sampler) -> Statistics:
        """The noisy sums; `rows` are (rows, 1, 28, 28)."""
        mechanism = self.layout.mechanism(self.noise_multiplier)
        sums = exact_sums(rows, styles, self.layout)
        noisy = mechanism.release(sums, sampler).astype(np.float64)
        return Statistics.of(noisy, self.layout, sigma=mechanism.sigma)


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """The noisy sums, each in its own unit: people, and `reach` of the residuals."""

    counts: Floats  # (classes,)
    sums: Floats  # (classes, directions)
    moments: Floats | None  # (classes, directions, directions), symmetric
    count_sigma: float
    sum_sigma: float
    moment_sigma: float  # on the diagonal; off it, √½ of that

    @classmethod
    def of(cls, vector: Floats, layout: Layout, *, sigma: float) -> Statistics:
        counts, sums, products = np.split(vector, np.cumsum(layout.sizes)[:-1])
        count, mean, moment = (math.sqrt(weight or 1.0) for weight in layout.weights)
        return cls(
            counts=counts / count,
            sums=sums.reshape(layout.classes, layout.directions) / mean,
            moments=_matrices(products, layout) if layout.products else None,
            count_sigma=sigma / count,
            sum_sigma=sigma / mean,
            moment_sigma=sigma / moment,
        )

    @property
    def people(self) -> Floats:
        """(classes,): the noisy counts, at least one of each."""
        return np.maximum(self.counts, 1.0)

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """(classes,): whether there are enough people for the sums of a class to be believed."""
        return self.people > _FEWEST * self.count_sigma


def _matrices(products: Floats, layout: Layout) -> Floats:
    found = np.zeros((layout.classes, layout.directions, layout.directions))
    one, two = np.triu_indices(layout.directions)
    found[:, one, two] = products.reshape(layout.classes, -1) / _product_weights(layout)
    found[:, two, one] = found[:, one, two]
    return found


def exact_sums(rows: Dataset, styles: Styles, layout: Layout) -> Integers:
    """The sums in grid steps: each person's vector is rounded by itself, and whole numbers are added."""
    grid = layout.mechanism(1.0).grid
    total = np.zeros(layout.dimension, dtype=np.int64)
    for places, values in _contributions(rows, styles, layout):
        total[places] += to_grid(values, grid).sum(axis=0)
    return total


def _contributions(rows: Dataset, styles: Styles, layout: Layout) -> Iterator[tuple[Integers, Floats]]:
    """Places (entries,) and values (people, entries) of the vectors of some people with one label."""
    found = rows_apart(styles.view, rows.tensors()[0]).numpy().astype(np.float64)
    known = np.isfinite(found).all(axis=1) & (rows.targets >= 0) & (rows.targets < layout.classes)
    for label in range(layout.classes):
        own = found[known & (rows.targets == label)]
        for start in range(0, len(own), _ROWS):
            yield _vectors(own[start : start + _ROWS], label, styles, layout)


def _vectors(rows: Floats, label: int, styles: Styles, layout: Layout) -> tuple[Integers, Floats]:
    residuals = clipped((rows - styles.centres[label]) / styles.reach)
    parts = [
        np.full((len(rows), 1), math.sqrt(layout.weights[0])),
        math.sqrt(layout.weights[1]) * residuals,
    ]
    if layout.products:
        one, two = np.triu_indices(layout.directions)
        parts.append(residuals[:, one] * residuals[:, two] * _product_weights(layout))
    starts = np.concatenate([[0], np.cumsum(layout.sizes)])
    places = [
        start + label * part.shape[1] + np.arange(part.shape[1])
        for start, part in zip(starts, parts, strict=False)
    ]
    return np.concatenate(places), np.concatenate(parts, axis=1)


def _product_weights(layout: Layout) -> Floats:
    """√w₃, and √2 times as much off the diagonal, where one entry stands for two."""
    one, two = np.triu_indices(layout.directions)
    return math.sqrt(layout.weights[2]) * np.where(one == two, 1.0, math.sqrt(2.0))


RELATION = Relation.ADD_REMOVE
HEAD_SHARE = 0.7
"""Share of ε for training the head that labels the images; the statistics get the rest."""


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """All that is learned from private images.

    Without a head, images have the label that they were drawn for; without statistics, they are plain drawings
    that the head labels. `measured`: statistics of the features that the recipe measures before training.
    Public: all fields.
    """

    head: TrainingPlan | None
    statistics: StatisticsPlan | None
    measured: StatisticPlan | None = None

    def __post_init__(self) -> None:
        if self.head is None and self.statistics is None:
            raise InvalidInput("expected a head, statistics or both, got neither; nothing would be learned")
        if self.head is not None and self.head.relation is not RELATION:
            raise InvalidInput(f"expected the head's relation to be {RELATION}, got {self.head.relation}")
        if self.head is None and self.measured is not None:
            raise InvalidInput("expected a head for what is measured before it, got measured and no head")

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        recipe: Recipe,
        layout: Layout,
        public_size: int,
        unit: str = "record",
        head_share: float = HEAD_SHARE,
    ) -> ImagePlan:
        """The least noise that costs at most (ε, δ) in all.

        The head, with the statistics that its recipe measures first, costs `head_share` of ε.
        """
        _validate.positive("epsilon", epsilon)
        if not 0 <= _validate.real("head_share", head_share) <= 1:
            raise InvalidInput(f"expected head_share in [0, 1], got head_share={head_share}")
        if not _validate.delta("delta", delta):
            raise InvalidInput("expected delta > 0 for synthetic images, got delta=0; their noise is Gaussian")
        measured, head = None, None
        if head_share:
            measured, head = recipe.plans(
                epsilon=head_share * epsilon,
                delta=delta,
                public_size=public_size,
                sizes=features.part_sizes(features.bare(recipe, classes=1)),
                unit=unit,
            )
        trained = cls(head=head, statistics=None, measured=measured) if head_share else None
        if trained is not None and head_share == 1:
            return trained
        before = [] if trained is None else [trained.event()]
        multiplier = accounting.calibrate(
            lambda value: accounting.compose(*before, GaussianEvent(value)),
            Budget(epsilon=epsilon, delta=delta),
            guess=accounting.gaussian_noise_multiplier(epsilon, delta),
        )
        statistics = StatisticsPlan(layout=layout, noise_multiplier=multiplier)
        return cls(head=head, statistics=statistics, measured=measured)

    def event(self) -> DpEvent:
        """Everything that is released, in one event."""
        return _together(self.measured, self.head, self.statistics)

    def head_event(self) -> DpEvent:
        """The part of it that training the head releases."""
        return _together(self.measured, self.head)

    def epsilon(self, delta: float) -> float:
        return accounting.epsilon(self.event(), delta, relation=RELATION)

    @property
    def eta(self) -> float | None:
        """Return the excess over 1 of the declared sensitivity of the measured statistics."""
        found = [] if self.measured is None else [self.measured.mechanism.eta]
        if self.statistics is not None:
            found.append(self.statistics.layout.mechanism(self.statistics.noise_multiplier).eta)
        return max(found, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "images": {
                "head": None if self.head is None else self.head.to_json(),
                "statistics": None if self.statistics is None else asdict(self.statistics),
                "measured": None if self.measured is None else asdict(self.measured),
            }
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ImagePlan:
        """As `to_json` wrote it, or an earlier one that measured nothing; only "images" is looked at."""
        head, statistics = data["images"]["head"], data["images"]["statistics"]
        measured = data["images"].get("measured")
        return cls(
            head=None if head is None else TrainingPlan.from_json(head),
            statistics=None
            if statistics is None
            else StatisticsPlan(**{**statistics, "layout": Layout(**statistics["layout"])}),
            measured=None if measured is None else StatisticPlan(**measured),
        )


def _together(*parts: TrainingPlan | StatisticsPlan | StatisticPlan | None) -> DpEvent:
    return accounting.compose(*(part.event() for part in parts if part is not None))
