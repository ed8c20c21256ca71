"""What a caller who has no plan says about one; whoever has a plan says nothing beside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy.typing as npt
from torch.utils.data import DataLoader

from sfumato import _validate
from sfumato.errors import InvalidInput, SettingsChanged
from sfumato.training.ownership import RECORD, check_units
from sfumato.training.plan import TrainingPlan

EPOCHS, EXPECTED_BATCH, CLIP_NORM = 10.0, 1024, 1.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a plan is calibrated to, where none is given; None: nothing was said."""

    epsilon: float | None
    public_size: int | None
    epochs: float | None
    expected_batch: float | None
    clip_norm: float | None
    unit: str | None
    rows_per_unit: int | None
    choices: Mapping[str, Any] = field(default_factory=dict)  # further fields of the plan

    def calibrated(self, data: Any, units: npt.ArrayLike | None, delta: float) -> TrainingPlan:
        if self.epsilon is None:
            raise InvalidInput("expected a plan or epsilon=..., got neither; say how much privacy may be spent")
        size = self._size(getattr(data, "public_size", None))
        if self.expected_batch is None:
            _warn_of_loader(data, min(EXPECTED_BATCH, size))
        return TrainingPlan.calibrated(
            epsilon=self.epsilon,
            delta=delta,
            public_size=size,
            expected_batch=min(EXPECTED_BATCH, size) if self.expected_batch is None else self.expected_batch,
            epochs=EPOCHS if self.epochs is None else self.epochs,
            clip_norm=CLIP_NORM if self.clip_norm is None else self.clip_norm,
            **{
                "unit": self._unit(getattr(data, "unit", RECORD), units),
                "rows_per_unit": self.rows_per_unit,
                **self.choices,
            },
        )

    def nothing_beside(self, plan: TrainingPlan) -> TrainingPlan:
        """The plan, if nothing else was said of it."""
        if said := ", ".join(f"{name}={value!r}" for name, value in self._said()):
            raise InvalidInput(
                f"expected a plan, or what to calibrate one to, got a plan and {said}; a plan says all of it: "
                "leave these out, or make another with TrainingPlan.calibrated"
            )
        return plan

    def _said(self) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, value in asdict(self).items() if value not in (None, {}))

    def _size(self, declared: int | None) -> int:
        size = declared if self.public_size is None else self.public_size
        if size is None:
            raise InvalidInput(
                "expected public_size=..., got none; declare how many people the data has, as far as may be "
                "known"
            )
        if declared not in (None, size):
            raise InvalidInput(
                f"expected one declared size, got public_size={size} and data that declare {declared}; leave "
                "public_size out, or declare it in the data"
            )
        return _validate.integer("public_size", size, least=1)

    def _unit(self, declared: str, units: npt.ArrayLike | None) -> str:
        if units is not None and self.unit is None and declared == RECORD:
            raise InvalidInput(
                "expected unit=... with units=..., got none; say what they are, as in unit='person'"
            )
        return declared if self.unit is None else self.unit


def _warn_of_loader(data: Any, batch: int) -> None:
    """Say that the batches of a loader are not those of the steps; 1 is what a loader has if nobody says."""
    given = data.batch_size if isinstance(data, DataLoader) else None
    if given not in (None, 1, batch):
        warnings.warn(
            f"the loader's batch_size={given} is not used: steps draw their own rows, {batch} on average, as "
            f"large batches lose less to noise; say expected_batch={given} for smaller ones",
            SettingsChanged,
            stacklevel=4,
        )


def check_whose(data: Any, units: npt.ArrayLike | None, plan: TrainingPlan) -> None:
    """Refuse a plan for another unit than the data declare, or for people whose rows nobody named."""
    check_units(plan, units)
    declared = getattr(data, "unit", RECORD)
    if declared not in (RECORD, plan.unit):
        raise InvalidInput(
            f"expected a plan for unit={declared!r}, as the data declare, got unit={plan.unit!r}; the price "
            "of a record is not the price of a person"
        )
