"""PATE across holders: each hosts teachers, their votes are summed under masks, and the noisy counts open.

The coordinator and the recipients of the labels see noisy counts of all classes and no vote. So the price is
that of the whole histogram: one unit moves one teacher's vote, two counts by 1, Δ = √2 for each query. A test
whether the teachers agree reads a noisy histogram too, and costs as much as one (Papernot et al. 2018 price a
test of the maximum, with Δ = 1, but it needs a party that sees the votes). No party knows the votes, so that
there is no data-dependent figure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput, Refused
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import Losses, random_losses
from sfumato.holders.sums import (
    DeskSums,
    Part,
    SumRound,
    SumStudy,
    Values,
    calibrated_rounds,
    new_keys,
    public_keys,
)
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PublicKey
from sfumato.mechanisms.grid import Integers
from sfumato.pate import MISSING, NOISE_SHARE, PateSettings, PublicSide, VotePlan, count_votes
from sfumato.pate.pipeline import fold_accuracies_of, mean_over_images, start_accuracy_of, votes_on
from sfumato.pate.votes import assign, draw_key
from sfumato.randomness import SecretStream

MECHANISMS = ("gnmax", "confident")


@dataclass(frozen=True, kw_only=True)
class VoteTerms:
    """The rules by which votes of teachers at several holders make labels.

    "gnmax" releases a noisy histogram of each query. "confident" first releases one of every query with
    `test_noise` times the noise, and asks those again of which the largest noisy count reaches `threshold`, the
    first `answers` of them.

    Args:
        mechanism: "gnmax" or "confident".
        teachers: Number of teachers of each holder.
        queries: Most queries.
        classes: Number of classes.
        holders_per_unit: Most holders that have rows of one person; its votes move at each of them.
        answers: For "confident": most answers.
        threshold: For "confident": number of all teachers that must agree.
        test_noise: For "confident": noise of the test over that of an answer.

    Raises:
        InvalidInput: If a field is outside its range.

    >>> VoteTerms(mechanism="gnmax", teachers=2, queries=100, classes=10).holders_per_unit
    1
    """

    mechanism: str
    teachers: int
    queries: int
    classes: int
    holders_per_unit: int = 1
    answers: int | None = None
    threshold: float | None = None
    test_noise: float = 3.0

    def __post_init__(self) -> None:
        _validate.one_of("mechanism", self.mechanism, MECHANISMS)
        for name in ("teachers", "queries", "classes", "holders_per_unit"):
            _validate.integer(name, getattr(self, name), least=1)
        _validate.positive("test_noise", self.test_noise)
        confident = self.mechanism == "confident"
        if (self.answers is not None) != confident or (self.threshold is not None) != confident:
            raise InvalidInput("expected answers and threshold with mechanism='confident', and only with it")
        if self.answers is not None and not 1 <= _validate.integer("answers", self.answers) <= self.queries:
            raise InvalidInput(f"expected answers from 1 to {self.queries}, got answers={self.answers}")

    def rounds(self, parties: Parties, noise: float) -> tuple[SumRound, ...]:
        """Return rounds with √2 · `noise` on the counts of an answer, from the counted shares together."""

        def histograms(count: int, width: float) -> SumRound:
            part = Part(
                sensitivity=math.sqrt(2 * count) * self.holders_per_unit,
                dimension=count * self.classes,
                noise_multiplier=width / math.sqrt(count),
                shares=parties.counted,
                largest=parties.holders * self.teachers,
            )
            return SumRound((part,))

        if self.answers is None:
            return (histograms(self.queries, noise),)
        return histograms(self.queries, self.test_noise * noise), histograms(self.answers, noise)


def vote_study(
    terms: VoteTerms,
    parties: Parties,
    keys: Mapping[str, PublicKey],
    *,
    name: str,
    unit: str,
    epsilon: float,
    delta: float,
) -> SumStudy:
    """Return the study with the least noise that costs at most (ε, δ) against the best informed adversary."""
    return SumStudy(
        name=name,
        kind="votes",
        plan={"votes": {name: value for name, value in vars(terms).items() if value is not None}},
        unit=unit,
        delta=delta,
        parties=parties,
        rounds=calibrated_rounds(lambda noise: terms.rounds(parties, noise), epsilon=epsilon, delta=delta),
        keys=keys,
    )


def affordable_queries(
    parties: Parties, *, teachers: int, classes: int, epsilon: float, delta: float, most: int
) -> int:
    """Return the number of answers that leaves the noise at 0.3 of the remaining teachers."""
    one = VoteTerms(mechanism="gnmax", teachers=teachers, queries=1, classes=classes)
    (found,) = calibrated_rounds(lambda noise: one.rounds(parties, noise), epsilon=epsilon, delta=delta)
    left = parties.least * teachers
    return max(1, min(most, int((NOISE_SHARE * left / found.parts[0].deviation(parties.least)) ** 2)))


def labels_by_vote(terms: VoteTerms, desk: DeskSums, votes: Mapping[int, npt.NDArray[np.int64]]) -> Integers:
    """Return a label for each query, −1 where there is none, from noisy counts only.

    `votes` holds (teachers, queries) of each holder by place, −1 for a missing teacher.

    Raises:
        Refused: If a round was abandoned; the charges stay.
    """
    counts = {place: count_votes(one, classes=terms.classes) for place, one in votes.items()}

    def histograms(number: int, queries: Integers) -> npt.NDArray[np.float64]:
        def values(place: int) -> Values:
            def asked() -> list[npt.NDArray[np.int64]]:
                flat = np.zeros(desk.study.rounds[number - 1].dimension, dtype=np.int64)
                flat[: len(queries) * terms.classes] = counts[place][queries].reshape(-1)
                return [flat]

            return asked

        opened = desk.add_up(number, {place: values(place) for place in desk.keys})
        if opened is None:
            raise Refused("the round of votes was abandoned, as too many holders were lost; it stays charged")
        return opened.parts[0].reshape(-1, terms.classes)

    queries = np.arange(terms.queries)
    labels = np.full(terms.queries, MISSING, dtype=np.int64)
    if terms.answers is None:
        labels[:] = histograms(1, queries).argmax(axis=1)
        return labels
    assert terms.threshold is not None
    sure = np.flatnonzero(histograms(1, queries).max(axis=1) >= terms.threshold)[: terms.answers]
    labels[sure] = histograms(2, sure)[: len(sure)].argmax(axis=1)
    return labels


@dataclass(frozen=True, kw_only=True)
class SimulatedVotes:
    """The outcome of a vote in one process.

    Attributes:
        study: The study.
        terms: The rules for labels.
        labels: One for each public image that was asked about, −1 where there is none.
        label_accuracy: The share of labels that are right; None without any.
        student_accuracy: Over all public images, each tested by a student that did not see it.
        start_accuracy: The same without any private label.
        certificates: Of each holder that took part, by its place.
        seconds: Duration.
    """

    study: SumStudy
    terms: VoteTerms
    labels: Integers
    label_accuracy: float | None
    student_accuracy: float
    start_accuracy: float
    certificates: Mapping[int, Certificate]
    seconds: float


def simulate_votes(
    private: Dataset,
    public: Dataset,
    *,
    parties: Parties,
    terms: VoteTerms,
    settings: PateSettings,
    epsilon: float,
    delta: float = 1e-5,
    losses: Losses | None = None,
    ledgers: Mapping[int, Ledger] | None = None,
    masked: bool = True,
) -> SimulatedVotes:
    """Deal private rows out to holders, let their teachers label public images, and train a student.

    Args:
        private: The holders' rows, which declare their size and classes.
        public: Public images to label; their own labels only measure.
        parties: The number of holders, and of those that may be lost or collude.
        terms: The rules for labels.
        settings: Teachers and students, as in `pate.run`; its plan is not used.
        epsilon: The ε of all labels against the best informed adversary.
        delta: Its δ.
        losses: The holders lost in a round; by default `parties.dropped` holders chosen at random.
        ledgers: The holders' ledgers by place, from 1.
        masked: False leaves the masks out: the same sum, hidden from no party.

    Returns:
        The labels, the student's accuracy, and a certificate of each holder.

    Raises:
        InvalidInput: If too few holders can pay.
        Refused: If a round was abandoned.

    ```python
    parties = Parties(holders=100, dropped=5, colluding=10)
    terms = VoteTerms(mechanism="gnmax", teachers=2, queries=90, classes=10)
    done = simulate_votes(private, public, parties=parties, terms=terms, settings=settings, epsilon=1)
    print(done.student_accuracy, done.study.epsilons())
    ```
    """
    started = time.perf_counter()
    keys = new_keys(parties.holders)
    study = vote_study(
        terms,
        parties,
        public_keys(keys),
        name=f"labels of {public.name} at a desk",
        unit=private.unit,
        epsilon=epsilon,
        delta=delta,
    )
    desk = DeskSums(
        study, keys, losses=losses or random_losses(parties, SecretStream()), ledgers=ledgers, masked=masked
    )
    side = PublicSide.of(
        public.inputs, settings.adaptation, classes=terms.classes, progress=lambda stage, share: None
    )
    queries = side.queries(terms.queries)
    votes = _votes(private, side, queries, terms, parties, settings)
    labels = labels_by_vote(terms, desk, {place: votes[place - 1] for place in desk.keys})
    everywhere = np.full(len(public), MISSING, dtype=np.int64)
    everywhere[queries] = labels
    given = labels != MISSING
    folds = fold_accuracies_of(side, everywhere, public.targets, settings.student, folds=settings.folds)
    return SimulatedVotes(
        study=study,
        terms=terms,
        labels=labels,
        label_accuracy=float((labels == public.targets[queries])[given].mean()) if given.any() else None,
        student_accuracy=mean_over_images(folds, len(public), settings.folds),
        start_accuracy=start_accuracy_of(side, public.targets),
        certificates=desk.certificates(),
        seconds=time.perf_counter() - started,
    )


def _votes(
    private: Dataset,
    side: PublicSide,
    queries: Integers,
    terms: VoteTerms,
    parties: Parties,
    settings: PateSettings,
) -> Integers:
    """Return (holders, teachers, queries) votes: rows are dealt to holders, and to teachers by a keyed hash."""
    rows = np.arange(len(private))
    holder = rows % parties.holders
    teacher = np.empty(len(private), dtype=np.int64)
    for place in range(parties.holders):
        own = rows[holder == place]
        teacher[own] = assign(own, teachers=terms.teachers, key=draw_key(SecretStream()))
    teachers = parties.holders * terms.teachers
    plan = VotePlan(
        mechanism="gnmax", teachers=teachers, queries=terms.queries, classes=terms.classes, sigma=1.0
    )
    votes = votes_on(private, holder * terms.teachers + teacher, side, queries, replace(settings, plan=plan))
    return votes.reshape(parties.holders, terms.teachers, -1)
