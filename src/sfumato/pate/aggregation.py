"""Votes into labels: charged first, noised from the secret stream, and never more than was planned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.accounting import NoEvent, Relation
from sfumato.datasets import Chosen
from sfumato.errors import InvalidInput
from sfumato.ledger import Charge, Ledger
from sfumato.mechanisms import Gaussian
from sfumato.pate.plan import VotePlan
from sfumato.pate.votes import MISSING, Integers, check_counts, count_votes
from sfumato.randomness import Bools, Sampler, SecretStream

PURPOSE = "labels by teachers' vote"
RELATION = Relation.ADD_REMOVE
"""Under which a plan is priced: a unit that comes or goes moves one teacher's votes."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The released labels, −1 where there is none, and what was charged for all of them.

    Attributes:
        labels: One for each query, −1 where there is none.
        asked: How many queries were asked.
        plan: How labels were made of votes.
        charge: What was charged; None without a ledger.
        private: False if noise was seeded, or the choice of the teachers' rows.
    """

    labels: Integers  # (queries,)
    asked: int
    plan: VotePlan
    charge: Charge | None
    private: bool

    @property
    def answered(self) -> int:
        return int((self.labels != MISSING).sum())


class Voting:
    """Teachers answer in several rounds under one plan, which the ledger holds before the first answer.

    *Guarantees*: the whole plan is reserved when the voting opens, and stays charged once something was asked;
    rounds that would ask more queries than planned are refused before anything is drawn, and once `answers`
    answers are given no further query is asked. How much noise is drawn depends on the number of queries alone.
    Public: the plan, which queries are asked, the answers. Secret: the counts, the noise.

    Args:
        plan: How labels are made of votes.
        ledger: Where the plan is reserved.
        unit: Whose rows one teacher has all of, such as "record" or "person"; a ledger must be of that
            unit.
        sampler: The secret stream; a seeded one, for tests, makes the answers not private.
        purpose: One line for the ledger's readers.
        chosen: By whose draws the teachers' rows were chosen among others, if they were.

    >>> voting = Voting(VotePlan(mechanism="gnmax", teachers=100, queries=2, sigma=4))
    >>> voting.ask(np.array([[91] + [1] * 9])).tolist()
    [0]
    """

    def __init__(
        self,
        plan: VotePlan,
        *,
        ledger: Ledger | None = None,
        unit: str | None = None,
        sampler: Sampler | None = None,
        purpose: str = PURPOSE,
        chosen: Chosen | None = None,
    ) -> None:
        self.plan = plan
        self.sampler: Sampler = SecretStream() if sampler is None else sampler
        self.private = (chosen or Chosen()).private_with(self.sampler)
        self.asked = 0
        self.answered = 0
        self._open = True
        self._reservation = None
        if ledger is not None:
            self._reservation = ledger.reserve(
                plan.event(),
                purpose=purpose,
                relation=RELATION,
                unit=_named(unit),
                private=self.private,
                begun=False,
            )

    @property
    def done(self) -> bool:
        """Whether nothing more may be asked."""
        return self.asked >= self.plan.queries or self._answers_left == 0

    @property
    def _answers_left(self) -> int:
        most = self.plan.queries if self.plan.answers is None else self.plan.answers
        return most - self.answered

    def ask(self, counts: npt.NDArray[Any], *, predictions: npt.NDArray[Any] | None = None) -> Integers:
        """A label for each row of counts (queries, classes), −1 where none is given.

        `predictions` (queries, classes) are the student's probabilities, for the interactive mechanism.
        """
        counts = check_counts(counts, teachers=self.plan.teachers, classes=self.plan.classes)
        self._check_room(len(counts))
        scores = self._scores(counts, predictions)
        labels = np.full(len(counts), MISSING, dtype=np.int64)
        if len(counts) == 0 or self.done:
            return labels
        if self._reservation is not None:
            self._reservation.begin()
        passed = self._passed(scores)
        winners = self.plan.winner().release_each(counts, self.sampler)
        asked = _until(passed, self._answers_left)
        passed[asked:] = False
        labels[passed] = winners[passed]
        self.asked += asked
        self.answered += int(passed.sum())
        return labels

    def close(self) -> Charge | None:
        """Settle for the whole plan, or for nothing if nothing was asked."""
        self._open = False
        if self._reservation is None:
            return None
        reservation, self._reservation = self._reservation, None
        return reservation.settle(None if reservation.lease.begun else NoEvent())

    def _check_room(self, queries: int) -> None:
        if not self._open:
            raise InvalidInput(
                "expected an open voting, got one that was closed; make another, with its own plan"
            )
        if self.asked + queries > self.plan.queries:
            raise InvalidInput(
                f"expected at most queries={self.plan.queries - self.asked} more queries under this plan, got "
                f"{queries}; plan for more of them before the first is asked"
            )

    def _scores(self, counts: Integers, predictions: npt.NDArray[Any] | None) -> npt.NDArray[np.float64]:
        """What is held against the threshold; moves by at most 1 with one vote. (queries,)"""
        check_predictions(self.plan, counts, predictions)
        known = 0.0 if predictions is None else self.plan.teachers * np.asarray(predictions, dtype=np.float64)
        return np.asarray((counts - known).max(axis=1), dtype=np.float64)

    def _passed(self, scores: npt.NDArray[np.float64]) -> Bools:
        """Which queries the teachers are sure enough of, by their noised scores."""
        if self.plan.threshold is None or self.plan.sigma_threshold is None:
            return np.ones(len(scores), dtype=np.bool_)
        # Each score moves by 1, all of them together by √queries: noise of σ₁ on each is one Gaussian release.
        test = Gaussian(
            sensitivity=math.sqrt(len(scores)), sigma=self.plan.sigma_threshold, dimension=len(scores)
        )
        return test.release(scores, self.sampler) >= self.plan.threshold


def _named(unit: str | None) -> str:
    if unit is None:
        raise InvalidInput(
            "expected unit=... with a ledger, got none; say whose rows one teacher has all of, such as 'record'"
        )
    return unit


def _until(passed: Bools, answers: int) -> int:
    """How many queries are asked until so many have passed; all of them, if fewer do."""
    reached = np.flatnonzero(np.cumsum(passed) >= answers)
    return int(reached[0]) + 1 if len(reached) else len(passed)


def aggregate(
    votes: npt.ArrayLike,
    plan: VotePlan,
    *,
    ledger: Ledger | None = None,
    unit: str | None = None,
    sampler: Sampler | None = None,
    predictions: npt.NDArray[Any] | None = None,
    purpose: str = PURPOSE,
) -> Answers:
    """Make labels from anyone's votes.

    Votes and plan are checked first, then the plan is charged to the ledger, then noise is drawn.

    Args:
        votes: (teachers, queries) of class numbers, −1 or NaN for a missing teacher.
        plan: How labels are made of votes.
        ledger: Where the plan is charged.
        unit: The unit all of whose rows one teacher has; required with a ledger.
        sampler: The secret stream; a seeded one, for tests, makes the answers not private.
        predictions: (queries, classes), the student's probabilities, for "interactive".
        purpose: One line for the ledger's readers.

    Returns:
        The labels, and what was charged.

    Raises:
        BudgetExceeded: If the ledger has no room. Nothing is drawn.

    >>> votes = np.array([[3, 1]] * 90 + [[3, 0]] * 10)
    >>> aggregate(votes, VotePlan(mechanism="gnmax", teachers=100, queries=2, sigma=4)).labels.tolist()
    [3, 1]
    """
    counts = count_votes(votes, classes=plan.classes)
    if len(np.asarray(votes)) != plan.teachers or len(counts) > plan.queries:
        raise InvalidInput(
            f"expected votes of teachers={plan.teachers} on at most queries={plan.queries}, got shape "
            f"{np.shape(votes)}; a teacher without a vote has -1"
        )
    check_predictions(plan, counts, predictions)
    voting = Voting(plan, ledger=ledger, unit=unit, sampler=sampler, purpose=purpose)
    labels = voting.ask(counts, predictions=predictions)
    return Answers(labels=labels, asked=voting.asked, plan=plan, charge=voting.close(), private=voting.private)


def check_predictions(plan: VotePlan, counts: Integers, predictions: npt.NDArray[Any] | None) -> None:
    """Refuse predictions that are missing, superfluous or no probabilities."""
    if (predictions is not None) != (plan.mechanism == "interactive"):
        raise InvalidInput(
            "expected predictions, the student's probabilities, with mechanism='interactive' and no other, got "
            f"mechanism={plan.mechanism!r}"
        )
    if predictions is not None:
        guesses = np.asarray(predictions)
        if guesses.shape != counts.shape or not np.all((guesses >= 0) & (guesses <= 1)):
            raise InvalidInput(f"expected predictions to be probabilities of shape {counts.shape}, got others")
