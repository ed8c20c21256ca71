"""A linear model of binned columns, by private gradient descent on all rows.

Two kinds of release. First counts of every column's cells, from which bins, centres and scales follow
(`design`). Then in each step the sum of clipped gradients:

    Σ clip(residual(row) ⊗ x(row), C),  residual = target − prediction

Whole-batch steps with small noise each cost no more than few steps with large noise, as Gaussians compose as
one; and a diagonal change of scale makes a few hundred of them enough.

Sensitivity. A row adds √columns to the counts in L2 norm (a 1 in one cell of each column) and, by clipping, at
most C to a step's sum; given earlier releases, it changes nothing that another row adds. `sums.release`
states the sensitivity for a unit.

Song, Chaudhuri & Sarwate 2013 (private gradient descent); Bassily, Smith & Thakurta 2014, §2; Nori et al. 2021,
"Accuracy, interpretability, and differential privacy via explainable boosting" (noisy histograms of declared
bins).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from sfumato.learn.table.encoding import Cells, Encoder, categories_of
from sfumato.learn.table.plan import TablePlan
from sfumato.learn.table.sums import BITS, CENTRE_BITS, ONE, SUM_BITS, Design, clipped, release, residuals
from sfumato.randomness import Sampler, public_generator

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Watch = Callable[[int], None]
_CURVATURE = 0.25  # of the logistic loss, for which rates are set; the square loss has 1


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Private rows: cells of each column, and the target; PRIVATE."""

    cells: Cells  # (rows, columns)
    target: Floats  # (rows,)


@dataclass(frozen=True, kw_only=True)
class Additive:
    """Scores that columns add to: a weight for each bin, and a constant, in 2⁻¹⁶."""

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


# Pairs of columns

GROUPS = 4
ROUNDS, MOST_PAIRS = 2, 100
_PAIR_CURVATURE = 0.15  # of the logistic loss, where it still has something to learn
_RATE = 0.4
_RIDGE = 6.0  # standard deviations of the noise


@dataclass(frozen=True, kw_only=True)
class Boosted:
    """A linear model and tables of pairs of columns, in 2⁻¹⁶."""

    columns: Additive
    groups: tuple[Cells, ...]  # of each column: the group of every cell
    pairs: Integers  # (pairs, 2): which columns
    tables: Integers  # (pairs, GROUPS², outputs)

    def scores(self, cells: Cells) -> Integers:
        total = self.columns.scores(cells)
        grouped = self.grouped(cells)
        for (first, second), table in zip(self.pairs, self.tables, strict=True):
            total += table[grouped[:, first] * GROUPS + grouped[:, second]]
        return total

    def grouped(self, cells: Cells) -> Cells:
        grouped = np.empty_like(cells)
        for column, groups in enumerate(self.groups):
            grouped[:, column] = groups[cells[:, column]]
        return grouped


def pairs_of(columns: int) -> list[tuple[int, int]]:
    """The pairs that one round visits: all, or as many by a public draw."""
    every = list(combinations(range(columns), 2))
    if len(every) <= MOST_PAIRS:
        return every
    chosen = public_generator(columns).choice(len(every), MOST_PAIRS, replace=False)
    return [every[place] for place in sorted(chosen)]


def visits(columns: int) -> int:
    """How many releases all rounds make."""
    return ROUNDS * len(pairs_of(columns))


def fit_pairs(
    rows: Rows,
    columns: Additive,
    encoders: Sequence[Encoder],
    plan: TablePlan,
    *,
    classes: int | None,
    sampler: Sampler,
    watch: Watch,
) -> Boosted:
    """Boost pairs of columns on top of a linear model, one after the other, with noisy histograms.

    Each visit looks at one pair. The bins of a column are put in order, that of their values or, for
    categories, that of their weights in the linear model, and cut into four groups of about equal noisy mass:
    post-processing. A visit releases the sum of residuals in each of the 4 × 4 cells, and every cell's score
    moves by rate · sum / (h · n + ridge), a damped Newton step: n is the cell's expected number of rows if the
    columns were independent.

    Sensitivity: a row is in one cell, and adds its residual there, clipped to an L2 norm of `residual_bound`
    over the outputs; given earlier releases, it changes nothing that another row adds.

    Nori et al. 2021, "Accuracy, interpretability, and differential privacy via explainable boosting",
    algorithm 2; Lou et al. 2013, "Accurate intelligible models with pairwise interactions".
    """
    model = _empty(columns, encoders)
    scores, grouped = columns.scores(rows.cells), model.grouped(rows.cells)
    shares = [_shares(columns.design, place, groups) for place, groups in enumerate(model.groups)]
    tables = model.tables.copy()
    for visit in range(plan.visits):
        place = visit % len(model.pairs)
        first, second = model.pairs[place]
        cell = grouped[:, first] * GROUPS + grouped[:, second]
        found = clipped(residuals(scores, rows.target, classes=classes), plan.residual_bound)
        noisy = _noisy_sums(cell, found, plan, sampler)
        step = _step(noisy, np.outer(shares[first], shares[second]).ravel(), plan, classes)
        tables[place] += step
        scores += step[cell]
        watch(plan.steps + visit + 1)
    return replace(model, tables=tables)


def _noisy_sums(cell: Cells, found: Integers, plan: TablePlan, sampler: Sampler) -> Floats:
    """(GROUPS², outputs): the residuals in each cell, added up."""
    exact = [
        np.bincount(cell, weights=found[:, place].astype(np.float64), minlength=GROUPS**2)
        for place in range(found.shape[1])
    ]
    return release(
        np.stack(exact, axis=1).astype(np.int64),
        bits=BITS,
        bound=plan.residual_bound,
        rows=plan.rows_per_unit,
        noise_multiplier=plan.pair_noise,
        sampler=sampler,
    )


def _step(noisy: Floats, share: Floats, plan: TablePlan, classes: int | None) -> Integers:
    curvature = 1.0 if classes is None else _PAIR_CURVATURE
    ridge = _RIDGE * plan.pair_noise * plan.residual_bound * plan.rows_per_unit
    moved = _RATE * noisy / (curvature * plan.public_size * share + ridge)[:, None]
    return np.rint(moved * ONE).astype(np.int64)


def _empty(columns: Additive, encoders: Sequence[Encoder]) -> Boosted:
    design = columns.design
    pairs = np.array(pairs_of(len(design.bin_of)), dtype=np.int64).reshape(-1, 2)
    return Boosted(
        columns=columns,
        groups=tuple(_groups(columns, place, one) for place, one in enumerate(encoders)),
        pairs=pairs,
        tables=np.zeros((len(pairs), GROUPS**2, columns.weights.shape[1]), dtype=np.int64),
    )


def _groups(columns: Additive, place: int, encoder: Encoder) -> Cells:
    """The group of each cell of a column: values that have an order keep it."""
    design = columns.design
    bins = _bins(design, place)
    by_effect = categories_of(encoder.column) is not None
    key = columns.weights[bins, 0] if by_effect else np.arange(bins.stop - bins.start)
    order = np.argsort(key, kind="stable")
    mass = design.centre[bins][order] / (1 << CENTRE_BITS) + 1e-6
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    group = np.empty(order.size, dtype=np.int64)
    group[order] = np.minimum(np.floor(middle * GROUPS), GROUPS - 1).astype(np.int64)
    return group[design.bin_of[place]]


def _shares(design: Design, place: int, groups: Cells) -> Floats:
    """The noisy share of rows in each group of a column."""
    bins = _bins(design, place)
    group_of_bin = np.zeros(bins.stop - bins.start, dtype=np.int64)
    group_of_bin[design.bin_of[place]] = groups
    mass = design.centre[bins] / (1 << CENTRE_BITS)
    return np.bincount(group_of_bin, weights=mass, minlength=GROUPS).astype(np.float64)


def _bins(design: Design, place: int) -> slice:
    ends = [*design.starts[1:], design.bins]
    return slice(int(design.starts[place]), int(ends[place]))
