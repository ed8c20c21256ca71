"""Directions at pure ε: a unit vector, or a unit vector and a label at once, reported as a point near it.

All three draw from a fixed reference measure that knows nothing of the person, but favour a *cap* around the
truth. With q the measure of the cap, a report falls into it with probability p = e^ε q / (1 − q + e^ε q): the
density is p/q inside and (1 − p)/(1 − q) outside, and their ratio is e^ε exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato.mechanisms.response import check_answers
from sfumato.randomness import Bools, Floats, Integers, Sampler

Vectors = npt.NDArray[np.float64]  # (people, dimension)
GRID = 2.0**-12  # reported coordinates are whole multiples: the last bits of doubles say nothing of the truth
UNIT_SLACK = 1e-6  # by how much a length may differ from 1, as float32 leaves it; then it is made 1
_LOWEST, _HIGHEST = -2.0, 8.0  # thresholds that are looked at, in standard deviations


def inside_probability(epsilon: float, measure: float) -> float:
    """The chance of the cap at which the density ratio is e^ε, rounded down by what doubles may err.

    >>> round(inside_probability(math.log(3), 0.5), 9)
    0.75
    """
    against = math.exp(-epsilon) * (1.0 - measure) / measure
    return (1.0 - 1e-12) / (1.0 + against)


def check_directions(vectors: npt.ArrayLike, dimension: int) -> Vectors:
    """Vectors (people, dimension) of length 1; anything else is refused, and the message shows none of it."""
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise InvalidInput(
            f"expected directions of shape (people, {dimension}), got shape {rows.shape};"
            " the dimension is public and part of the randomiser"
        )
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    # Written so that NaN, which compares as false with everything, is refused.
    if not np.all(np.abs(lengths - 1.0) <= UNIT_SLACK):
        raise InvalidInput(
            "expected directions of length 1, got some that are not (or not finite);"
            " divide each vector by its own length"
        )
    return rows / lengths[:, None]


def on_grid(values: Vectors) -> Vectors:
    """Rounded to multiples of `GRID`: post-processing, done before anything leaves the person."""
    values /= GRID
    np.rint(values, out=values)
    values *= GRID
    return values


@dataclass(frozen=True, kw_only=True)
class LabelledDirection:
    """A label of k and a unit vector u of R^d at once: one of k labels and a point of R^d.

    The reference measure is a uniform label and a standard normal point. The cap of (y, u) is the label y
    with points z, ⟨z, u⟩ ≥ t; q = Φ(−t)/k. One coin decides for both, where two randomisers would each need
    a share of ε. With one class this is PrivUnitG.

    *Guarantees*: pure ε for a person's label and vector replaced by any others, since the density of a report
    is one of two values whose ratio is e^ε, computed from a threshold and a chance that are rounded towards
    more privacy. Vectors that are not of length 1 or not finite, and labels outside 0 … k−1, are refused
    before anything is drawn. The float64 sampler is taken as ideal; reports lie on one grid. Public: classes,
    dimension, epsilon. Secret: labels, vectors.

    Bhowmick et al. 2018, "Protection against reconstruction", section 4.1 (caps); Asi, Feldman & Talwar 2022,
    "Optimal algorithms for mean estimation under local differential privacy", section 4 (Gaussian reference).
    The joint cap is our own.

    Args:
        classes: k, the number of labels.
        dimension: d, the number of values of a vector.
        epsilon: The ε of one report.

    >>> from sfumato.randomness import SecretStream
    >>> randomiser = LabelledDirection(classes=10, dimension=4, epsilon=8.0)
    >>> labels, points = randomiser.release(np.array([3]), np.eye(4)[:1], SecretStream())
    >>> labels.shape, points.shape
    ((1,), (1, 4))
    """

    classes: int
    dimension: int
    epsilon: float

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, least=1)
        _validate.integer("dimension", self.dimension, least=2)
        _validate.positive("epsilon", self.epsilon)

    @property
    def threshold(self) -> float:
        return _best_threshold(self.classes, self.epsilon)

    @property
    def measure(self) -> float:
        """q, the share of the cap in the reference measure."""
        return float(special.ndtr(-self.threshold)) / self.classes

    @property
    def inside(self) -> float:
        """p, the chance that a report lies in the cap of the truth."""
        return inside_probability(self.epsilon, self.measure)

    @property
    def _below(self) -> float:
        """Of reports outside the cap, the share that has the true label all the same."""
        return float(special.ndtr(self.threshold)) / self.classes / (1.0 - self.measure)

    @property
    def keep(self) -> float:
        """The chance that the reported label is the true one."""
        return self.inside + (1.0 - self.inside) * self._below

    @property
    def lie(self) -> float:
        """The chance of each other label."""
        return (1.0 - self.keep) / max(self.classes - 1, 1)

    @property
    def slope(self) -> float:
        """E[z·1(true label)] = slope · u; points with another label have mean 0."""
        return _slope(self.threshold, self.classes, self.epsilon)

    @property
    def curvature(self) -> float:
        """E[(zzᵀ − I)·1(true label)] = curvature · uuᵀ; with another label it is 0."""
        above, beneath = _tail_means(self.threshold)
        return self.threshold * (self.inside * above - (1.0 - self.inside) * self._below * beneath)

    def event(self) -> accounting.DpEvent:
        return accounting.pure(self.epsilon)

    def log_density(self, labels: Integers, points: Vectors, label: int, vector: Floats) -> Floats:
        """ln of a report's density against the reference measure, if the truth were (label, vector)."""
        cap = (labels == label) & (points @ vector >= self.threshold)
        inside = math.log(self.inside / self.measure)
        return np.where(cap, inside, math.log((1.0 - self.inside) / (1.0 - self.measure)))

    def release(
        self, labels: npt.NDArray[Any], vectors: npt.ArrayLike, sampler: Sampler
    ) -> tuple[Integers, Vectors]:
        """One report for each person; each person's record may be released once."""
        truth = check_answers(labels, self.classes)
        directions = check_directions(vectors, self.dimension)
        if truth.shape != directions.shape[:1]:
            raise InvalidInput(f"expected a label for each vector, got {truth.size} and {len(directions)}")
        people = truth.size
        inside = sampler.bernoulli(self.inside, people)
        same = inside | sampler.bernoulli(self._below, people)
        height = _truncated_normal(sampler.uniform(people), self.threshold, inside)
        others = sampler.integers(max(self.classes - 1, 1), people)
        points = sampler.normal(people * self.dimension).reshape(people, self.dimension)
        shift = np.where(same, height - np.einsum("ij,ij->i", points, directions), 0.0)
        points += shift[:, None] * directions
        return np.where(same, truth, (truth + 1 + others) % self.classes), on_grid(points)


@dataclass(frozen=True, kw_only=True)
class PrivUnitG:
    """A unit vector u of R^d as a point of R^d whose mean is proportional to u.

    The reference is the standard normal; the cap is ⟨z, u⟩ ≥ t. `release` scales by 1/`slope`, so that a
    report is an unbiased estimate of u.

    *Guarantees*: pure ε for a vector replaced by any other. Vectors that are not of length 1 or not finite are
    refused before anything is drawn. The float64 sampler is taken as ideal; reports lie on one grid. Public:
    dimension, epsilon. Secret: the vectors.

    Asi, Feldman & Talwar 2022, "Optimal algorithms for mean estimation under local differential privacy",
    section 4.

    Args:
        dimension: d, the number of values of a vector.
        epsilon: The ε of one report.

    >>> from sfumato.randomness import SecretStream
    >>> PrivUnitG(dimension=3, epsilon=4.0).release(np.eye(3), SecretStream()).shape
    (3, 3)
    """

    dimension: int
    epsilon: float

    def __post_init__(self) -> None:
        self.joint  # noqa: B018  (its own checks)

    @property
    def joint(self) -> LabelledDirection:
        return LabelledDirection(classes=1, dimension=self.dimension, epsilon=self.epsilon)

    def event(self) -> accounting.DpEvent:
        return accounting.pure(self.epsilon)

    def release(self, vectors: npt.ArrayLike, sampler: Sampler) -> Vectors:
        """One unbiased report for each vector."""
        rows = check_directions(vectors, self.dimension)
        _, points = self.joint.release(np.zeros(len(rows), dtype=np.int64), rows, sampler)
        return points / self.joint.slope

    @property
    def variance(self) -> float:
        """E‖report − u‖²."""
        joint = self.joint
        return (self.dimension + joint.curvature) / joint.slope**2 - 1.0


@dataclass(frozen=True, kw_only=True)
class PrivUnit:
    """A unit vector u of R^d as a point on a sphere whose mean is u.

    The reference is uniform on the sphere; the cap is ⟨z, u⟩ ≥ t. `release` scales by 1/m, m = E⟨z, u⟩.

    *Guarantees*: pure ε for a vector replaced by any other; all reports have one length, up to the grid.
    Vectors that are not of length 1 or not finite are refused before anything is drawn. The float64 sampler
    is taken as ideal. Public: dimension, epsilon. Secret: the vectors.

    Bhowmick et al. 2018, "Protection against reconstruction and its applications in private federated
    learning", section 4.1; the threshold as Asi, Feldman & Talwar 2022, section 3, by search.

    Args:
        dimension: d, the number of values of a vector.
        epsilon: The ε of one report.

    >>> from sfumato.randomness import SecretStream
    >>> PrivUnit(dimension=3, epsilon=4.0).release(np.eye(3), SecretStream()).shape
    (3, 3)
    """

    dimension: int
    epsilon: float

    def __post_init__(self) -> None:
        _validate.integer("dimension", self.dimension, least=2)
        _validate.positive("epsilon", self.epsilon)

    @property
    def threshold(self) -> float:
        return _best_height(self.dimension, self.epsilon)

    @property
    def measure(self) -> float:
        return float(special.betainc(*self._shape, (1.0 - self.threshold) / 2.0))

    @property
    def inside(self) -> float:
        return inside_probability(self.epsilon, self.measure)

    @property
    def slope(self) -> float:
        """m = E⟨z, u⟩."""
        return _mean_height(self.threshold, self.dimension, self.epsilon)

    @property
    def variance(self) -> float:
        """E‖report − u‖²."""
        return self.slope**-2 - 1.0

    @property
    def _shape(self) -> tuple[float, float]:
        # (1 + ⟨z, u⟩)/2 of a uniform point of the sphere has this beta distribution.
        return (self.dimension - 1) / 2.0, (self.dimension - 1) / 2.0

    def event(self) -> accounting.DpEvent:
        return accounting.pure(self.epsilon)

    def log_density(self, points: Vectors, vector: Floats) -> Floats:
        """ln of a report's density against the uniform measure, if the truth were `vector`."""
        cap = points @ vector * self.slope >= self.threshold
        inside = math.log(self.inside / self.measure)
        return np.where(cap, inside, math.log((1.0 - self.inside) / (1.0 - self.measure)))

    def release(self, vectors: npt.ArrayLike, sampler: Sampler) -> Vectors:
        """One unbiased report for each vector."""
        rows = check_directions(vectors, self.dimension)
        people = len(rows)
        inside = sampler.bernoulli(self.inside, people)
        height = self._heights(sampler.uniform(people), inside)
        sides = sampler.normal(people * self.dimension).reshape(people, self.dimension)
        sides -= np.einsum("ij,ij->i", sides, rows)[:, None] * rows
        sides /= np.linalg.norm(sides, axis=1)[:, None]
        points = height[:, None] * rows + np.sqrt(1.0 - height**2)[:, None] * sides
        points /= self.slope
        return on_grid(points)

    def _heights(self, uniform: Floats, inside: Bools) -> Floats:
        """⟨z, u⟩ above the threshold where inside, below it elsewhere, by quantiles from the top."""
        measure = self.measure
        tail = np.where(inside, uniform * measure, measure + uniform * (1.0 - measure))
        return 1.0 - 2.0 * special.betaincinv(*self._shape, tail)


def _truncated_normal(uniform: Floats, threshold: float, above: Bools) -> Floats:
    """A standard normal given that it is above the threshold, or below it, by its quantiles."""
    upper, lower = float(special.ndtr(-threshold)), float(special.ndtr(threshold))
    middle = uniform * (1.0 - 2.0**-53) + 2.0**-54  # never 0, whose quantile is infinite
    high = -special.ndtri(middle * upper)
    return np.where(above, np.maximum(high, threshold), np.minimum(special.ndtri(middle * lower), threshold))


def _tail_means(threshold: float) -> tuple[float, float]:
    """E[Z | Z ≥ t] and −E[Z | Z < t] of a standard normal."""
    density = math.exp(-(threshold**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return density / float(special.ndtr(-threshold)), density / float(special.ndtr(threshold))


def _slope(threshold: float, classes: int, epsilon: float) -> float:
    measure = float(special.ndtr(-threshold)) / classes
    inside = inside_probability(epsilon, measure)
    above, beneath = _tail_means(threshold)
    below = float(special.ndtr(threshold)) / classes / (1.0 - measure)
    return inside * above - (1.0 - inside) * below * beneath


def _mean_height(threshold: float, dimension: int, epsilon: float) -> float:
    half = (dimension - 1) / 2.0
    measure = float(special.betainc(half, half, (1.0 - threshold) / 2.0))
    inside = inside_probability(epsilon, measure)
    # ∫ t·density over the cap: (1 − t²)^half / (2·half·B(½, half)).
    log_flux = half * math.log1p(-(threshold**2)) - math.log(2.0 * half) - float(special.betaln(0.5, half))
    return math.exp(log_flux) * (inside / measure - (1.0 - inside) / (1.0 - measure))


@lru_cache(maxsize=256)
def _best_threshold(classes: int, epsilon: float) -> float:
    """Where the slope is largest: the least noise on a mean of so many people."""
    return _largest(lambda t: _slope(t, classes, epsilon), _LOWEST, _HIGHEST)


@lru_cache(maxsize=256)
def _best_height(dimension: int, epsilon: float) -> float:
    # A height of a uniform point has a standard deviation of 1/√d.
    low, high = -0.5 / math.sqrt(dimension), min(0.999, _HIGHEST / math.sqrt(dimension))
    return _largest(lambda t: _mean_height(t, dimension, epsilon), low, high)


def _largest(value: Callable[[float], float], low: float, high: float) -> float:
    """A coarse grid, then a search between its best point's neighbours."""
    grid = np.linspace(low, high, 201)
    best = int(np.argmax([value(float(t)) for t in grid]))
    bracket = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 200)])
    found = optimize.minimize_scalar(lambda t: -value(float(t)), bounds=bracket, method="bounded")
    return float(found.x)
