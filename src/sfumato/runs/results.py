"""Typed results of runs: frozen models that hold nothing but figures that were paid for, or are public.

A kind of result is a subclass of `Result` with a tag; to define it is to register it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sfumato.errors import InvalidInput
from sfumato.schema import Count, Delta, Epsilon, Json, Model, Share, read

FORMAT = 2


class Result(Model, tag_field="kind"):
    """The figures of a run of one kind."""

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "format": FORMAT, **super().to_json()}


def kinds() -> dict[str, type[Result]]:
    """Return every kind of result that is defined by now, by its tag."""
    return {str(made.__struct_config__.tag): made for made in _below(Result)}


def _below(made: type[Result]) -> Iterator[type[Result]]:
    for inner in made.__subclasses__():
        yield inner
        yield from _below(inner)


def from_json(data: Mapping[str, Any]) -> Result:
    """Return the result that `to_json` wrote.

    >>> from_json({"kind": "failure", "format": 2, "title": "a stage", "sentence": "no data"})
    Failure(title='a stage', sentence='no data')
    """
    if data.get("format") != FORMAT:
        raise InvalidInput(
            f"expected a result of format {FORMAT}, got format={data.get('format')!r}; update sfumato"
        )
    kind, known = data.get("kind"), kinds()
    if not isinstance(kind, str) or kind not in known:
        raise InvalidInput(
            f"expected a result of a known kind, got kind={kind!r}; known: {', '.join(sorted(known))}"
        )
    return read(known[kind], {name: value for name, value in data.items() if name != "format"})


class Epoch(Model):
    """How good a network is on public data after an epoch."""

    epoch: Count
    test_accuracy: Share | None = None
    test_loss: float | None = None


class EpochReport(Epoch):
    """The publishable report of an epoch with a durable checkpoint: each value is public or paid for.

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


class Training(Result, tag="training"):
    """A model trained privately; its curve is in history.jsonl."""

    epsilon: Epsilon
    delta: Delta
    test_accuracy: Share | None  # on public data; None: there was none
    test_loss: float | None = None
    test_auc: Share | None = None  # of two classes, where it was measured
    test_rmse: float | None = None  # of a number
    test_r2: float | None = None
    left_out: tuple[str, ...] = ()  # columns of a table that the model does not read, on purpose
    data: str | None = None  # a public data set's name; None: the user's own


class PlainTraining(Result, tag="plain-training"):
    """A model trained without privacy, for the private half of a folder: it may not be published."""

    test_accuracy: Share | None
    test_loss: float | None = None


class Tuning(Result, tag="tuning"):
    """The best of a random number of private trials, and the settings that it was made with."""

    epsilon: Epsilon
    delta: Delta
    test_accuracy: Share | None
    mean_trials: float | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    data: str | None = None


class Ballot(Model):
    """One query: the votes for each class, the same with noise, the answer (-1: none), and the truth."""

    counts: tuple[Count, ...]
    noisy: tuple[float, ...]
    label: int
    truth: int


class Votes(Result, tag="votes"):
    """Public images labelled by private vote, and a student that learned from the labels."""

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


class Reports(Result, tag="reports"):
    """A model learned from records that were noised one by one before they left their owners."""

    epsilon: Epsilon
    delta: Delta
    people: Count
    test_accuracy: Share | None
    note: str = ""
    data: str | None = None


class Audit(Result, tag="audit"):
    """A claimed ε beside the lower bounds that an attack proved."""

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


class EpidemicCurve(Model):
    """One epidemic under one way of giving out tests: the share of people infected, day by day."""

    method: str
    name: str
    epsilon: Epsilon | None = None  # that was asked for; None: no privacy
    epsilon_release: Epsilon | None = None
    epsilon_lifetime: Epsilon | None = None
    epsilon_person: Epsilon | None = None
    peak: Share
    prevalence: tuple[Share, ...]


class Tracing(Result, tag="tracing"):
    """Simulated epidemics in one town."""

    people: Count
    days: Count
    delta: Delta
    unit: str
    curves: tuple[EpidemicCurve, ...]


class ChargeLine(Model):
    """One charge of a ledger, by itself and with all before it."""

    entry: Count
    purpose: str
    epsilon: Epsilon | None
    epsilon_spent: Epsilon
    private: bool


class LedgerStatement(Result, tag="ledger"):
    """A ledger: its budget, its charges, and a refusal, if any."""

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


class Failure(Result, tag="failure"):
    """A run that failed: one sentence says why."""

    title: str
    sentence: str


class SeveralHolders(Result, tag="several-holders"):
    """A model of several holders that share no data, with the ε of one unit against each adversary."""

    holders: Count
    dropped: Count  # that may be lost in each round
    colluding: Count  # that may collude with the coordinator
    threshold: Count  # that must help to open a round
    rounds: Count
    numbers: Count  # that are added up in a round
    unit: str = "record"
    recipient: Epsilon  # ε against the recipient of the model; likewise the next three
    holder: Epsilon
    coordinator: Epsilon
    coalition: Epsilon
    delta: Delta
    test_accuracy: Share | None = None
    data: str | None = None
    pictures: tuple[str, ...] = ()  # of drawings: a holder's noised input, its message, the sum
