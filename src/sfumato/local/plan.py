"""What a person's one report will be, priced before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.accounting import Relation
from sfumato.errors import InvalidInput
from sfumato.local.direction import LabelledDirection, check_directions
from sfumato.local.split import GaussianSplit
from sfumato.mechanisms.response import check_answers
from sfumato.randomness import Sampler

RANDOMISERS = ("direction", "gaussian")


@dataclass(frozen=True, kw_only=True)
class ReportPlan:
    """A label of `classes` and a unit vector of `dimension` values, noised to (ε, δ) for the person.

    The unit is the person: vector *and* label.

    Args:
        classes: The number of labels.
        dimension: The number of values of a vector.
        epsilon: The ε of a person's report.
        delta: Its δ; 0 for "direction".
        randomiser: "direction", pure ε by `LabelledDirection`; or "gaussian", which adds noise to the
            vector and randomises the label, with the best split of ε between them, composed exactly.

    >>> ReportPlan(classes=10, dimension=40, epsilon=8.0).price
    8.0
    """

    classes: int
    dimension: int
    epsilon: float
    delta: float = 0.0
    randomiser: str = "direction"

    def __post_init__(self) -> None:
        _validate.one_of("randomiser", self.randomiser, RANDOMISERS)
        _validate.integer("classes", self.classes, least=2)
        _validate.integer("dimension", self.dimension, least=2)
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        if self.randomiser == "gaussian" and self.delta == 0:
            raise InvalidInput("expected delta > 0 for Gaussian reports, got delta=0; or report directions")

    @property
    def labelled_direction(self) -> LabelledDirection:
        return LabelledDirection(classes=self.classes, dimension=self.dimension, epsilon=self.epsilon)

    @property
    def gaussian_split(self) -> GaussianSplit:
        return GaussianSplit.best(
            classes=self.classes, dimension=self.dimension, epsilon=self.epsilon, delta=self.delta
        )

    def event(self) -> accounting.DpEvent:
        if self.randomiser == "direction":
            return self.labelled_direction.event()
        return self.gaussian_split.event()

    @property
    def eta(self) -> float | None:
        """By how much the declared sensitivity of vector noise exceeds the ideal one."""
        return self.gaussian_split.vector.eta if self.randomiser == "gaussian" else None

    @property
    def price(self) -> float:
        """ε of one person's report at `delta`, for their record replaced by any other."""
        return accounting.epsilon(self.event(), self.delta, relation=Relation.REPLACE_ONE)

    def check(self, labels: npt.ArrayLike, vectors: npt.ArrayLike) -> None:
        """Refuse what cannot be reported, before anything is charged or drawn."""
        known = check_answers(labels, self.classes)
        rows = check_directions(vectors, self.dimension)
        if known.shape != rows.shape[:1]:
            raise InvalidInput(f"expected a label for each vector, got {known.size} and {len(rows)}")

    def randomise(
        self, labels: npt.ArrayLike, vectors: npt.ArrayLike, sampler: Sampler
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """One report for each person."""
        self.check(labels, vectors)
        known = np.asarray(labels)
        if self.randomiser == "direction":
            said, points = self.labelled_direction.release(known, vectors, sampler)
            return said, points.astype(np.float32)  # exact: multiples of 2⁻¹² below 2⁶
        split = self.gaussian_split
        noised = split.vector.release(np.asarray(vectors), sampler)
        return split.label.release(known, sampler), noised

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReportPlan:
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidInput(f"expected the plan of a noised data set, got {sorted(data)}") from error
