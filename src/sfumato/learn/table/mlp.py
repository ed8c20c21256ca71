"""A small network on a table, trained by DP-SGD: one-hot cells, and ordered columns as numbers too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import randomness
from sfumato.learn.table.encoding import Cells, Encoder
from sfumato.learn.table.sums import MOST_BINS, ONE
from sfumato.training import Optimization, TrainingPlan

HIDDEN = 64
EPOCHS = 10
AVERAGE_DECAY = 0.9
_BATCH = 1024
_NUMBERS = 2**22  # inputs of rows that are answered at a time
_SHARE = 0.125  # of the units in a batch, at most


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network over the declared columns; all of its inputs follow from the policy."""

    encoders: tuple[Encoder, ...]
    module: nn.Module
    number: bool  # whether it predicts a number

    def scores(self, cells: Cells) -> npt.NDArray[np.int64]:
        """(rows, outputs) in 2⁻¹⁶, as of the other models; two classes have one score."""
        self.module.eval()
        step = max(1, _NUMBERS // input_count(self.encoders))
        with torch.inference_mode():
            parts = [
                self.module(torch.from_numpy(dense(self.encoders, cells[start : start + step]))).double()
                for start in range(0, max(1, len(cells)), step)
            ]
        found = torch.nan_to_num(torch.cat(parts)).numpy()
        if not self.number and found.shape[1] == 2:
            found = found[:, 1:] - found[:, :1]
        return np.rint(np.clip(found, -(2.0**30), 2.0**30) * ONE).astype(np.int64)


def build(encoders: Sequence[Encoder], *, classes: int | None, seed: int = 0) -> Network:
    inputs = input_count(encoders)
    with randomness.public_torch_seed(seed):
        module = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, classes or 1))
    return Network(encoders=tuple(encoders), module=module, number=classes is None)


def input_count(encoders: Sequence[Encoder]) -> int:
    return sum(map(_width, encoders))


def dense(encoders: Sequence[Encoder], cells: Cells) -> npt.NDArray[np.float32]:
    """(rows, inputs): of each column its cell, one-hot, in at most 32 equal parts, and its place in ±1."""
    rows = np.zeros((len(cells), input_count(encoders)), dtype=np.float32)
    every, start = np.arange(len(cells)), 0
    for place, encoder in enumerate(encoders):
        joined, trend = _parts(encoder)
        rows[every, start + joined[cells[:, place]]] = 1.0
        start += _width(encoder)
        if encoder.ordered:
            rows[:, start - 1] = trend[cells[:, place]]
    return rows


def _width(encoder: Encoder) -> int:
    return _bins(encoder) + 1 + encoder.ordered


def _bins(encoder: Encoder) -> int:
    return min(encoder.parts, MOST_BINS) if encoder.ordered else encoder.parts


def _parts(encoder: Encoder) -> tuple[Cells, npt.NDArray[np.float32]]:
    """The part that each cell belongs to, and its place in ±1; the last part is for missing values, at 0."""
    rank = np.empty(encoder.cells, dtype=np.int64)
    rank[encoder.order()], rank[-1] = np.arange(encoder.parts), encoder.parts
    known = rank < encoder.parts
    joined = np.where(known, rank * _bins(encoder) // encoder.parts, _bins(encoder))
    trend = np.where(known, 2 * (rank + 0.5) / encoder.parts - 1, 0.0)
    return joined, trend.astype(np.float32)


def batch_of(units: int) -> int:
    """How many of them are expected in a batch."""
    return min(_BATCH, max(1, round(_SHARE * units)))


def training_plan(
    *, epsilon: float, delta: float, units: int, unit: str, rows_per_unit: int | None
) -> TrainingPlan:
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=units,
        expected_batch=batch_of(units),
        epochs=EPOCHS,
        unit=unit,
        rows_per_unit=rows_per_unit,
        average_decay=AVERAGE_DECAY,
    )


OPTIMIZATION = Optimization(learning_rate=0.5)


def square_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss for each row, of numbers within ±1."""
    return (outputs[:, 0] - targets) ** 2
