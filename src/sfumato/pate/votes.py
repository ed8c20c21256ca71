"""Votes: one class id for each teacher and each query, from anyone's teachers."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.accounting import NoEvent, Relation
from sfumato.datasets import Chosen
from sfumato.errors import InvalidInput
from sfumato.ledger import Charge, Ledger
from sfumato.mechanisms import Gaussian
from sfumato.pate.plan import VotePlan
from sfumato.randomness import Bools, Sampler, SecretStream

Integers = npt.NDArray[np.int64]

MISSING = -1
"""The vote of a teacher who has none; no answer to a query is written the same way."""


def read_votes(path: str | os.PathLike[str]) -> Integers:
    """Read votes from a file.

    Raises:
        InvalidInput: If it holds something else.
    """
    place = Path(path)
    if not place.is_file():
        raise InvalidInput(f"expected a file of votes at {place}, got none")
    try:
        if place.suffix == ".csv":
            return as_votes(np.genfromtxt(place, delimiter=",", ndmin=2))
        return as_votes(np.load(place, allow_pickle=False))
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"expected {place} to hold teachers × queries class ids, as numpy.save or a CSV writes them"
        ) from error


def as_votes(votes: npt.ArrayLike) -> Integers:
    """The votes as whole numbers; a missing one is −1, or NaN.

    >>> as_votes([[1, 2], [float("nan"), 2]]).tolist()
    [[1, 2], [-1, 2]]
    """
    array = np.asarray(votes)
    if array.ndim != 2 or 0 in array.shape:
        raise InvalidInput(
            f"expected votes of shape (teachers, queries), at least one of each, got shape {array.shape}"
        )
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), MISSING, array)
        if not np.array_equal(array, np.floor(array)) or np.abs(array).max() > 2**31:
            raise InvalidInput(
                "expected votes to be class ids, whole numbers, got others; a NaN is a missing vote"
            )
    elif array.dtype.kind not in "iu":
        raise InvalidInput(f"expected votes to be class ids, whole numbers, got an array of {array.dtype}")
    return array.astype(np.int64)


def count_votes(votes: npt.ArrayLike, *, classes: int) -> Integers:
    """How many teachers voted for each class: (queries, classes).

    A missing vote counts for no class. A class id outside [0, classes) is refused; the message shows no vote.

    Raises:
        InvalidInput: If a vote is for no class.

    >>> count_votes([[0, 1], [0, 2], [-1, 2]], classes=3).tolist()
    [[2, 0, 0], [0, 1, 2]]
    """
    classes = _validate.integer("classes", classes, least=1)
    array = as_votes(votes)
    if array.min() < MISSING or array.max() >= classes:
        raise InvalidInput(
            f"expected class ids from 0 to {classes - 1}, or -1 for a missing vote, got one outside; "
            f"declare the right number of classes (got classes={classes})"
        )
    queries = array.shape[1]
    present = array != MISSING
    cells = (np.arange(queries) * classes + array)[present]
    return np.bincount(cells, minlength=queries * classes).reshape(queries, classes).astype(np.int64)


def check_counts(counts: npt.NDArray[Any], *, teachers: int, classes: int) -> Integers:
    """Counts that so many teachers can have given."""
    array = np.asarray(counts)
    if array.ndim != 2 or array.shape[1] != classes or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"expected whole counts of shape (queries, {classes}), got {array.dtype} of shape {array.shape}; "
            "make them with count_votes"
        )
    if array.size and (array.min() < 0 or array.sum(axis=1).max() > teachers):
        raise InvalidInput(f"expected counts of at most teachers={teachers} votes a query, got others")
    return array.astype(np.int64)


# Shards: each record's teacher follows from its own unit id and a secret key, and nothing else

NO_ROW = -1
_KEY_BYTES = 32
_DEVIATIONS = 6.0  # of a shard's size above its mean, for which there is room


def draw_key(sampler: Sampler) -> bytes:
    """A key for `assign`, from the secret stream.

    >>> from sfumato.randomness import SecretStream
    >>> len(draw_key(SecretStream()))
    32
    """
    return sampler.integers(256, _KEY_BYTES).astype(np.uint8).tobytes()


def assign(unit_ids: npt.ArrayLike, *, teachers: int, key: bytes) -> Integers:
    """The teacher of each record: BLAKE2b(key, id) modulo `teachers`.

    *Guarantees*: a record's teacher depends on its own id and the key alone. No other record that comes, goes
    or changes places moves it; records of one unit have one teacher. So shards are disjoint, and one unit's
    records reach one teacher only. Public: the number of teachers. Secret: the key (who knows it knows which
    teacher saw whom, which breaks no guarantee).

    >>> key = bytes(32)
    >>> bool(assign(["ann", "bob"], teachers=5, key=key)[1] == assign(["bob"], teachers=5, key=key)[0])
    True
    """
    teachers = _validate.integer("teachers", teachers, least=1)
    if len(key) != _KEY_BYTES:
        raise InvalidInput(f"expected a key of {_KEY_BYTES} bytes, got {len(key)}; draw one with draw_key")
    ids = np.asarray(unit_ids)
    if ids.ndim != 1:
        raise InvalidInput(f"expected one unit id a record, got an array of shape {ids.shape}")
    digests = (hashlib.blake2b(str(unit).encode(), key=key, digest_size=8).digest() for unit in ids.tolist())
    return np.array([int.from_bytes(digest, "big") % teachers for digest in digests], dtype=np.int64)


def capacity_for(public_size: int, teachers: int) -> int:
    """Tell how many rows fit a shard: six standard deviations above the average of the declared size.

    >>> capacity_for(60000, 100) >= 600
    True
    """
    mean = _validate.integer("public_size", public_size, least=1) / _validate.integer(
        "teachers", teachers, least=1
    )
    return min(public_size, math.ceil(mean + _DEVIATIONS * math.sqrt(mean)) + 1)


def shard_table(teacher_of: Integers, *, teachers: int, capacity: int) -> Integers:
    """Rows of each teacher, (teachers, capacity), −1 where there is none; rows beyond the capacity are left
    out.

    Capacity is public: were it the largest shard, one record could change the shapes, and so the rounding, of
    every teacher's sums.

    >>> shard_table(np.array([1, 0, 1]), teachers=2, capacity=2).tolist()
    [[1, -1], [0, 2]]
    """
    order = np.argsort(teacher_of, kind="stable")
    owner = teacher_of[order]
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    fits = place < capacity
    table = np.full((teachers, capacity), NO_ROW, dtype=np.int64)
    table[owner[fits], place[fits]] = order[fits]
    return table


# Votes into labels: charged first, noised from the secret stream, never more than was planned

PURPOSE = "labels by teachers' vote"
RELATION = Relation.ADD_REMOVE
"""Under which a plan is priced: a unit that comes or goes moves one teacher's votes."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The released labels, −1 where there is none, and the charge for all of them."""

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
        """Return the scores for the threshold test, (queries,); one vote moves each by at most 1."""
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
        The labels, and the charge.

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
