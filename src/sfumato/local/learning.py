"""Learning from a noised data set: classifiers from debiased moments, none of which ever saw a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.local import estimates
from sfumato.local.estimates import (
    MOMENTS,
    ClassMoments,
    Floats,
    Learnt,
    RawMoments,
    class_means,
    frequencies,
    second_moment,
)
from sfumato.local.release import NoisedData
from sfumato.local.views import View, prior_outputs

_TEMPER = 0.3


class Classifier(Protocol):
    def scores(self, vectors: npt.ArrayLike) -> Floats:
        """(vectors, classes): the larger the likelier, as logarithms of probabilities up to a constant."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearClassifier:
    """scores = vectors · weights + bias."""

    weights: Floats  # (dimension, classes)
    bias: Floats  # (classes,)

    def scores(self, vectors: npt.ArrayLike) -> Floats:
        return np.asarray(vectors, dtype=np.float64) @ self.weights + self.bias


@dataclass(frozen=True, kw_only=True, eq=False)
class QuadraticClassifier:
    """Score by the log-density of each class's own Gaussian, its covariance mixed with the pooled one."""

    moments: ClassMoments
    even: float  # share of the pooled covariance

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
    """Return the classifier that names the class of the nearest mean: −½‖x − m‖², less a common part."""
    return LinearClassifier(weights=moments.means.T, bias=-0.5 * np.sum(moments.means**2, axis=1))


def linear_discriminant(moments: ClassMoments) -> LinearClassifier:
    """Return Fisher's classifier: Gaussians with one covariance.

    Hastie, Tibshirani & Friedman 2009, "The elements of statistical learning", section 4.3.
    """
    weights: Floats = np.linalg.solve(moments.pooled, moments.means.T).astype(np.float64)
    bias = np.log(moments.shares) - 0.5 * np.einsum("kd,dk->k", moments.means, weights)
    return LinearClassifier(weights=weights, bias=bias)


def quadratic_discriminant(moments: ClassMoments, *, even: float = 0.4) -> QuadraticClassifier:
    """Return Gaussians with a covariance each, regularised towards the pooled one (Friedman 1989)."""
    return QuadraticClassifier(moments=moments, even=even)


CLASSIFIERS: dict[str, Callable[[ClassMoments], Classifier]] = {
    "nearest-mean": nearest_mean,
    "linear": linear_discriminant,
    "quadratic": quadratic_discriminant,
}


def blend(prior: npt.ArrayLike, learnt: npt.ArrayLike, trust: float) -> Floats:
    """Return log-probabilities (rows, classes) between the prior's (trust 0) and the learnt ones (trust 1).

    Gaussian classes are surer of themselves than they should be, so that their log-probabilities
    count for 0.3: with little trust it tips the prior's own doubts, and overrules nothing that the prior is
    sure of.

    >>> int(blend([[0.0, -1.0]], [[-1.0, 0.0]], 0.0).argmax())
    0
    """
    return (1.0 - trust) * _log_softmax(prior) + trust * _TEMPER * _log_softmax(learnt)


def _log_softmax(scores: npt.ArrayLike) -> Floats:
    rows = np.asarray(scores, dtype=np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class LearntClassifier:
    """A classifier of images: the prior where the reports say little, the reports where they say much."""

    architecture: ClassVar[str] = "noised reports"
    view: View  # turns an image into a direction
    classifier: Classifier  # scores directions
    trust: float  # how much the reports count beside the prior, from 0 to 1
    name: str  # the classifier's name in `CLASSIFIERS`

    def scores(self, images: npt.NDArray[np.float32]) -> Floats:
        """(images, classes)."""
        if self.view.public is None:
            return self.scores_of(self.view.directions(images), None)
        seen, prior = prior_outputs(self.view.kind, images)
        return self.scores_of(self.view.directions_of(seen), prior)

    def scores_of(self, directions: npt.ArrayLike, prior: npt.ArrayLike | None) -> Floats:
        """Return the same from images' directions and the prior's log-probabilities, if they are known."""
        found = self.classifier.scores(directions)
        return found if prior is None else blend(prior, found, self.trust)

    def predict(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        return np.argmax(self.scores(images), axis=1)

    @property
    def settings(self) -> dict[str, Any]:
        """The input of `from_tensors` beside the arrays."""
        even = self.classifier.even if isinstance(self.classifier, QuadraticClassifier) else None
        return {"view": self.view.kind, "trust": self.trust, "name": self.name, "even": even}

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Every array of the classifier and its view, by name."""
        found: dict[str, npt.NDArray[Any]] = {"view.centre": self.view.centre, "view.matrix": self.view.matrix}
        if self.view.public is not None:
            found |= {f"public.{part}": getattr(self.view.public, part) for part in MOMENTS}
        if isinstance(self.classifier, LinearClassifier):
            return found | {"linear.weights": self.classifier.weights, "linear.bias": self.classifier.bias}
        assert isinstance(self.classifier, QuadraticClassifier)
        return found | {f"moments.{part}": getattr(self.classifier.moments, part) for part in MOMENTS}

    @classmethod
    def from_tensors(
        cls, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> LearntClassifier:
        """Read `settings` and `tensors`; ValueError, TypeError or KeyError where they do not fit."""
        public = _moments("public", arrays) if "public.means" in arrays else None
        view = View(
            kind=settings["view"], centre=arrays["view.centre"], matrix=arrays["view.matrix"], public=public
        )
        built: Classifier
        if settings["even"] is None:
            built = LinearClassifier(weights=arrays["linear.weights"], bias=arrays["linear.bias"])
        else:
            built = QuadraticClassifier(moments=_moments("moments", arrays), even=float(settings["even"]))
        built.scores(np.zeros((1, view.dimension)))  # shapes fit
        return cls(view=view, classifier=built, trust=float(settings["trust"]), name=str(settings["name"]))


def _moments(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> ClassMoments:
    return ClassMoments(**{part: arrays[f"{prefix}.{part}"] for part in MOMENTS})


def learn(data: NoisedData, *, classifier: str | None = None) -> LearntClassifier:
    """Learn a classifier from reports: debiased moments, drawn towards those of drawings where there are any.

    By default quadratic where the reports show, beyond chance, how each class spreads by itself, and without a
    prior; linear elsewhere. The rule sees the reports only.

    Args:
        data: The reports.
        classifier: A name of `CLASSIFIERS`; chosen from the reports by default.

    Returns:
        The classifier.
    """
    if classifier is not None:
        _validate.one_of("classifier", classifier, CLASSIFIERS)
    view = data.view.of_classes(data.plan.classes)
    found = moments(data)
    if classifier is None:
        classifier = "quadratic" if view.public is None or found.own > 0 else "linear"
    if classifier == "quadratic" and view.public is None:
        built: Classifier = quadratic_discriminant(found.moments, even=0.0)  # shrunk to the pooled one already
    else:
        built = CLASSIFIERS[classifier](found.moments)
    return LearntClassifier(view=view, classifier=built, trust=found.trust, name=classifier)


def moments(data: NoisedData) -> Learnt:
    """Return each class's mean and covariance, from the reports and public moments."""
    public = data.view.of_classes(data.plan.classes).public
    if data.plan.randomiser == "gaussian":
        return _from_gaussian(data, public)
    raw = RawMoments.of(
        data.plan.labelled_direction,
        data.labels,
        data.vectors,
        expected_shares=None if public is None else public.shares,
    )
    return estimates.unguided(raw) if public is None else estimates.shrink(raw, public)


def _from_gaussian(data: NoisedData, public: ClassMoments | None) -> Learnt:
    """Class means under the noisy label channel; one covariance, the noise's taken off."""
    split, classes = data.plan.gaussian_split, data.plan.classes
    if public is not None and public.means.shape[1] != data.plan.dimension:
        raise InvalidInput("expected public moments of the reported dimension; make the release anew")
    shares = np.maximum(frequencies(split.label, data.labels).values, 0.2 / classes)
    shares = shares / shares.sum()
    means = class_means(data.labels, data.vectors, split.label)
    second = second_moment(data.vectors, split.vector.sigma**2)
    noise = float(np.mean(second.standard_errors**2))
    centres, trust = means.values, 1.0
    if public is not None:
        variance = float(np.mean(means.standard_errors**2))
        centres, trust = estimates.shrunk_means(centres, public.means, variance)
    pooled = second.values - np.einsum("k,ki,kj->ij", shares, centres, centres)
    if public is None:
        pooled = estimates.at_least(pooled, 2.0 * float(np.sqrt(data.plan.dimension * noise)))
        each = np.repeat(pooled[None], classes, axis=0)
    else:
        guess = public.pooled
        apart = pooled - guess
        pooled = guess + estimates.signal(estimates.beside_diagonal(apart), noise) * apart
        smallest = 0.3 * float(np.linalg.eigvalsh(guess)[0])
        each = np.stack([estimates.at_least(pooled + own - guess, smallest) for own in public.covariances])
    return Learnt(moments=ClassMoments(shares=shares, means=centres, covariances=each), trust=trust)
