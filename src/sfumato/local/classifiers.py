"""Classifiers from moments alone: none of them ever saw a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.local.class_moments import ClassMoments, Floats

_TEMPER = 0.3


class Classifier(Protocol):
    def scores(self, vectors: npt.ArrayLike) -> Floats:
        """(vectors, classes): the larger the likelier, as logarithms of probabilities up to a constant."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearClassifier:
    """scores = vectors · weights + bias.

    Args:
        weights: (d, classes).
        bias: (classes,).

    >>> LinearClassifier(weights=np.eye(2), bias=np.zeros(2)).scores([[3.0, 1.0]]).tolist()
    [[3.0, 1.0]]
    """

    weights: Floats  # (dimension, classes)
    bias: Floats  # (classes,)

    def scores(self, vectors: npt.ArrayLike) -> Floats:
        return np.asarray(vectors, dtype=np.float64) @ self.weights + self.bias


@dataclass(frozen=True, kw_only=True, eq=False)
class QuadraticClassifier:
    """Score by the log-density of each class's own Gaussian, its covariance mixed with the pooled one.

    Args:
        moments: The moments of each class.
        even: The share of the pooled covariance, from 0 to 1.

    >>> centres, spread = np.array([[0.0, 0.0], [5.0, 5.0]]), np.stack([np.eye(2)] * 2)
    >>> moments = ClassMoments(shares=np.array([0.5, 0.5]), means=centres, covariances=spread)
    >>> QuadraticClassifier(moments=moments, even=0.4).scores(centres).argmax(1).tolist()
    [0, 1]
    """

    moments: ClassMoments
    even: float

    def scores(self, vectors: npt.ArrayLike) -> Floats:
        rows = np.asarray(vectors, dtype=np.float64)
        pooled, found = self.moments.pooled, []
        for share, mean, own in zip(
            self.moments.shares, self.moments.means, self.moments.covariances, strict=True
        ):
            root = np.linalg.cholesky((1.0 - self.even) * own + self.even * pooled)
            apart = np.linalg.solve(root, (rows - mean).T)  # (dimension, vectors)
            half_log_determinant = float(np.log(np.diag(root)).sum())
            found.append(np.log(share) - half_log_determinant - 0.5 * np.einsum("ij,ij->j", apart, apart))
        return np.stack(found, axis=1)


def nearest_mean(moments: ClassMoments) -> LinearClassifier:
    """Build the classifier that names the class whose mean is nearest: −½‖x − m‖², less what all classes share.

    Args:
        moments: The moments of each class.

    Returns:
        The classifier.

    >>> centres, spread = np.array([[0.0, 0.0], [5.0, 5.0]]), np.stack([np.eye(2)] * 2)
    >>> moments = ClassMoments(shares=np.array([0.5, 0.5]), means=centres, covariances=spread)
    >>> nearest_mean(moments).scores([[0.2, 0.1], [5.9, 5.1]]).argmax(1).tolist()
    [0, 1]
    """
    return LinearClassifier(weights=moments.means.T, bias=-0.5 * np.sum(moments.means**2, axis=1))


def linear_discriminant(moments: ClassMoments) -> LinearClassifier:
    """Build Fisher's classifier: Gaussians with one covariance.

    Hastie, Tibshirani & Friedman 2009, "The elements of statistical learning", section 4.3.

    Args:
        moments: The moments of each class.

    Returns:
        The classifier.

    >>> centres, spread = np.array([[0.0, 0.0], [5.0, 5.0]]), np.stack([np.eye(2)] * 2)
    >>> moments = ClassMoments(shares=np.array([0.5, 0.5]), means=centres, covariances=spread)
    >>> linear_discriminant(moments).scores([[0.2, 0.1], [5.9, 5.1]]).argmax(1).tolist()
    [0, 1]
    """
    weights: Floats = np.linalg.solve(moments.pooled, moments.means.T).astype(np.float64)
    bias = np.log(moments.shares) - 0.5 * np.einsum("kd,dk->k", moments.means, weights)
    return LinearClassifier(weights=weights, bias=bias)


def quadratic_discriminant(moments: ClassMoments, *, even: float = 0.4) -> QuadraticClassifier:
    """Build Gaussians with a covariance each, regularised towards the pooled one (Friedman 1989).

    Args:
        moments: The moments of each class.
        even: The share of the pooled covariance, from 0 to 1.

    Returns:
        The classifier.

    >>> centres, spread = np.array([[0.0, 0.0], [5.0, 5.0]]), np.stack([np.eye(2)] * 2)
    >>> moments = ClassMoments(shares=np.array([0.5, 0.5]), means=centres, covariances=spread)
    >>> quadratic_discriminant(moments).scores([[0.2, 0.1], [5.9, 5.1]]).argmax(1).tolist()
    [0, 1]
    """
    return QuadraticClassifier(moments=moments, even=even)


def ridge(
    second: npt.ArrayLike, means: npt.ArrayLike, shares: npt.ArrayLike, penalty: float
) -> LinearClassifier:
    """Least squares on one-hot labels from debiased moments: (E[xxᵀ] + λI)⁻¹ E[x·1(class)].

    E[xxᵀ], its noise taken off, may have come out with negative eigenvalues; they are raised to 0.

    Args:
        second: (d, d), E[xxᵀ].
        means: (classes, d), the class means.
        shares: (classes,), the share of each class.
        penalty: λ.

    Returns:
        The classifier.

    >>> ridge(np.eye(2), np.eye(2), np.array([0.5, 0.5]), 0.1).scores([[1.0, 0.0]]).argmax()
    np.int64(0)
    """
    penalty = _validate.positive("penalty", penalty)
    moment, centres, weight = (np.asarray(part, dtype=np.float64) for part in (second, means, shares))
    if moment.shape != (centres.shape[1],) * 2:
        raise InvalidInput(f"expected a second moment of shape {(centres.shape[1],) * 2}, got {moment.shape}")
    values, vectors = np.linalg.eigh(moment)
    inverse = (vectors / (np.maximum(values, 0.0) + penalty)) @ vectors.T
    return LinearClassifier(weights=inverse @ (centres * weight[:, None]).T, bias=np.zeros(len(weight)))


CLASSIFIERS: dict[str, Callable[[ClassMoments], Classifier]] = {
    "nearest-mean": nearest_mean,
    "linear": linear_discriminant,
    "quadratic": quadratic_discriminant,
}


def blend(prior: npt.ArrayLike, learnt: npt.ArrayLike, trust: float) -> Floats:
    """Log-probabilities between the prior's (trust 0) and the learnt ones (trust 1).

    Gaussian classes are surer of themselves than they should be, so that what is learnt counts for 0.3 of what
    it says: with little trust it tips the prior's own doubts, and overrules nothing that the prior is sure of.

    Args:
        prior: (rows, classes), the prior's log-probabilities.
        learnt: (rows, classes), those learnt from reports.
        trust: How much the reports count, from 0 to 1.

    Returns:
        (rows, classes).

    >>> blend([[0.0, -1.0]], [[-1.0, 0.0]], 0.0).argmax()
    np.int64(0)
    """
    return (1.0 - trust) * _log_softmax(prior) + trust * _TEMPER * _log_softmax(learnt)


def _log_softmax(scores: npt.ArrayLike) -> Floats:
    rows = np.asarray(scores, dtype=np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
