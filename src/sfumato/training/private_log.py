"""What is seen of private rows during training; it stays with the data holder."""

from __future__ import annotations

from dataclasses import dataclass, field

from sfumato.training.clip import ChunkResult


@dataclass(frozen=True)
class StepRecord:
    units: int
    not_finite: int
    mean_loss: float


@dataclass
class PrivateLog:
    """Batch sizes, training losses and counts of units left out: never part of a release."""

    steps: list[StepRecord] = field(default_factory=list)
    _units: int = 0
    _not_finite: int = 0
    _rows: int = 0
    _loss: float = 0.0

    def add(self, result: ChunkResult) -> None:
        self._units += len(result.finite)
        self._not_finite += int((~result.finite).sum())
        self._rows += len(result.losses)
        self._loss += float(result.losses.detach().nan_to_num().sum())

    def end_step(self) -> None:
        self.steps.append(StepRecord(self._units, self._not_finite, self._loss / max(1, self._rows)))
        self._units, self._not_finite, self._rows, self._loss = 0, 0, 0, 0.0
