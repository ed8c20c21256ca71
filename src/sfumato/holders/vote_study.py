"""PATE across holders: each hosts teachers, their votes are summed under masks, and the noisy counts open.

The coordinator, and whoever receives the labels, sees noisy counts of all classes and no vote. So everything is
priced for the whole histogram: one unit moves one teacher's vote, two counts by 1, Δ = √2 for each query. A
test whether the teachers are sure is read off a noisy histogram too, and costs as much as one (Papernot et al.
2018 price a test of the maximum, with Δ = 1, which somebody would have to compute in the clear). Nobody knows
the votes, so no data-dependent figure is computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput, Refused
from sfumato.holders.desk_round import Lost
from sfumato.holders.desk_sums import DeskSums, new_keys, public_keys
from sfumato.holders.parties import Parties
from sfumato.holders.simulation import random_losses
from sfumato.holders.sum_node import Values
from sfumato.holders.sum_study import SumStudy, calibrated_rounds
from sfumato.holders.sums import Part, SumRound
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PublicKey
from sfumato.mechanisms.grid import Integers
from sfumato.pate import MISSING, PateSettings, PublicSide, VotePlan, count_votes
from sfumato.pate.pipeline import fold_accuracies_of, mean_over_images, start_accuracy_of, votes_on
from sfumato.pate.plan import NOISE_SHARE
from sfumato.pate.shards import assign, draw_key
from sfumato.randomness import SecretStream

MECHANISMS = ("gnmax", "confident")


@dataclass(frozen=True, kw_only=True)
class VoteTerms:
    """How labels are made of votes of teachers at several holders.

    "gnmax" releases a noisy histogram of each query. "confident" first releases one of every query with
    `test_noise` times the noise, and asks those again of which the largest noisy count reaches `threshold`, the
    first `answers` of them.

    Args:
        mechanism: "gnmax" or "confident".
        teachers: How many teachers each holder hosts.
        queries: How many may be asked.
        classes: How many classes there are.
        holders_per_unit: With how many holders one person may be at most; its votes move at each of them.
        answers: For "confident": how many are answered at most.
        threshold: For "confident": how many of all teachers must agree.
        test_noise: For "confident": how much more noise the test has.

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
        """With noise of √2 · `noise` on the counts of an answer, of the shares that count together."""

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
    """The study with the least noise that costs at most (ε, δ) against the best informed adversary.

    Args:
        terms: How labels are made of votes.
        parties: How many holders there are, and how many may be lost or collude.
        keys: Their public signing keys by name.
        name: What reports and ledgers call the study.
        unit: Whose rows one teacher of a holder has all of.
        epsilon: The ε of all answers.
        delta: Their δ.

    Returns:
        The study, to be signed.
    """
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
    """How many answers leave the noise at 0.3 of the teachers who are left, as `pate.queries_for` does."""
    one = VoteTerms(mechanism="gnmax", teachers=teachers, queries=1, classes=classes)
    (found,) = calibrated_rounds(lambda noise: one.rounds(parties, noise), epsilon=epsilon, delta=delta)
    left = parties.least * teachers
    return max(1, min(most, int((NOISE_SHARE * left / found.parts[0].deviation(parties.least)) ** 2)))


def labels_by_vote(terms: VoteTerms, desk: DeskSums, votes: Mapping[int, npt.NDArray[np.int64]]) -> Integers:
    """A label for each query, −1 where there is none.

    Args:
        terms: As in the desk's study.
        desk: The holders, who have paid.
        votes: (teachers, queries) of each holder by place; −1 for a missing teacher.

    Returns:
        (queries,) labels, from noisy counts only.

    Raises:
        Refused: If a round was abandoned; what was charged stays charged.
    """
    shown = Ask(terms, desk, {place: count_votes(one, classes=terms.classes) for place, one in votes.items()})
    queries = np.arange(terms.queries)
    labels = np.full(terms.queries, MISSING, dtype=np.int64)
    if terms.answers is None:
        labels[:] = shown.histograms(1, queries).argmax(axis=1)
        return labels
    assert terms.threshold is not None
    sure = np.flatnonzero(shown.histograms(1, queries).max(axis=1) >= terms.threshold)[: terms.answers]
    labels[sure] = shown.histograms(2, sure)[: len(sure)].argmax(axis=1)
    return labels


@dataclass(frozen=True)
class Ask:
    """Histograms of some queries: the sums over the holders who are left."""

    terms: VoteTerms
    desk: DeskSums
    counts: Mapping[int, Integers]  # (queries, classes) of each holder

    def histograms(self, number: int, queries: Integers) -> npt.NDArray[np.float64]:
        room = self.desk.study.rounds[number - 1].dimension

        def values(place: int) -> Values:
            def asked() -> list[npt.NDArray[np.int64]]:
                flat = np.zeros(room, dtype=np.int64)
                flat[: len(queries) * self.terms.classes] = self.counts[place][queries].reshape(-1)
                return [flat]

            return asked

        opened = self.desk.add_up(number, {place: values(place) for place in self.desk.keys})
        if opened is None:
            raise Refused("the round of votes was abandoned, as too many holders were lost; it stays charged")
        return opened.parts[0].reshape(-1, self.terms.classes)


@dataclass(frozen=True, kw_only=True)
class SimulatedVotes:
    """What came of a vote at a desk.

    Attributes:
        study: The study that was rehearsed.
        terms: How labels were made of votes.
        labels: One for each public image that was asked about, −1 where there is none.
        label_accuracy: The share of labels that are right; None without any.
        student_accuracy: Over all public images, each tested by a student that did not see it.
        start_accuracy: The same without any private label.
        certificates: Of each holder that took part, by its place.
        seconds: How long it took.
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
    losses: Callable[[int], Mapping[int, Lost]] | None = None,
    ledgers: Mapping[int, Ledger] | None = None,
    masked: bool = True,
    side: PublicSide | None = None,
) -> SimulatedVotes:
    """Deal private rows out to holders, let their teachers label public images, and train a student.

    Args:
        private: The holders' rows, which declare their size and classes.
        public: Images to label, which anybody may have; their own labels only measure.
        parties: How many holders there are, and how many may be lost or collude.
        terms: How labels are made of votes.
        settings: What teachers and students are, as in `pate.run`; its plan says nothing here.
        epsilon: The ε of all labels against the best informed adversary.
        delta: Its δ.
        losses: Who is lost in a round; by default `parties.dropped` holders chosen at random.
        ledgers: The holders' ledgers by place, from 1.
        masked: False leaves the masks out: the same sum, hidden from nobody.
        side: What was prepared of the public images before, to be shared among runs.

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
    side = side or PublicSide.of(
        public.inputs, settings.adaptation, classes=terms.classes, progress=lambda what, share: None
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
    """(holders, teachers, queries): rows are dealt out, and each holder's by a keyed hash of its own."""
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
