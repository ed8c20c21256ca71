"""What synthetic images cost: the head's training and the statistics, fixed, priced and charged as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent, GaussianEvent, Relation
from sfumato.errors import InvalidInput
from sfumato.recipes.features import Recipe
from sfumato.recipes.images.statistics import Layout, StatisticsPlan
from sfumato.training import TrainingPlan

RELATION = Relation.ADD_REMOVE
HEAD_SHARE = 0.7
"""Of ε: what the head that labels the images is trained with, the rest being for the statistics."""


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """All that is learned from private images.

    Without a head, images have the label that they were drawn for; without statistics, they are plain drawings
    that the head labels. Public: all fields.
    """

    head: TrainingPlan | None
    statistics: StatisticsPlan | None

    def __post_init__(self) -> None:
        if self.head is None and self.statistics is None:
            raise InvalidInput("expected a head, statistics or both, got neither; nothing would be learned")
        if self.head is not None and self.head.relation is not RELATION:
            raise InvalidInput(f"expected the head's relation to be {RELATION}, got {self.head.relation}")

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
        """The least noise that costs at most (ε, δ) in all; the head alone costs `head_share` of ε."""
        _validate.positive("epsilon", epsilon)
        if not 0 <= _validate.real("head_share", head_share) <= 1:
            raise InvalidInput(f"expected head_share in [0, 1], got head_share={head_share}")
        if not _validate.delta("delta", delta):
            raise InvalidInput("expected delta > 0 for synthetic images, got delta=0; their noise is Gaussian")
        head = None
        if head_share:
            head = recipe.plan(epsilon=head_share * epsilon, delta=delta, public_size=public_size, unit=unit)
        if head_share == 1:
            return cls(head=head, statistics=None)
        before = [] if head is None else [head.event()]
        multiplier = accounting.calibrate(
            lambda value: accounting.compose(*before, GaussianEvent(value)),
            Budget(epsilon=epsilon, delta=delta),
            guess=accounting.gaussian_noise_multiplier(epsilon, delta),
        )
        return cls(head=head, statistics=StatisticsPlan(layout=layout, noise_multiplier=multiplier))

    def event(self) -> DpEvent:
        """Everything that is released, in one event."""
        parts = (self.head, self.statistics)
        return accounting.compose(*(part.event() for part in parts if part is not None))

    def epsilon(self, delta: float) -> float:
        return accounting.epsilon(self.event(), delta, relation=RELATION)

    @property
    def eta(self) -> float | None:
        """By how much the declared sensitivity of the statistics exceeds 1."""
        found = self.statistics
        return None if found is None else found.layout.mechanism(found.noise_multiplier).eta

    def to_json(self) -> dict[str, Any]:
        return {
            "images": {
                "head": None if self.head is None else self.head.to_json(),
                "statistics": None if self.statistics is None else asdict(self.statistics),
            }
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ImagePlan:
        """As `to_json` wrote it; other fields beside "images" are not looked at."""
        head, statistics = data["images"]["head"], data["images"]["statistics"]
        return cls(
            head=None if head is None else TrainingPlan.from_json(head),
            statistics=None
            if statistics is None
            else StatisticsPlan(**{**statistics, "layout": Layout(**statistics["layout"])}),
        )
