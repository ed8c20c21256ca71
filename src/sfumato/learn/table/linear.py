"""A linear model of binned columns, by private gradient descent on all rows.

Two kinds of release. First counts of every column's cells, from which bins, centres and scales follow
(`design`). Then in each step the sum of clipped gradients:

    Σ clip(residual(row) ⊗ x(row), C),  residual = target − prediction

Whole-batch steps with small noise each cost no more than few steps with large noise, as Gaussians compose as
one; and a diagonal change of scale makes a few hundred of them enough.

Sensitivity. A row adds √columns to the counts in L2 norm (a 1 in one cell of each column) and, by clipping, at
most C to a step's sum; given what was released before, it changes nothing that another row adds. `mechanism`
says what follows for a unit.

Song, Chaudhuri & Sarwate 2013 (private gradient descent); Bassily, Smith & Thakurta 2014, §2; Nori et al. 2021,
"Accuracy, interpretability, and differential privacy via explainable boosting" (noisy histograms of declared
bins).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.learn.table.design import SUM_BITS, Design
from sfumato.learn.table.encoding import Cells, Encoder
from sfumato.learn.table.mechanism import release
from sfumato.learn.table.plan import TablePlan
from sfumato.learn.table.residuals import ONE, clipped, residuals
from sfumato.randomness import Sampler

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Watch = Callable[[int], None]
_CURVATURE = 0.25  # of the logistic loss, for which rates are set; the square loss has 1


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Private rows: cells of each column, and what is to be learned; PRIVATE."""

    cells: Cells  # (rows, columns)
    target: Floats  # (rows,)


@dataclass(frozen=True, kw_only=True)
class Additive:
    """Scores that columns add to: what each bin adds, and a constant, in 2⁻¹⁶."""

    design: Design
    weights: Integers  # (bins, outputs)
    constant: Integers  # (outputs,)

    def scores(self, cells: Cells) -> Integers:
        """(rows, outputs) in 2⁻¹⁶."""
        return self.placed_scores(self.design.place(cells))

    def placed_scores(self, placed: Cells) -> Integers:
        total = np.tile(self.constant, (len(placed), 1))
        for column in range(placed.shape[1]):
            total += self.weights[placed[:, column]]
        return total


def noisy_counts(rows: Rows, encoders: Sequence[Encoder], plan: TablePlan, sampler: Sampler) -> list[Floats]:
    """How many rows are in each cell of each column."""
    cells = [one.cells for one in encoders]
    exact = [np.bincount(rows.cells[:, place], minlength=size) for place, size in enumerate(cells)]
    noisy = release(
        np.concatenate(exact).astype(np.int64),
        bits=0,
        bound=math.sqrt(len(encoders)),
        rows=plan.rows_per_unit,
        noise_multiplier=plan.counts_noise,
        sampler=sampler,
    )
    return np.split(noisy, np.cumsum(cells)[:-1])


def fit_additive(
    rows: Rows, design: Design, plan: TablePlan, *, classes: int | None, sampler: Sampler, watch: Watch
) -> Additive:
    """Descend on all rows; the weights are averaged over the last steps."""
    outputs = 1 if classes is None or classes == 2 else classes
    placed = design.place(rows.cells)
    limit = plan.clip_norm / design.norms(placed)
    rate = plan.learning_rate * (1.0 if classes is not None else _CURVATURE)
    learned = np.zeros((outputs, design.dimension))
    velocity, average = np.zeros_like(learned), np.zeros_like(learned)
    for step in range(plan.steps):
        model = additive(design, learned)
        found = residuals(model.placed_scores(placed), rows.target, classes=classes)
        noisy = release(
            design.sums(placed, clipped(found, limit)),
            bits=SUM_BITS,
            bound=plan.clip_norm,
            rows=plan.rows_per_unit,
            noise_multiplier=plan.step_noise,
            sampler=sampler,
        )
        velocity = plan.momentum * velocity + (1 - plan.momentum) * noisy / plan.public_size
        learned = learned + rate * velocity
        keep = plan.average_decay if step else 0.0
        average = keep * average + (1 - keep) * learned
        watch(step + 1)
    return additive(design, average)


def additive(design: Design, learned: Floats) -> Additive:
    weights, constant = design.weights(learned)
    return Additive(design=design, weights=_fixed(weights), constant=_fixed(constant))


def _fixed(values: Floats) -> Integers:
    return np.rint(np.clip(values, -(2.0**30), 2.0**30) * ONE).astype(np.int64)
