"""What a server may say of the crowd: unbiased estimates with their errors, from noised reports alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.mechanisms import KaryResponse
from sfumato.mechanisms.response import check_answers

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Unbiased values and their standard errors, of one shape.

    Args:
        values: The values.
        standard_errors: Their standard errors, of the same shape.

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

    Args:
        response: What randomised the answers.
        reports: The reported answers.

    Returns:
        The share of each answer.

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
    """The mean of what was noised, from reports that are unbiased for it; the noise is in the spread seen.

    Args:
        reports: (people, …), unbiased reports.

    Returns:
        The mean, with standard errors.

    >>> mean([[1.0], [2.0], [3.0]]).values.tolist()
    [2.0]
    """
    rows = _rows(reports)
    return Estimate(values=rows.mean(axis=0), standard_errors=rows.std(axis=0, ddof=1) / np.sqrt(len(rows)))


def second_moment(reports: npt.ArrayLike, noise_variance: float) -> Estimate:
    """E[xxᵀ] from reports x + Z with independent noise of known variance: E[reports] less the variance times I.

    Args:
        reports: (people, d).
        noise_variance: The variance of the noise on each value.

    Returns:
        (d, d).

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


def class_sums(labels: npt.ArrayLike, vectors: npt.ArrayLike, classes: int) -> tuple[Floats, Floats]:
    """Counts (classes,) and sums of vectors (classes, dimension) by reported label."""
    said, rows = check_answers(labels, classes), _rows(vectors)
    if said.shape != rows.shape[:1]:
        raise InvalidInput(f"expected a label for each vector, got {said.size} labels and {len(rows)} vectors")
    sums = np.zeros((classes, rows.shape[1]))
    for label in range(classes):
        sums[label] = rows[said == label].sum(axis=0)
    return np.bincount(said, minlength=classes).astype(np.float64), sums


def class_means(labels: npt.ArrayLike, vectors: npt.ArrayLike, response: KaryResponse) -> Estimate:
    """Means by true class, where labels went through `response` and vectors are unbiased by themselves.

    With M the channel P(report | answer), E[sums by report] = Mᵀ · (sums by answer): both the counts and the
    sums are multiplied by M⁻ᵀ, and divided. Errors are to first order, from the spread of the vectors.

    Args:
        labels: The reported labels.
        vectors: (people, dimension), the reported vectors.
        response: What randomised the labels.

    Returns:
        (classes, dimension).

    >>> response = KaryResponse(classes=2, epsilon=20.0)
    >>> class_means([0, 0, 1, 1], [[1.0], [3.0], [5.0], [7.0]], response).values.round(3).tolist()
    [[2.0], [6.0]]
    """
    counts, sums = class_sums(labels, vectors, response.classes)
    back = np.linalg.inv(response.channel().T)
    shares = np.maximum(back @ counts, 1.0)
    means = (back @ sums) / shares[:, None]
    rows, said = _rows(vectors), np.asarray(labels)
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
