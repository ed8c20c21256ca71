"""Results of single runs: one release each, or one statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sfumato.results.record import Count, Delta, Epsilon, Json, Record, Share
from sfumato.results.result import Result


@dataclass(frozen=True, kw_only=True)
class Epoch(Record):
    """How good a network is on public data after an epoch."""

    epoch: Count
    test_accuracy: Share | None = None
    test_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class EpochReport(Epoch):
    """What may be said after an epoch, whose checkpoint is durable: all of it is public or was paid for.

    Attributes:
        epoch: The number of the epoch, from 1.
        test_accuracy: The share of right answers on public test data, if there are any.
        test_loss: The mean loss on them.
        step: How many steps were taken.
        epsilon_if_fixed_in_advance: ε of a plan of so many steps; not that of a run that is stopped here.
        held_out_accuracy: The noised share of right answers among records kept out, if it was paid for.
        held_out_epsilon: ε of that measurement, on top of the steps.

    >>> EpochReport(epoch=1, step=60, epsilon_if_fixed_in_advance=0.4, test_accuracy=0.93).test_accuracy
    0.93
    """

    step: Count
    epsilon_if_fixed_in_advance: Epsilon
    held_out_accuracy: Share | None = None
    held_out_epsilon: Epsilon | None = None


@dataclass(frozen=True, kw_only=True)
class Training(Result):
    """A model trained privately; its curve is in history.jsonl."""

    kind: ClassVar[str] = "training"
    epsilon: Epsilon
    delta: Delta
    test_accuracy: Share | None  # on public data; None: there was none
    test_loss: float | None = None
    test_auc: Share | None = None  # of two classes, where it was measured
    test_rmse: float | None = None  # of a number
    test_r2: float | None = None
    left_out: tuple[str, ...] = ()  # columns of a table that the model does not read, on purpose
    data: str | None = None  # a public data set's name; None: the user's own


@dataclass(frozen=True, kw_only=True)
class PlainTraining(Result):
    """A model trained without privacy, for the private half of a folder: it may not be published."""

    kind: ClassVar[str] = "plain-training"
    test_accuracy: Share | None
    test_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tuning(Result):
    """The best of a random number of private trials, and the settings that it was made with."""

    kind: ClassVar[str] = "tuning"
    epsilon: Epsilon
    delta: Delta
    test_accuracy: Share | None
    mean_trials: float | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ballot(Record):
    """One query: the votes for each class, the same with noise, the answer (-1: none), and the truth."""

    counts: tuple[Count, ...]
    noisy: tuple[float, ...]
    label: int
    truth: int


@dataclass(frozen=True, kw_only=True)
class Votes(Result):
    """Public images labelled by private vote, and a student that learned from the labels."""

    kind: ClassVar[str] = "votes"
    epsilon: Epsilon
    delta: Delta
    student_accuracy: Share  # on public images that the student never saw
    start_accuracy: Share | None = None  # without any private label
    label_accuracy: Share | None = None
    fold_accuracies: tuple[Share, ...] = ()
    teachers: Count
    asked: Count
    answered: Count
    private: bool = True
    plan: Mapping[str, Json]
    note: str = ""
    data: str | None = None
    ballots: tuple[Ballot, ...] = ()  # of data that everybody has: votes are private


@dataclass(frozen=True, kw_only=True)
class Reports(Result):
    """Records noised one by one before they left their owners, and what was learned from them."""

    kind: ClassVar[str] = "reports"
    epsilon: Epsilon
    delta: Delta
    people: Count
    test_accuracy: Share | None
    note: str = ""
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class Audit(Result):
    """A claimed ε beside what an attack proved of it."""

    kind: ClassVar[str] = "audit"
    claimed_epsilon: Epsilon
    delta: Delta
    lower_bound: Epsilon  # holds with probability 1 − alpha
    sure_bound: Epsilon  # holds with probability 1 − sure_alpha, and decides
    alpha: Share
    sure_alpha: Share
    refuted: bool
    verdict: str
    untested: tuple[str, ...] = ()
    details: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class EpidemicCurve(Record):
    """One epidemic under one way of giving out tests: the share of people infected, day by day."""

    method: str
    name: str
    epsilon: Epsilon | None = None  # that was asked for; None: no privacy
    epsilon_release: Epsilon | None = None
    epsilon_lifetime: Epsilon | None = None
    epsilon_person: Epsilon | None = None
    peak: Share
    prevalence: tuple[Share, ...]


@dataclass(frozen=True, kw_only=True)
class Tracing(Result):
    """Simulated epidemics in one town."""

    kind: ClassVar[str] = "tracing"
    people: Count
    days: Count
    delta: Delta
    unit: str
    curves: tuple[EpidemicCurve, ...]


@dataclass(frozen=True, kw_only=True)
class ChargeLine(Record):
    """One charge of a ledger, by itself and with all before it."""

    entry: Count
    purpose: str
    epsilon: Epsilon | None
    epsilon_spent: Epsilon
    private: bool


@dataclass(frozen=True, kw_only=True)
class LedgerStatement(Result):
    """A ledger: its budget, its charges, and what it refused."""

    kind: ClassVar[str] = "ledger"
    epsilon: Epsilon
    delta: Delta
    unit: str
    relation: str
    epsilon_spent: Epsilon
    epsilon_left: Epsilon
    balance: str | None = None
    epsilon_if_fixed_in_advance: Epsilon | None = None
    charges: tuple[ChargeLine, ...]
    refusal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Failure(Result):
    """A run that failed: one sentence says why."""

    kind: ClassVar[str] = "failure"
    title: str
    sentence: str
