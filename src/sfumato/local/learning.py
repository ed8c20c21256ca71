"""Learning from a noised data set, knowing the noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.local import class_moments
from sfumato.local.artefact import NoisedData
from sfumato.local.class_moments import ClassMoments, Learnt, RawMoments
from sfumato.local.classifiers import (
    CLASSIFIERS,
    Classifier,
    LinearClassifier,
    QuadraticClassifier,
    blend,
    quadratic_discriminant,
)
from sfumato.local.estimates import class_means, frequencies, second_moment
from sfumato.local.views import View, prior_outputs

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class LearntClassifier:
    """A classifier of images: the prior where the reports say little, what they say where they say much.

    Attributes:
        view: Turns an image into a direction.
        classifier: Scores directions.
        trust: How much the reports count beside the prior, from 0 to 1.
        name: The name of the data set.
    """

    architecture: ClassVar[str] = "noised reports"
    view: View
    classifier: Classifier
    trust: float  # in the reports, against the prior
    name: str  # of the classifier, one of `CLASSIFIERS`

    def scores(self, images: npt.NDArray[np.float32]) -> Floats:
        """(images, classes)."""
        if self.view.public is None:
            return self.scores_of(self.view.directions(images), None)
        seen, prior = prior_outputs(self.view.kind, images)
        return self.scores_of(self.view.directions_of(seen), prior)

    def scores_of(self, directions: npt.ArrayLike, prior: npt.ArrayLike | None) -> Floats:
        """The same from images' directions and what the prior says of them, where they are known already."""
        found = self.classifier.scores(directions)
        return found if prior is None else blend(prior, found, self.trust)

    def predict(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        return np.argmax(self.scores(images), axis=1)

    @property
    def settings(self) -> dict[str, Any]:
        """What `from_tensors` needs beside the arrays."""
        even = self.classifier.even if isinstance(self.classifier, QuadraticClassifier) else None
        return {"view": self.view.kind, "trust": self.trust, "name": self.name, "even": even}

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Every array of the classifier and its view, by name."""
        found: dict[str, npt.NDArray[Any]] = {"view.centre": self.view.centre, "view.matrix": self.view.matrix}
        if self.view.public is not None:
            found |= {f"public.{part}": getattr(self.view.public, part) for part in _MOMENTS}
        if isinstance(self.classifier, LinearClassifier):
            return found | {"linear.weights": self.classifier.weights, "linear.bias": self.classifier.bias}
        assert isinstance(self.classifier, QuadraticClassifier)
        return found | {f"moments.{part}": getattr(self.classifier.moments, part) for part in _MOMENTS}

    @classmethod
    def from_tensors(
        cls, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> LearntClassifier:
        """As `settings` and `tensors` wrote it; ValueError, TypeError or KeyError where they do not fit."""
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


_MOMENTS = ("shares", "means", "covariances")


def _moments(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> ClassMoments:
    return ClassMoments(**{part: arrays[f"{prefix}.{part}"] for part in _MOMENTS})


def learn(data: NoisedData, *, classifier: str | None = None) -> LearntClassifier:
    """Learn a classifier from reports: debiased moments, drawn towards those of drawings where there are any.

    By default quadratic where the reports show, beyond chance, how each class spreads by itself, and without a
    prior; linear elsewhere. The rule sees the reports only.

    Args:
        data: The reports.
        classifier: A name of `CLASSIFIERS`; chosen from the reports by default.

    Returns:
        The classifier.

    ```python
    model = learn(read_noised("noised.npz"))
    ```
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
    """What the reports say of each class's mean and covariance, with what is known in public."""
    public = data.view.of_classes(data.plan.classes).public
    if data.plan.randomiser == "gaussian":
        return _from_gaussian(data)
    raw = RawMoments.of(
        data.plan.labelled_direction,
        data.labels,
        data.vectors,
        expected_shares=None if public is None else public.shares,
    )
    return class_moments.unguided(raw) if public is None else class_moments.shrink(raw, public)


def _from_gaussian(data: NoisedData) -> Learnt:
    """Class means under the noisy label channel; one covariance, the noise's taken off."""
    split, public = data.plan.gaussian_split, data.view.of_classes(data.plan.classes).public
    if public is not None and public.means.shape[1] != data.plan.dimension:
        raise InvalidInput("expected public moments of the reported dimension; make the release anew")
    shares = np.maximum(frequencies(split.label, data.labels).values, 0.2 / data.plan.classes)
    shares = shares / shares.sum()
    means = class_means(data.labels, data.vectors, split.label)
    variance = float(np.mean(means.standard_errors**2))
    centres, trust = means.values, 1.0
    second = second_moment(data.vectors, split.vector.sigma**2)
    noise = float(np.mean(second.standard_errors**2))
    if public is not None:
        centres, trust = class_moments.shrunk_means(centres, public.means, variance)
    pooled = second.values - np.einsum("k,ki,kj->ij", shares, centres, centres)
    if public is None:
        pooled = class_moments.at_least(pooled, 2.0 * float(np.sqrt(data.plan.dimension * noise)))
        each = np.repeat(pooled[None], data.plan.classes, axis=0)
    else:
        guess = public.pooled
        apart = pooled - guess
        pooled = guess + class_moments.signal(class_moments.beside_diagonal(apart), noise) * apart
        smallest = 0.3 * float(np.linalg.eigvalsh(guess)[0])
        each = np.stack([class_moments.at_least(pooled + own - guess, smallest) for own in public.covariances])
    return Learnt(moments=ClassMoments(shares=shares, means=centres, covariances=each), trust=trust)
