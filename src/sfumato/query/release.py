"""Noise on exact sums, and quantiles with intervals from a tree of noisy counts over a public grid of cells.

At an edge e between cells, D(e) = (1−q)·#left − q·#right rises from −qN to (1−q)N and crosses 0 at the
q-quantile. Both counts are sums over the siblings of the nodes on the way down to e, so that D's variance is
known before anything is asked, and the edges that agree with D = 0 up to its noise are a confidence interval.

Hay, Rastogi, Miklau & Suciu 2010, "Boosting the accuracy of differentially private histograms through
consistency", section 4, for trees of counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato.query.measures import Cells, Counted, Integers, Measure
from sfumato.query.noise import LEVEL, Family, Floats, WholeNoise
from sfumato.query.pricing import Price
from sfumato.randomness import Sampler


@dataclass(frozen=True)
class Tree:
    """Noisy counts of each level, (groups, nodes), from the top level down to the cells."""

    cells: Cells
    levels: tuple[Integers, ...]
    noise: WholeNoise


@dataclass(frozen=True)
class Noisy:
    """A measure's noisy numbers: (groups, numbers), or a tree for cells."""

    measure: Measure
    noise: WholeNoise
    parts: Integers
    tree: Tree | None = None


@dataclass(frozen=True)
class NoisyEstimate:
    """One aggregate for every group: values and the ends of their 95% intervals."""

    values: npt.NDArray[np.float64] | npt.NDArray[np.int64]
    low: Floats
    high: Floats


def add_noise(
    price: Price, exact: Mapping[str, Integers], cells: Sequence[Integers], sampler: Sampler
) -> tuple[Noisy, ...]:
    """Every measure's numbers with their noise; `cells` holds the counts of each counted measure in turn."""
    found, waiting, position = [], iter(cells), 0
    for measure, noise in zip(price.measures, price.noises, strict=True):
        if isinstance(measure, Cells):
            tree = noisy_tree(measure, next(waiting), noise, sampler)
            found.append(Noisy(measure, noise, np.zeros((0, 0), dtype=np.int64), tree))
        elif isinstance(measure, Counted):
            found.append(Noisy(measure, noise, noise.release(next(waiting), sampler)))
        else:
            found.append(Noisy(measure, noise, noise.release(measure.parts(position, exact), sampler)))
            position += 1
    return tuple(found)


# ---- quantiles


def noisy_tree(cells: Cells, counts: Integers, noise: WholeNoise, sampler: Sampler) -> Tree:
    """Counts of the cells, (groups, cells), added up level by level and noised."""
    children, depth = cells.shape
    padded = np.zeros((len(counts), children**depth), dtype=np.int64)
    padded[:, : cells.cells] = counts
    levels = []
    for level in range(1, depth + 1):
        nodes = padded.reshape(len(counts), children**level, children ** (depth - level)).sum(axis=2)
        levels.append(noise.release(nodes, sampler))
    return Tree(cells, tuple(levels), noise)


def quantile(tree: Tree, level: float) -> NoisyEstimate:
    """The value, and the ends of its 95% interval, for each group."""
    crossing, spread = _crossing(tree, level)  # (groups, cells), (cells,)
    last = tree.cells.cells - 1
    falling = np.minimum.accumulate(crossing[:, ::-1], axis=1)[:, ::-1]
    rising = (np.maximum.accumulate(crossing, axis=1) + falling) / 2
    # Where D rests at 0 every value is a quantile: take the middle, as MEDIAN does.
    ends = np.minimum([(rising[:, 1:] < 0).sum(axis=1), (rising[:, 1:] <= 0).sum(axis=1)], last)
    # The quantile's cell c has D(c) ≤ 0 ≤ D(c+1); each end is wrong with probability at most 2.5%.
    always = np.ones(len(crossing), dtype=bool)
    low = np.column_stack([crossing[:, 1:] >= -spread[1:], always]).argmax(axis=1)
    high = last - np.column_stack([always, crossing[:, 1:] <= spread[1:]])[:, ::-1].argmax(axis=1)
    first, second = (np.add(*tree.cells.edges(end)) / 2 for end in ends)
    low_edge, high_edge = tree.cells.edges(low)[0], tree.cells.edges(np.maximum(high, low))[1]
    return NoisyEstimate((first + second) / 2, low_edge, high_edge)


def _crossing(tree: Tree, level: float) -> tuple[Floats, Floats]:
    """D at the left edge of each cell, and how far noise alone can move it."""
    children, depth = tree.cells.shape
    leaves = children**depth
    edges = np.arange(tree.cells.cells)
    left = np.zeros((len(tree.levels[0]), len(edges)))
    right = tree.levels[-1][:, edges].astype(float)
    left_nodes, right_nodes = np.zeros(len(edges)), np.ones(len(edges))
    for number, nodes in enumerate(tree.levels, start=1):
        ancestors = edges // (leaves // children**number)
        families = nodes.reshape(len(nodes), nodes.shape[1] // children, children)
        before = np.cumsum(families, axis=2) - families
        after = families.sum(axis=2, keepdims=True) - before - families
        left += before.reshape(nodes.shape)[:, ancestors]
        right += after.reshape(nodes.shape)[:, ancestors]
        left_nodes += ancestors % children
        right_nodes += children - 1 - ancestors % children
    crossing = (1 - level) * left - level * right
    return crossing, _spread(left_nodes, right_nodes, level, tree.noise)


def _spread(left_nodes: Floats, right_nodes: Floats, level: float, noise: WholeNoise) -> Floats:
    """The one-sided 97.5% quantile of D's noise: normal, corrected for its kurtosis (Cornish–Fisher)."""
    squares = (1 - level) ** 2 * left_nodes + level**2 * right_nodes
    fourths = (1 - level) ** 4 * left_nodes + level**4 * right_nodes
    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    excess = 3.0 if noise.family is Family.LAPLACE else 0.0
    corrected = z + (z**3 - 3 * z) * excess * fourths / squares**2 / 24
    spread: Floats = corrected * np.sqrt(noise.family.variance * squares) * noise.scale
    return spread
