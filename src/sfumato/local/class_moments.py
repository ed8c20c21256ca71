"""Means and covariances of each class from reports of labelled directions, drawn towards public guesses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.local.direction import LabelledDirection
from sfumato.local.estimates import Estimate

Floats = npt.NDArray[np.float64]
_SURE = 3.0  # standard errors by which a signal must exceed the noise to be believed
_SMALLEST_SHARE = 0.2  # of an even share: a class that seems rarer is taken for that, as its mean would explode


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMoments:
    """What a Gaussian of each class needs: shares (k,), means (k, d) and covariances (k, d, d).

    Args:
        shares: (k,), the share of each class.
        means: (k, d).
        covariances: (k, d, d).

    >>> vectors = [[0.0, 1.0], [2.0, 1.0], [5.0, 4.0], [5.0, 6.0]]
    >>> found = ClassMoments.of(vectors, np.array([0, 0, 1, 1]), 2)
    >>> found.means.tolist()
    [[1.0, 1.0], [5.0, 5.0]]
    """

    shares: Floats
    means: Floats
    covariances: Floats

    @property
    def pooled(self) -> Floats:
        """The covariance within classes."""
        return np.einsum("k,kij->ij", self.shares / self.shares.sum(), self.covariances)

    @classmethod
    def of(cls, vectors: npt.ArrayLike, labels: npt.NDArray[np.int64], classes: int) -> ClassMoments:
        """Of public vectors, without noise."""
        rows = np.asarray(vectors, dtype=np.float64)
        groups = [rows[labels == label] for label in range(classes)]
        if min(len(group) for group in groups) < 2:
            raise InvalidInput("expected at least 2 public vectors of each class, got fewer; draw more of them")
        return cls(
            shares=np.array([len(group) for group in groups]) / len(rows),
            means=np.stack([group.mean(axis=0) for group in groups]),
            covariances=np.stack([np.cov(group.T) for group in groups]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RawMoments:
    """Unbiased sums over people, divided by their number: first and second moments of each class.

    With slope a and curvature b of the randomiser, E[z·1(label c)] = a·share_c·E[u | c] and
    E[(zzᵀ − I)·1(label c)] = b·share_c·E[uuᵀ | c]: reports with a wrong label have mean 0 and add noise only.

    Attributes:
        randomiser: What noised the reports.
        people: How many there are.
        shares: The share of each class.
        means: The mean of each class.
        second: The second moments of each class.

    ```python
    raw = RawMoments.of(LabelledDirection(classes=10, dimension=40, epsilon=8.0), labels, points)
    ```
    """

    randomiser: LabelledDirection
    people: int
    shares: Estimate  # (k,)
    means: Estimate  # (k, d)
    second: Floats  # (k, d, d), E[uuᵀ | class]

    @classmethod
    def of(
        cls,
        randomiser: LabelledDirection,
        labels: npt.NDArray[np.int64],
        points: npt.ArrayLike,
        *,
        expected_shares: Floats | None = None,
    ) -> RawMoments:
        """Class sizes are drawn towards `expected_shares` (even by default): their errors scale the means."""
        rows = np.asarray(points, dtype=np.float64)
        people, classes = len(rows), randomiser.classes
        if people < 2 or labels.shape != (people,) or rows.shape[1:] != (randomiser.dimension,):
            raise InvalidInput(
                f"expected at least 2 labels and points of dimension {randomiser.dimension}, got"
                f" {labels.shape} and {rows.shape}; use the randomiser that made them"
            )
        even = np.full(classes, 1.0 / classes)
        shares = _shares(randomiser, labels, even if expected_shares is None else expected_shares)
        size = people * shares.values
        first, second = np.zeros((classes, rows.shape[1])), np.zeros((classes, *[rows.shape[1]] * 2))
        for label in range(classes):
            group = rows[labels == label]
            first[label] = group.sum(axis=0) / (randomiser.slope * size[label])
            centred = group.T @ group - len(group) * np.eye(rows.shape[1])
            second[label] = centred / (randomiser.curvature * size[label])
        counts = np.bincount(labels, minlength=classes)
        errors = np.sqrt(counts)[:, None] / (randomiser.slope * size[:, None]) * np.ones_like(first)
        means = Estimate(values=first, standard_errors=errors)
        return cls(randomiser=randomiser, people=people, shares=shares, means=means, second=second)

    @property
    def mean_variance(self) -> float:
        """Of one value of one class mean."""
        return float(np.mean(self.means.standard_errors**2))

    @property
    def second_variance(self) -> float:
        """Of one entry beside the diagonal of one class's second moment."""
        # Of n/k reports with the label, if classes are even, over the square of n/k people of the class.
        return self.randomiser.classes / (self.people * self.randomiser.curvature**2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Learnt:
    """Moments after shrinkage, and how much of what the reports say was believed (0 nothing, 1 all).

    Attributes:
        moments: The moments.
        trust: How much of the class means' deviations from the public guess was believed.
        own: How much of each class's own covariance was.
    """

    moments: ClassMoments
    trust: float
    own: float = 0.0


def shrink(raw: RawMoments, public: ClassMoments) -> Learnt:
    """Empirical Bayes: each deviation from the public guess, times its share of signal in what was seen.

    Deviations of the means are a part that all classes share (k times less noisy) and a part of each class;
    those of the covariances likewise. Each part has one variance τ², estimated by its mean square less the
    known noise v (and less what chance may add to it), and is multiplied by τ²/(τ² + v). With much noise the
    guess itself comes out.

    Morris 1983, "Parametric empirical Bayes inference", section 1.

    Args:
        raw: What the reports say.
        public: What drawings say.

    Returns:
        The moments to use.

    ```python
    learnt = shrink(RawMoments.of(randomiser, labels, points), view.public)
    ```
    """
    means, trust = shrunk_means(raw.means.values, public.means, raw.mean_variance)
    outer = np.einsum("ki,kj->kij", means, means)
    covariances, own = _shrunk_covariances(raw.second - outer, public, raw.second_variance)
    moments = ClassMoments(shares=raw.shares.values, means=means, covariances=covariances)
    return Learnt(moments=moments, trust=trust, own=own)


def unguided(raw: RawMoments) -> Learnt:
    """Use the reports alone: means as they are, covariances towards the one that all classes share.

    Args:
        raw: What the reports say.

    Returns:
        The moments to use.

    ```python
    learnt = unguided(RawMoments.of(randomiser, labels, points))
    ```
    """
    means = raw.means.values
    covariances = raw.second - np.einsum("ki,kj->kij", means, means)
    shares = raw.shares.values
    # Eigenvalues below those that noise alone would make (twice √(d·variance), Wigner) tell nothing.
    noise = raw.second_variance / raw.randomiser.classes
    floor = 2.0 * float(np.sqrt(raw.randomiser.dimension * noise))
    pooled = at_least(np.einsum("k,kij->ij", shares, covariances), floor)
    apart = covariances - pooled
    believed = signal(beside_diagonal(apart), raw.second_variance)
    covariances = np.stack([at_least(pooled + believed * part, floor) for part in apart])
    moments = ClassMoments(shares=shares, means=means, covariances=covariances)
    return Learnt(moments=moments, trust=1.0, own=believed)


def at_least(matrix: Floats, smallest: float) -> Floats:
    """The symmetric matrix with its eigenvalues raised to `smallest` where they are below it."""
    _validate.positive("smallest", smallest)
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, smallest)) @ vectors.T


def _shares(randomiser: LabelledDirection, labels: npt.NDArray[np.int64], expected: Floats) -> Estimate:
    if randomiser.classes == 1:
        return Estimate(values=np.ones(1), standard_errors=np.zeros(1))
    seen = np.bincount(labels, minlength=randomiser.classes) / labels.size
    gain = randomiser.keep - randomiser.lie
    spread = np.sqrt(np.maximum(seen * (1.0 - seen), 0.25 / labels.size) / (labels.size - 1)) / gain
    apart = (seen - randomiser.lie) / gain - expected
    believed = signal(apart, float(np.mean(spread**2)))
    shares = np.maximum(expected + believed * apart, _SMALLEST_SHARE / randomiser.classes)
    return Estimate(values=shares / shares.sum(), standard_errors=spread)


def shrunk_means(seen: Floats, guess: Floats, variance: float) -> tuple[Floats, float]:
    classes, dimension = seen.shape
    apart = seen - guess
    common = apart.mean(axis=0)
    own = apart - common
    believed = signal(common, variance / classes)
    freedom = max(classes - 1, 1) * dimension
    trust = signal(own, variance, freedom=freedom)
    return guess + believed * common + trust * own, trust


def _shrunk_covariances(seen: Floats, public: ClassMoments, variance: float) -> tuple[Floats, float]:
    guess = public.pooled
    smallest = 0.3 * float(np.linalg.eigvalsh(guess)[0])
    common = seen.mean(axis=0) - guess
    pooled = guess + signal(beside_diagonal(common), variance / len(seen)) * common
    own = seen - pooled - (public.covariances - guess)
    believed = signal(beside_diagonal(own), variance)
    each = pooled + (public.covariances - guess) + believed * own
    return np.stack([at_least(matrix, smallest) for matrix in each]), believed


def signal(values: Floats, variance: float, *, freedom: int | None = None) -> float:
    """τ²/(τ² + v) for values of mean square τ² + v, from below: what chance may add is not believed.

    The mean square of N normals of variance v exceeds v by more than `_SURE`·v·√(2/N) once in a thousand times.
    """
    count = values.size if freedom is None else freedom
    if count == 0 or variance <= 0:
        return 1.0
    mean_square = float(np.sum(values**2)) / count
    excess = mean_square - variance * (1.0 + _SURE * np.sqrt(2.0 / count))
    return max(0.0, excess) / mean_square if mean_square > 0 else 0.0


def beside_diagonal(matrices: Floats) -> Floats:
    """The entries above the diagonal, whose noise has one variance."""
    rows, columns = np.triu_indices(matrices.shape[-1], 1)
    return matrices[..., rows, columns]
