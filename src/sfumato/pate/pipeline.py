"""From private rows and public images to a student: shards, teachers, votes, labels, student, run folder."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _validate
from sfumato.caveats import Code
from sfumato.datasets import Dataset, public_name
from sfumato.datasets.drawings import NETS
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.models import JoinedPriors, prior_note
from sfumato.models.rows_apart import rows_apart
from sfumato.pate.plan import VotePlan
from sfumato.pate.public import Adaptation, Representation, StudentConfig, adapt, learn, least_sure
from sfumato.pate.teachers import TeacherConfig, vote
from sfumato.pate.votes import (
    MISSING,
    PURPOSE,
    RELATION,
    Answers,
    Integers,
    Voting,
    assign,
    capacity_for,
    count_votes,
    draw_key,
    shard_table,
)
from sfumato.randomness import Sampler, SecretStream
from sfumato.released import ModelCard, Predictor, Released, model_bytes
from sfumato.runs import Ballot, Votes, write_run
from sfumato.storage import RunFolder, json_bytes

CAVEATS = (
    Code.PRIOR_ADAPTED(),
    Code.SETTINGS_UNCHARGED(rows="the last 10,000 rows of MNIST's training set; that choice is not charged"),
    Code.ONE_UNIT_ID(),
)
_SHAPE = (1, 28, 28)
Progress = Callable[[str, float], None]  # the stage, and the share of it that is done


@dataclass(frozen=True, kw_only=True)
class PateSettings:
    """Everything that is decided before private rows are touched.

    >>> plan = VotePlan(mechanism="gnmax", teachers=100, queries=200, sigma=20)
    >>> PateSettings(plan=plan).folds
    10
    """

    plan: VotePlan
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    adaptation: Adaptation = field(default_factory=Adaptation)
    student: StudentConfig = field(default_factory=StudentConfig)
    folds: int = 10

    def __post_init__(self) -> None:
        _validate.integer("folds", self.folds, least=2, remedy="a student is tested on images it never saw")
        if self.folds % 2:
            raise InvalidInput(
                f"expected an even number of folds, got folds={self.folds}; halves are adapted to"
            )


@dataclass(frozen=True, kw_only=True)
class PateResult:
    """The labels, the student, and how good it is on public images it and its features never saw."""

    answers: Answers
    epsilon: float
    delta: float
    student_accuracy: float  # mean over all public images, each tested in its own fold
    fold_accuracies: tuple[float, ...]
    start_accuracy: float  # the same without any private label: ε = 0
    label_accuracy: float | None  # of the answers
    model: JoinedPriors
    card: ModelCard
    votes: Integers  # (teachers, asked): private
    queries: Integers  # positions of the public images asked about
    certificate: Certificate
    seconds: float

    @property
    def classes(self) -> int:
        return self.answers.plan.classes

    @property
    def predictor(self) -> Predictor:
        """The student as it answers."""
        student = Released(module=self.model, card=self.card)
        return Predictor.of(student, self.certificate)

    def published(self, data: str, *, note: str = "", ballots: Sequence[Ballot] = ()) -> Votes:
        """The result of a run on the images of `data`; `ballots` only where everybody has the rows."""
        return Votes(**self.to_json(), data=public_name(data), note=note, ballots=tuple(ballots))

    def to_json(self) -> dict[str, Any]:
        """Return the publishable figures."""
        names = ("epsilon", "delta", "student_accuracy", "fold_accuracies", "start_accuracy", "label_accuracy")
        return {
            **{name: getattr(self, name) for name in names},
            "teachers": self.answers.plan.teachers,
            "asked": self.answers.asked,
            "answered": self.answers.answered,
            "private": self.answers.private,
            "plan": self.answers.plan.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class PublicSide:
    """Two representations of the public images, each adapted to one half and used to judge the other.

    ```python
    side = PublicSide.of(public.inputs, Adaptation(), classes=10, progress=print)
    result = run(private, public, settings, side=side)  # and once more with other settings
    ```
    """

    images: Tensor  # the public images
    half: Integers  # to which half each image belongs
    views: tuple[Representation, Representation]  # the representation adapted to each half
    features: tuple[Tensor, Tensor]  # the features of all images by each
    sureness: npt.NDArray[np.float32]  # how sure the public features are of each image

    @classmethod
    def of(
        cls, images: npt.NDArray[np.float32], how: Adaptation, *, classes: int, progress: Progress
    ) -> PublicSide:
        half = (np.arange(len(images)) * 2 // len(images)).astype(np.int64)

        def view(own: int) -> Representation:
            def shown(step: int) -> None:
                progress("adapting the prior", (own + step / how.steps) / 2)

            return adapt(images[half != own], how, classes=classes, progress=shown)

        views = view(0), view(1)
        tensor = torch.from_numpy(images)
        features = views[0].features(tensor), views[1].features(tensor)
        sure = np.empty(len(images), dtype=np.float32)
        for own in (0, 1):
            sure[half == own] = least_sure(
                views[own].head, features[own][torch.from_numpy(half == own)]
            ).numpy()
        return cls(images=tensor, half=half, views=views, features=features, sureness=sure)

    def queries(self, count: int) -> Integers:
        """The images that the public features are least sure of, in order of their position."""
        return np.sort(np.argsort(self.sureness, kind="stable")[:count])


def run(
    private: Dataset,
    public: Dataset,
    settings: PateSettings,
    *,
    delta: float = 1e-5,
    unit_ids: npt.ArrayLike | None = None,
    ledger: Ledger | None = None,
    out: str | os.PathLike[str] | None = None,
    sampler: Sampler | None = None,
    side: PublicSide | None = None,
    features: tuple[Tensor, Tensor] | None = None,
    progress: Progress = lambda stage, share: None,
) -> PateResult:
    """Label public images by private teachers and train a student; the plan is charged before the first answer.

    Labels of `public` are used to measure, never to choose or to learn.

    Args:
        private: The teachers' images, with a declared size.
        public: Images to label, which are public.
        settings: Everything that is decided before private rows are touched.
        delta: The δ at which the plan is priced.
        unit_ids: Whose each private row is; without them every row is a unit of its own.
        ledger: Where the plan is charged before the first answer.
        out: A run folder.
        sampler: The secret stream; a seeded one, for tests, makes the run not private.
        side: Representations of the public images, to be shared among runs.
        features: Features of the private rows by the views of `side`.
        progress: Called with the stage and the share of it that is done.

    Returns:
        The labels, the student and its accuracy.

    Raises:
        BudgetExceeded: If the ledger has no room.

    ```python
    settings = PateSettings(plan=VotePlan(mechanism="gnmax", teachers=250, queries=500, sigma=40))
    result = run(datasets.load("mnist"), datasets.load("mnist", "test"), settings, ledger=ledger)
    ```
    """
    started = time.perf_counter()
    classes = _check(private, public, settings, unit_ids)
    folder = None if out is None else RunFolder.begin(out)
    sampler = SecretStream() if sampler is None else sampler
    side = side or PublicSide.of(public.inputs, settings.adaptation, classes=classes, progress=progress)
    queries = side.queries(settings.plan.queries)
    voting = Voting(
        settings.plan,
        ledger=ledger,
        unit=private.unit,
        sampler=sampler,
        purpose=PURPOSE,
        chosen=private.chosen,
    )
    ids = np.arange(len(private)) if unit_ids is None else np.asarray(unit_ids)
    teacher_of = assign(ids, teachers=settings.plan.teachers, key=draw_key(sampler))
    votes = votes_on(private, teacher_of, side, queries, settings, features=features, progress=progress)
    labels = voting.ask(
        count_votes(votes, classes=classes), predictions=_predictions(side, queries, settings.plan)
    )
    answers = Answers(
        labels=labels, asked=voting.asked, plan=settings.plan, charge=voting.close(), private=voting.private
    )
    progress("teaching the student", 0.0)
    result = _result(
        public,
        side,
        queries,
        votes,
        answers,
        settings,
        delta,
        _certificate(answers, settings, delta, ledger, private, sampler),
        started,
    )
    if folder is not None:
        _write(folder, result, settings, private.name)
    return result


def _check(private: Dataset, public: Dataset, settings: PateSettings, unit_ids: npt.ArrayLike | None) -> int:
    plan = settings.plan
    if unit_ids is None and private.unit != "record":
        raise InvalidInput(
            f"expected unit_ids=... with unit={private.unit!r}, got none; without them every row is a unit, "
            "and one's rows would go to several teachers"
        )
    if unit_ids is not None and np.shape(unit_ids) != (len(private),):
        raise InvalidInput("expected one unit id for each private row, got another number of them")
    if public.visibility != "public":
        raise InvalidInput("expected public to be public data; students may not learn from private images")
    if public.shape != _SHAPE or private.shape != _SHAPE:
        raise InvalidInput(
            f"expected images of shape {_SHAPE}, as the prior takes them, got {private.shape} and "
            f"{public.shape}; load them with side=28"
        )
    if private.public_size is None or private.classes is None:
        raise InvalidInput(f"expected {private.name} to declare its size and classes; its rows are not counted")
    if plan.classes != private.classes or plan.queries > len(public):
        raise InvalidInput(
            f"expected classes={private.classes} and queries <= {len(public)}, got classes={plan.classes} and "
            f"queries={plan.queries}"
        )
    if settings.folds > len(public):
        raise InvalidInput(
            f"expected folds <= {len(public)}, the number of public images, got folds={settings.folds}"
        )
    return private.classes


def votes_on(
    private: Dataset,
    teacher_of: Integers,
    side: PublicSide,
    queries: Integers,
    settings: PateSettings,
    *,
    features: tuple[Tensor, Tensor] | None = None,
    progress: Progress = lambda stage, share: None,
) -> Integers:
    """(teachers, queries); a teacher's vote on an image of half h comes from its training on view h."""
    teachers, size = settings.plan.teachers, private.public_size
    assert size is not None
    table = shard_table(teacher_of, teachers=teachers, capacity=capacity_for(size, teachers))
    images, targets = private.tensors()
    config, classes = settings.teacher, settings.plan.classes
    if config.kind != "head":
        progress("training the teachers", 0.0)
        return vote(images, targets, table, side.images[queries], config, classes=classes)
    votes = np.full((teachers, len(queries)), MISSING, dtype=np.int64)
    for own in (0, 1):
        progress("training the teachers", own / 2)
        mine, view = side.half[queries] == own, side.views[own]
        if not mine.any():  # few queries may all lie in one half
            continue
        asked = side.features[own][queries[mine]]
        seen = rows_apart(view.features, images) if features is None else features[own]
        votes[:, mine] = vote(seen, targets, table, asked, config, classes=classes, start=view.head)
    return votes


def _predictions(side: PublicSide, queries: Integers, plan: VotePlan) -> npt.NDArray[np.float64] | None:
    """Return the student's probabilities before it has any label, for the interactive mechanism."""
    if plan.mechanism != "interactive":
        return None
    guesses = np.empty((len(queries), plan.classes))
    with torch.no_grad():
        for own in (0, 1):
            mine = side.half[queries] == own
            guesses[mine] = torch.softmax(side.views[own].head(side.features[own][queries[mine]]), 1).numpy()
    return guesses


def fold_accuracies_of(
    side: PublicSide, labels: Integers, targets: Integers, config: StudentConfig, *, folds: int
) -> tuple[float, ...]:
    """Accuracy on each fold of a student that learned from the other folds, on features that never saw it."""
    count = len(targets)
    fold = np.arange(count) * folds // count
    found = []
    for number in range(folds):
        tested = fold == number
        view = int(side.half[np.flatnonzero(tested)[0]])
        features, others = side.features[view], torch.from_numpy(~tested)
        head = learn(side.views[view].head, features[others], labels[~tested], config)
        with torch.no_grad():
            guess = head(features[~others]).argmax(1).numpy()
        found.append(float((guess == targets[tested]).mean()))
    return tuple(found)


def _result(
    public: Dataset,
    side: PublicSide,
    queries: Integers,
    votes: Integers,
    answers: Answers,
    settings: PateSettings,
    delta: float,
    certificate: Certificate,
    started: float,
) -> PateResult:
    everywhere = np.full(len(public), MISSING, dtype=np.int64)
    everywhere[queries] = answers.labels
    accuracies = fold_accuracies_of(side, everywhere, public.targets, settings.student, folds=settings.folds)
    head = learn(side.views[0].head, side.features[0], everywhere, settings.student)
    model = side.views[0].predictor(head)
    given = answers.labels != MISSING
    right = answers.labels[given] == public.targets[queries[given]]
    return PateResult(
        answers=answers,
        epsilon=settings.plan.epsilon(delta),
        delta=delta,
        student_accuracy=mean_over_images(accuracies, len(public), settings.folds),
        fold_accuracies=accuracies,
        start_accuracy=start_accuracy_of(side, public.targets),
        label_accuracy=float(right.mean()) if given.any() else None,
        model=model,
        card=_card(public, settings, model),
        votes=votes,
        queries=queries,
        certificate=certificate,
        seconds=time.perf_counter() - started,
    )


def mean_over_images(accuracies: tuple[float, ...], count: int, folds: int) -> float:
    sizes = np.bincount(np.arange(count) * folds // count, minlength=folds)
    return float(np.average(accuracies, weights=sizes))


def start_accuracy_of(side: PublicSide, targets: Integers) -> float:
    guess = np.empty(len(targets), dtype=np.int64)
    with torch.no_grad():
        for own in (0, 1):
            mine = torch.from_numpy(side.half == own)
            guess[side.half == own] = side.views[own].head(side.features[own][mine]).argmax(1).numpy()
    return float((guess == targets).mean())


def _card(public: Dataset, settings: PateSettings, model: JoinedPriors) -> ModelCard:
    """The student starts from a prior, and goes on from there: no weight of it is the prior's own."""
    names = public.class_names or tuple(str(number) for number in range(settings.plan.classes))
    return ModelCard(
        architecture=JoinedPriors.architecture,
        classes=names,
        shape=_SHAPE,
        settings={"nets": len(model.nets), "prior": _digests(settings.adaptation.prior)},
    )


def _digests(prior: str) -> dict[str, str]:
    """Return the digests of the public weights before they were adapted."""
    return {name: prior_note(name)["sha256"] for name in NETS[prior]}


def _certificate(
    answers: Answers,
    settings: PateSettings,
    delta: float,
    ledger: Ledger | None,
    rows: Dataset,
    sampler: Sampler,
) -> Certificate:
    caveats = (*CAVEATS, *rows.chosen.caveats_with(sampler))
    plan = {"votes": settings.plan.to_json(), "prior": _digests(settings.adaptation.prior)}
    if ledger is not None and answers.charge is not None:
        return ledger.certificate(answers.charge, plan=plan, caveats=caveats)
    return Unrecorded(delta=delta).pay_for(
        settings.plan.event(),
        purpose=PURPOSE,
        relation=RELATION,
        unit=rows.unit,
        private=answers.private,
        plan=plan,
        caveats=caveats,
    )


def _write(folder: RunFolder, result: PateResult, settings: PateSettings, data: str) -> None:
    labels = [
        {"image": int(image), "label": int(label)}
        for image, label in zip(result.queries, result.answers.labels, strict=True)
    ]
    buffer = io.BytesIO()
    np.save(buffer, result.votes, allow_pickle=False)
    write_run(
        folder,
        result.published(data),
        certificate=result.certificate,
        plan=asdict(settings),
        model=model_bytes(result.card, result.model.state_dict()),
        release={"labels.jsonl": b"".join(json_bytes(line, indent=None) for line in labels)},
        private={"votes.npy": buffer.getvalue()},
        seconds=result.seconds,
    )
