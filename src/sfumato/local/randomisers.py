"""Randomisers of a person's one report: vectors, numbers, directions and labels, noised by their owner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from sfumato import _validate, accounting
from sfumato.accounting import Budget, Relation
from sfumato.errors import InvalidInput
from sfumato.mechanisms import KaryResponse
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.laplace import no_less_noise
from sfumato.mechanisms.response import check_answers
from sfumato.randomness import Bools, Floats, Integers, Sampler

Reports = npt.NDArray[np.float32]  # (people, dimension)
Vectors = npt.NDArray[np.float64]  # (people, dimension)
LENGTH_SLACK = 1e-6  # relative: float32 vectors of declared length may be that much longer; part of η
GRID = 2.0**-12  # reported coordinates are whole multiples: the last bits of doubles say nothing of the truth
_BLOCK = 1 << 20  # values noised at a time
_LOWEST, _HIGHEST = -2.0, 8.0  # thresholds that are looked at, in standard deviations


@dataclass(frozen=True, kw_only=True)
class GaussianVector:
    """A vector of L2 norm at most C plus Gaussian noise σ = noise_multiplier · 2C(1+η), on a grid.

    Replacing one vector of norm ≤ C by another moves it by at most 2C: that is the sensitivity, also on the
    unit sphere. Reported is (round(x/grid) + ⌊σZ/grid + ½⌋)·grid, post-processing of the ideal mechanism.

    *Guarantees*: the cost of a Gaussian mechanism of `noise_multiplier` for a person's vector replaced by any
    other; `calibrated` uses the exact curve, valid for every ε. η covers the rounding to the grid and a
    relative excess of 1e-6 in length. Longer vectors, NaN and infinities are refused before any noise is
    drawn. The float64 normal sampler is taken as ideal. Public: all fields. Secret: the vectors, the noise.

    Balle & Wang 2018, theorem 8; Mironov 2012 for why on a grid.

    >>> from sfumato.randomness import SecretStream
    >>> noise = GaussianVector.calibrated(dimension=4, epsilon=8.0, delta=1e-5)
    >>> round(noise.sigma, 2), noise.release(np.eye(4), SecretStream()).shape  # 2 · 0.6002 · (1+η)
    (1.2, (4, 4))
    """

    dimension: int
    noise_multiplier: float
    norm_bound: float = 1.0

    def __post_init__(self) -> None:
        _validate.integer("dimension", self.dimension, least=1)
        _validate.positive("norm_bound", self.norm_bound)
        _validate.positive("noise_multiplier", self.noise_multiplier)
        grids.check_noise("sigma", self.sigma, self.norm_bound, self.grid)

    @classmethod
    def calibrated(
        cls, *, dimension: int, epsilon: float, delta: float, norm_bound: float = 1.0
    ) -> GaussianVector:
        """The least noise that costs at most (ε, δ)."""
        multiplier = accounting.gaussian_noise_multiplier(epsilon, delta)
        return cls(dimension=dimension, noise_multiplier=multiplier, norm_bound=norm_bound)

    @property
    def grid(self) -> float:
        return grids.vector_grid(self.norm_bound, self.dimension)

    @property
    def eta(self) -> float:
        return LENGTH_SLACK + self.grid * math.sqrt(self.dimension) / (2.0 * self.norm_bound)

    @property
    def sigma(self) -> float:
        return self.noise_multiplier * 2.0 * self.norm_bound * (1.0 + self.eta)

    def event(self) -> accounting.DpEvent:
        return accounting.GaussianEvent(self.noise_multiplier)

    def release(self, vectors: npt.NDArray[Any], sampler: Sampler) -> Reports:
        """One report for each row; each person's vector may be released once."""
        rows = check_rows(vectors, self.dimension)
        longest = self.norm_bound * (1.0 + LENGTH_SLACK)
        if not all(_within_norm(rows[part], longest) for part in _parts(rows)):
            raise InvalidInput(
                f"expected vectors of length at most norm_bound={self.norm_bound!r}, got some that are longer"
                " or not finite; scale each by itself, before it is reported"
            )
        noised = np.empty(rows.shape, dtype=np.float32)
        for part in _parts(rows):
            steps = rows[part] * np.float64(1.0 / self.grid)  # exact: the grid is a power of two
            np.rint(steps, out=steps)
            steps += sampler.rounded_normal(self.sigma / self.grid, steps.size).reshape(steps.shape)
            np.multiply(steps, self.grid, out=noised[part], casting="same_kind")
        return noised


@dataclass(frozen=True, kw_only=True)
class LaplaceVector:
    """d values, each within [lower, upper], as whole steps of a grid plus discrete Laplace noise of scale dS/ε.

    S = to_grid(upper) − to_grid(lower) steps, the most that a value can move: rounding to the grid is monotone,
    so that values within the bounds stay within the rounded bounds.

    *Guarantees*: pure ε for a person's values replaced by any others: all d may change at once, so that the
    L1 sensitivity is d·S whole steps, rounding included. P(z) ∝ exp(−|z|ε/(dS)) for every whole z, drawn
    exactly by OpenDP: for all values the same reports can come out, and none is more than e^ε times as
    likely. Values outside the bounds, NaN and infinities are refused before any noise is drawn. Public: all
    fields. Secret: the values, the noise.

    Ghosh, Roughgarden & Sundararajan 2012, section 2; Mironov 2012 for why not in doubles.

    >>> from sfumato.randomness import SecretStream
    >>> LaplaceVector(dimension=2, epsilon=4.0).release(np.zeros((3, 2)), SecretStream()).shape
    (3, 2)
    """

    dimension: int
    epsilon: float
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        _validate.integer("dimension", self.dimension, least=1)
        _validate.positive("epsilon", self.epsilon)
        if not _validate.real("lower", self.lower) < _validate.real("upper", self.upper):
            raise InvalidInput(f"expected lower < upper, got lower={self.lower!r}, upper={self.upper!r}")
        grids.check_noise("scale", self.scale, self.upper - self.lower, self.grid)

    @property
    def grid(self) -> float:
        return grids.power_of_two_below((self.upper - self.lower) * 2.0**-20)

    @property
    def span(self) -> int:
        """The most grid steps between two values within the bounds."""
        first, last = grids.to_grid([self.lower, self.upper], self.grid)
        return int(last - first)

    @property
    def scale_in_steps(self) -> float:
        return no_less_noise(self.dimension * self.span, self.epsilon)

    @property
    def scale(self) -> float:
        return self.scale_in_steps * self.grid

    def event(self) -> accounting.DpEvent:
        return accounting.pure(self.epsilon)

    def release(self, values: npt.NDArray[Any], sampler: Sampler) -> npt.NDArray[np.float64]:
        """One report for each row; each person's values may be released once."""
        rows = check_rows(values, self.dimension)
        if rows.size and not (self.lower <= rows.min() and rows.max() <= self.upper):
            raise InvalidInput(
                f"expected values from {self.lower!r} to {self.upper!r}, got some outside or not finite;"
                " clip each to the declared bounds, before it is reported"
            )
        noised = np.empty(rows.shape)
        for part in _parts(rows):
            steps = grids.to_grid(rows[part], self.grid)
            noise = sampler.discrete_laplace(self.scale_in_steps, steps.size)
            noised[part] = grids.from_grid(steps + noise.reshape(steps.shape), self.grid)
        return noised


def check_rows(vectors: npt.NDArray[Any], dimension: int) -> npt.NDArray[Any]:
    rows = np.asarray(vectors)
    if rows.ndim != 2 or rows.shape[1] != dimension or rows.dtype.kind not in "fiu":
        raise InvalidInput(
            f"expected numbers of shape (people, {dimension}), got {rows.dtype} of shape {rows.shape};"
            " the dimension is public and part of the randomiser"
        )
    return rows


def _within_norm(rows: npt.NDArray[Any], longest: float) -> bool:
    exact = rows.astype(np.float64, copy=False)
    return bool(np.all(np.einsum("ij,ij->i", exact, exact) <= longest**2))  # NaN compares as false


def _parts(rows: npt.NDArray[Any]) -> list[slice]:
    height = max(1, _BLOCK // max(rows.shape[1], 1))
    return [slice(start, start + height) for start in range(0, len(rows), height)]


def inside_probability(epsilon: float, measure: float) -> float:
    """The chance of the cap at which the density ratio is e^ε, rounded down by the error of doubles.

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
    if not np.all(np.abs(lengths - 1.0) <= LENGTH_SLACK):
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


@lru_cache(maxsize=256)
def _best_threshold(classes: int, epsilon: float) -> float:
    """Return the threshold of the largest slope: the least noise on a mean of so many people."""
    heights = np.linspace(_LOWEST, _HIGHEST, 201)  # coarsely, then between the best point's neighbours
    best = int(np.argmax([_slope(float(height), classes, epsilon) for height in heights]))
    bracket = float(heights[max(best - 1, 0)]), float(heights[min(best + 1, 200)])
    found = optimize.minimize_scalar(
        lambda height: -_slope(float(height), classes, epsilon), bounds=bracket, method="bounded"
    )
    return float(found.x)


@dataclass(frozen=True, kw_only=True)
class GaussianSplit:
    """Gaussian noise on a unit vector, and k-ary randomized response on its label, priced together.

    Vector and label of one person are composed by privacy loss distributions under replace-one. Each share of
    the label leaves a largest share to the vector; the split has the least variance of a debiased class mean,
    (σ² + 1/d) times the squared entries of a row of the inverse channel.

    >>> split = GaussianSplit.best(classes=10, dimension=40, epsilon=8.0, delta=1e-5)
    >>> 7.99 < split.epsilon(1e-5) <= 8
    True
    """

    vector: GaussianVector
    label: KaryResponse

    @classmethod
    def best(cls, *, classes: int, dimension: int, epsilon: float, delta: float) -> GaussianSplit:
        _validate.positive("epsilon", epsilon)
        share = _best_share(classes, dimension, epsilon, delta)
        return _with_label_share(classes, dimension, epsilon, delta, share)

    def event(self) -> accounting.DpEvent:
        return accounting.compose(self.vector.event(), self.label.event())

    def epsilon(self, delta: float) -> float:
        return accounting.epsilon(self.event(), delta, relation=Relation.REPLACE_ONE)

    @property
    def class_mean_variance(self) -> float:
        """Of one value of a debiased class mean, times the number of people, all classes being as large."""
        classes = self.label.classes
        lie = (1.0 - self.label.keep_probability) / (classes - 1)
        gain = self.label.keep_probability - lie
        # The inverse channel is (I − lie·J)/gain: its row's squares, each met by 1/k of the people.
        squares = (1.0 - lie) ** 2 + (classes - 1) * lie**2
        spread = self.vector.sigma**2 + 1.0 / self.vector.dimension
        return spread * classes * squares / gain**2


@lru_cache(maxsize=64)
def _best_share(classes: int, dimension: int, epsilon: float, delta: float) -> float:
    def cost(share: float) -> float:
        return _with_label_share(classes, dimension, epsilon, delta, float(share)).class_mean_variance

    found = optimize.minimize_scalar(cost, bounds=(0.1, 0.9), method="bounded", options={"xatol": 0.02})
    return float(found.x)


@lru_cache(maxsize=64)
def _with_label_share(
    classes: int, dimension: int, epsilon: float, delta: float, share: float
) -> GaussianSplit:
    label = KaryResponse(classes=classes, epsilon=share * epsilon)
    multiplier = accounting.calibrate(
        lambda value: accounting.compose(accounting.GaussianEvent(value), label.event()),
        Budget(epsilon=epsilon, delta=delta, unit="person", relation=Relation.REPLACE_ONE),
        guess=accounting.gaussian_noise_multiplier((1.0 - share) * epsilon, delta),
    )
    return GaussianSplit(vector=GaussianVector(dimension=dimension, noise_multiplier=multiplier), label=label)


RANDOMISERS = ("direction", "gaussian")


@dataclass(frozen=True, kw_only=True)
class ReportPlan:
    """A label of `classes` and a unit vector of `dimension` values, noised to (ε, δ) for the person.

    The unit is the person: vector *and* label.

    Args:
        classes: The number of labels.
        dimension: The number of values of a vector.
        epsilon: The ε of a person's report.
        delta: Its δ; 0 for "direction".
        randomiser: "direction", pure ε by `LabelledDirection`; or "gaussian", which adds noise to the
            vector and randomises the label, with the best split of ε between them, composed exactly.

    >>> ReportPlan(classes=10, dimension=40, epsilon=8.0).price
    8.0
    """

    classes: int
    dimension: int
    epsilon: float
    delta: float = 0.0
    randomiser: str = "direction"

    def __post_init__(self) -> None:
        _validate.one_of("randomiser", self.randomiser, RANDOMISERS)
        _validate.integer("classes", self.classes, least=2)
        _validate.integer("dimension", self.dimension, least=2)
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        if self.randomiser == "gaussian" and self.delta == 0:
            raise InvalidInput("expected delta > 0 for Gaussian reports, got delta=0; or report directions")

    @property
    def labelled_direction(self) -> LabelledDirection:
        return LabelledDirection(classes=self.classes, dimension=self.dimension, epsilon=self.epsilon)

    @property
    def gaussian_split(self) -> GaussianSplit:
        return GaussianSplit.best(
            classes=self.classes, dimension=self.dimension, epsilon=self.epsilon, delta=self.delta
        )

    def event(self) -> accounting.DpEvent:
        if self.randomiser == "direction":
            return self.labelled_direction.event()
        return self.gaussian_split.event()

    @property
    def eta(self) -> float | None:
        """By how much the declared sensitivity of vector noise exceeds the ideal one."""
        return self.gaussian_split.vector.eta if self.randomiser == "gaussian" else None

    @property
    def price(self) -> float:
        """ε of one person's report at `delta`, for their record replaced by any other."""
        return accounting.epsilon(self.event(), self.delta, relation=Relation.REPLACE_ONE)

    def check(self, labels: npt.ArrayLike, vectors: npt.ArrayLike) -> None:
        """Refuse records that cannot be reported, before anything is charged or drawn."""
        known = check_answers(labels, self.classes)
        rows = check_directions(vectors, self.dimension)
        if known.shape != rows.shape[:1]:
            raise InvalidInput(f"expected a label for each vector, got {known.size} and {len(rows)}")

    def randomise(
        self, labels: npt.ArrayLike, vectors: npt.ArrayLike, sampler: Sampler
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """One report for each person."""
        self.check(labels, vectors)
        known = np.asarray(labels)
        if self.randomiser == "direction":
            said, points = self.labelled_direction.release(known, vectors, sampler)
            return said, points.astype(np.float32)  # exact: multiples of 2⁻¹² below 2⁶
        split = self.gaussian_split
        noised = split.vector.release(np.asarray(vectors), sampler)
        return split.label.release(known, sampler), noised

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReportPlan:
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidInput(f"expected the plan of a noised data set, got {sorted(data)}") from error
