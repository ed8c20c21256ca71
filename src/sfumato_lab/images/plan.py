"""What synthetic images cost: the head's training and the statistics, fixed, priced and charged as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent, GaussianEvent, Relation
from sfumato.errors import InvalidInput
from sfumato.learn import features
from sfumato.learn.features import Recipe
from sfumato.learn.statistic import StatisticPlan
from sfumato.training import TrainingPlan
from sfumato_lab.images.statistics import Layout, StatisticsPlan

RELATION = Relation.ADD_REMOVE
HEAD_SHARE = 0.7
"""Of ε: what the head that labels the images is trained with, the rest being for the statistics."""


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """All that is learned from private images.

    Without a head, images have the label that they were drawn for; without statistics, they are plain drawings
    that the head labels. `measured`: what the head's recipe measures of its features before it is trained.
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

        The head, with what its recipe measures first, costs `head_share` of ε.
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
        """By how much the declared sensitivity of what is measured exceeds 1."""
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
