"""What people can give at an ε that holds, image *and* label, each once: accuracy over several releases.

The images are those of a public data set, so that the noise may be seeded and a table repeated. What each image
looks like in a view is computed once; noise is drawn, and everything learnt, anew for each release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import datasets
from sfumato.datasets.drawings import TOGETHER
from sfumato.local import LOW_FREQUENCIES, NoisedData, ReportPlan, View, build_view, learn, prior_outputs
from sfumato.randomness import SecretStream

DELTA = 1e-5  # of Gaussian reports; the others need none
_SIDES = {"digits": 28}  # enlarged from 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """People's data, what of them is reported, and at what ε."""

    data: str = "mnist"
    view: str = TOGETHER
    randomiser: str = "direction"
    epsilon: float = 8.0

    @property
    def words(self) -> str:
        prior = "no prior" if self.view == LOW_FREQUENCIES else self.view
        return f"{self.data}, {prior}{', Gaussian' if self.randomiser == 'gaussian' else ''}"


CASES = (
    *(Case(epsilon=epsilon) for epsilon in (8.0, 4.0, 2.0)),
    *(Case(view="strokes", epsilon=epsilon) for epsilon in (8.0, 4.0, 2.0)),
    *(Case(view="strokes", randomiser="gaussian", epsilon=epsilon) for epsilon in (8.0, 4.0)),
    *(Case(view=LOW_FREQUENCIES, epsilon=epsilon) for epsilon in (8.0, 4.0)),
    *(Case(data="fashion-mnist", view="shapes", epsilon=epsilon) for epsilon in (8.0, 4.0)),
    Case(data="fashion-mnist", view=LOW_FREQUENCIES),
)


@dataclass(frozen=True, kw_only=True)
class Released:
    """Test accuracies of one case, a release each, and of the prior alone."""

    case: Case
    accuracies: tuple[float, ...]
    classifiers: tuple[str, ...]  # that the reports called for, a release each
    prior_accuracy: float | None

    @property
    def mean(self) -> float:
        return fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """The standard deviation from release to release."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "data": self.case.data,
            "view": self.case.view,
            "randomiser": self.case.randomiser,
            "epsilon": self.case.epsilon,
            "mean_accuracy": self.mean,
            "spread": self.spread,
            "accuracies": list(self.accuracies),
            "classifiers": list(self.classifiers),
            "prior_accuracy": self.prior_accuracy,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Released:
        return cls(
            case=Case(**{name: data[name] for name in ("data", "view", "randomiser", "epsilon")}),
            accuracies=tuple(data["accuracies"]),
            classifiers=tuple(data["classifiers"]),
            prior_accuracy=data["prior_accuracy"],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Seen:
    """A data set through a view: directions of its people, and of the public test images."""

    view: View
    people: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    tested: npt.NDArray[np.float32]
    truth: npt.NDArray[np.int64]
    prior: npt.NDArray[np.float32] | None  # what the prior says of the test images, if it knows the classes

    @classmethod
    def of(cls, data: str, kind: str, people: int) -> _Seen:
        train, test = (datasets.load(data, part, side=_SIDES.get(data)) for part in ("train", "test"))
        train = train.excerpt(people)
        view, prior = build_view(kind).of_classes(10), None
        if view.public is not None:
            seen, prior = prior_outputs(kind, test.inputs[:, 0])
            tested = view.directions_of(seen)
        else:
            tested = view.directions(test.inputs[:, 0])
        return cls(
            view=view,
            people=view.directions(train.inputs[:, 0]),
            labels=train.targets,
            tested=tested,
            truth=test.targets,
            prior=prior,
        )

    def accuracy(self, scores: npt.NDArray[Any]) -> float:
        return float(np.mean(np.argmax(scores, axis=1) == self.truth))


def run_releases(
    *,
    people: int = 60_000,
    releases: int = 5,
    cases: Sequence[Case] = CASES,
    progress: Callable[[str], None] | None = None,
) -> list[Released]:
    """Every case, `releases` times."""
    found, seen, at = [], None, None
    for case in cases:
        if progress is not None:
            progress(f"{case.words}, ε = {case.epsilon:g}")
        if seen is None or at != (case.data, case.view):
            seen, at = _Seen.of(case.data, case.view, people), (case.data, case.view)
        found.append(_releases(case, seen, releases))
    return found


def _releases(case: Case, seen: _Seen, releases: int) -> Released:
    plan = ReportPlan(
        classes=10,
        dimension=seen.view.dimension,
        epsilon=case.epsilon,
        delta=DELTA if case.randomiser == "gaussian" else 0.0,
        randomiser=case.randomiser,
    )
    accuracies, classifiers = [], []
    for seed in range(releases):
        labels, vectors = plan.randomise(seen.labels, seen.people, SecretStream(test_seed=seed))
        learnt = learn(NoisedData(labels=labels, vectors=vectors, plan=plan, view=seen.view, name=case.data))
        accuracies.append(seen.accuracy(learnt.scores_of(seen.tested, seen.prior)))
        classifiers.append(learnt.name)
    return Released(
        case=case,
        accuracies=tuple(accuracies),
        classifiers=tuple(classifiers),
        prior_accuracy=None if seen.prior is None else seen.accuracy(seen.prior),
    )
