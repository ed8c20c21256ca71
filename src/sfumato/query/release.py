"""Exact sums → noisy numbers. Everything after the noise is post-processing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.query import quantiles
from sfumato.query.intervals import Floats
from sfumato.query.measures import Cells, Counted, Integers, Measure
from sfumato.query.noise import WholeNoise
from sfumato.query.pricing import Price
from sfumato.randomness import Sampler


@dataclass(frozen=True)
class Noisy:
    """A measure's noisy numbers: (groups, numbers), or a tree for cells."""

    measure: Measure
    noise: WholeNoise
    parts: Integers
    tree: quantiles.Tree | None = None


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
            tree = quantiles.noisy_tree(measure, next(waiting), noise, sampler)
            found.append(Noisy(measure, noise, np.zeros((0, 0), dtype=np.int64), tree))
        elif isinstance(measure, Counted):
            found.append(Noisy(measure, noise, noise.release(next(waiting), sampler)))
        else:
            found.append(Noisy(measure, noise, noise.release(measure.parts(position, exact), sampler)))
            position += 1
    return tuple(found)
