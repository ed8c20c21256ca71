"""Estimates from noised reports alone: means, shares, moments of each class, with their errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.local.randomisers import LabelledDirection
from sfumato.mechanisms import KaryResponse
from sfumato.mechanisms.response import check_answers

Floats = npt.NDArray[np.float64]
MOMENTS = ("shares", "means", "covariances")
_SURE = 3.0  # standard errors by which a signal must exceed the noise to be believed
_SMALLEST_SHARE = 0.2  # of an even share: a class that seems rarer is taken for that, as its mean would explode


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Unbiased values and their standard errors, of one shape.

    >>> found = Estimate(values=np.array([0.5]), standard_errors=np.array([0.1]))
    >>> [round(float(end[0]), 3) for end in found.interval(0.95)]
    [0.304, 0.696]
    """

    values: Floats
    standard_errors: Floats

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Ends between which each true value lies with this probability, taken by itself."""
        confidence = _validate.probability("confidence", confidence)
        half = float(special.ndtri(0.5 + 0.5 * min(confidence, 1.0 - 1e-15))) * self.standard_errors
        return self.values - half, self.values + half


def frequencies(response: KaryResponse, reports: npt.ArrayLike) -> Estimate:
    """Shares of each answer, from reports of k-ary randomized response.

    >>> frequencies(KaryResponse(classes=2, epsilon=20.0), [0, 0, 1, 0]).values.round(3).tolist()
    [0.75, 0.25]
    """
    seen = check_answers(reports, response.classes).reshape(-1)
    _require_some(seen.size)
    share = np.bincount(seen, minlength=response.classes) / seen.size
    lie = (1.0 - response.keep_probability) / (response.classes - 1)
    gain = response.keep_probability - lie
    spread = np.sqrt(np.maximum(share * (1.0 - share), 0.25 / seen.size) / (seen.size - 1))
    return Estimate(values=(share - lie) / gain, standard_errors=spread / gain)


def mean(reports: npt.ArrayLike) -> Estimate:
    """Return the mean of unbiased reports; their spread, the noise included, gives its error.

    >>> mean([[1.0], [2.0], [3.0]]).values.tolist()
    [2.0]
    """
    rows = _rows(reports)
    return Estimate(values=rows.mean(axis=0), standard_errors=rows.std(axis=0, ddof=1) / np.sqrt(len(rows)))


def second_moment(reports: npt.ArrayLike, noise_variance: float) -> Estimate:
    """E[xxᵀ] from reports x + Z with independent noise of known variance: E[reports] less the variance times I.

    >>> second_moment([[1.0, 0.0], [3.0, 0.0]], 2.0).values.tolist()
    [[3.0, 0.0], [0.0, -2.0]]
    """
    rows = _rows(reports)
    count = len(rows)
    raw = rows.T @ rows / count
    fourth = (rows**2).T @ (rows**2) / count
    noise = _validate.non_negative("noise_variance", noise_variance)
    errors = np.sqrt(np.maximum(fourth - raw**2, 0.0) / (count - 1))
    return Estimate(values=raw - noise * np.eye(raw.shape[0]), standard_errors=errors)


def class_means(labels: npt.ArrayLike, vectors: npt.ArrayLike, response: KaryResponse) -> Estimate:
    """Means by true class, where labels went through `response` and vectors are unbiased by themselves.

    With M the channel P(report | answer), E[sums by report] = Mᵀ · (sums by answer): both the counts and the
    sums are multiplied by M⁻ᵀ, and divided. Errors are to first order, from the spread of the vectors.

    >>> response = KaryResponse(classes=2, epsilon=20.0)
    >>> class_means([0, 0, 1, 1], [[1.0], [3.0], [5.0], [7.0]], response).values.round(3).tolist()
    [[2.0], [6.0]]
    """
    said, rows = check_answers(labels, response.classes), _rows(vectors)
    if said.shape != rows.shape[:1]:
        raise InvalidInput(f"expected a label for each vector, got {said.size} labels and {len(rows)} vectors")
    sums = np.stack([rows[said == label].sum(axis=0) for label in range(response.classes)])
    back = np.linalg.inv(response.channel().T)
    shares = np.maximum(back @ np.bincount(said, minlength=response.classes), 1.0)
    means = (back @ sums) / shares[:, None]
    variance = np.zeros_like(means)
    for label in range(response.classes):
        # A report with label r adds back[c, r]·(v − mean_c)/share_c to the error of class c.
        group = rows[said == label]
        if len(group):
            squares = (group**2).sum(axis=0) - 2 * means * group.sum(axis=0) + len(group) * means**2
            variance += back[:, label, None] ** 2 * squares
    return Estimate(values=means, standard_errors=np.sqrt(variance) / shares[:, None])


def _rows(values: npt.ArrayLike) -> Floats:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2:
        raise InvalidInput(f"expected reports of shape (people, values), got shape {rows.shape}")
    _require_some(len(rows))
    return rows


def _require_some(people: int) -> None:
    if people < 2:
        raise InvalidInput(f"expected at least 2 reports, got {people}; one tells nothing of the spread")


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMoments:
    """Moments of a Gaussian for each class: shares (k,), means (k, d) and covariances (k, d, d).

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
    """Moments after shrinkage, and the share of the reports' signal that was believed, 0 to 1."""

    moments: ClassMoments
    trust: float
    own: float = 0.0


def shrink(raw: RawMoments, public: ClassMoments) -> Learnt:
    """Empirical Bayes: each deviation from the public guess, times its estimated share of signal.

    Deviations of the means are a part that all classes share (k times less noisy) and a part of each class;
    those of the covariances likewise. Each part has one variance τ², estimated by its mean square less the
    known noise v (and less the part that chance may add), and is multiplied by τ²/(τ² + v). With much noise the
    guess itself comes out.

    Morris 1983, "Parametric empirical Bayes inference", section 1.
    """
    means, trust = shrunk_means(raw.means.values, public.means, raw.mean_variance)
    outer = np.einsum("ki,kj->kij", means, means)
    covariances, own = _shrunk_covariances(raw.second - outer, public, raw.second_variance)
    moments = ClassMoments(shares=raw.shares.values, means=means, covariances=covariances)
    return Learnt(moments=moments, trust=trust, own=own)


def unguided(raw: RawMoments) -> Learnt:
    """Use the reports alone: means as they are, covariances towards the one that all classes share."""
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
    """τ²/(τ² + v) for values of mean square τ² + v, from below: the part that chance may add is not believed.

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
