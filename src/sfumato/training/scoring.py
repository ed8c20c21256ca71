"""A search among settings that is private: rows split by coins, and scores with noise, charged."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from sfumato import _validate
from sfumato.accounting import Relation
from sfumato.datasets import Chosen
from sfumato.ledger import Certificate, ChargeRequest, Ledger, Unrecorded
from sfumato.mechanisms import DiscreteLaplace
from sfumato.randomness import Sampler, SecretStream
from sfumato.training.moment import refuse_listeners
from sfumato.training.own_code import OWN_CODE, brings
from sfumato.training.predictions import predictions
from sfumato.training.whole_search import refuse_beyond_budget

PURPOSE = "score of a search"
SPLIT = (
    "not private: the rows were split by position, so that a record that leaves moves others; give "
    "cv=sfumato.CoinSplit(...)"
)


class NoisyAccuracyScorer(BaseEstimator):
    """A scorer for `GridSearchCV` and the like: the accuracy by noisy counts, each charged before it is taken.

    *Guarantees*: released are the counts of right and of wrong answers with discrete Laplace noise of scale
    1/ε. A record is in one count of the part that is scored, and adding or removing it moves that count by one:
    ε-differential privacy a score. For that each row is answered by itself, as in `Predictions`: estimators
    that Sfumato does not know are shown one row at a time. Every part and every setting is charged; so is every
    training. `certificate_` is that of the last score.
    Ghosh, Roughgarden & Sundararajan 2012; Dwork & Roth 2014, theorem 3.6.

    Args:
        epsilon: The ε of each score.
        ledger: The ledger that each score is charged to; None records nothing.
        delta: The δ at which scores are stated where no ledger is given; a ledger has its own.
        unit: What one row is, such as "record" or "person"; a ledger of another unit refuses the score.
        sampler: Where the noise comes from; a fresh secret stream by default. A seeded one is for tests: what a
            search chooses by it is not private.

    >>> from sklearn.dummy import DummyClassifier
    >>> X, y = np.zeros((1000, 1)), np.zeros(1000)
    >>> NoisyAccuracyScorer(1.0)(DummyClassifier().fit(X, y), X, y) > 0.9
    True
    """

    def __init__(
        self,
        epsilon: float,
        *,
        ledger: Ledger | None = None,
        delta: float = 1e-5,
        unit: str = "record",
        sampler: Sampler | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.ledger = ledger
        self.delta = delta
        self.unit = unit
        self.sampler = sampler

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        mechanism = self._mechanism()
        sampler = SecretStream() if self.sampler is None else self.sampler
        refuse_listeners()
        asked = predictions(estimator)
        own = asked.own_code or brings(X, y)
        part = _part_of(estimator)
        chosen = part or Chosen()
        caveats = (() if part else (SPLIT,)) + ((OWN_CODE,) if own else ()) + chosen.caveats_with(sampler)
        self.certificate_: Certificate = (self.ledger or Unrecorded(delta=self.delta)).pay_for(
            mechanism.event(),
            purpose=PURPOSE,
            relation=Relation.ADD_REMOVE,
            unit=self.unit,
            private=chosen.private_with(sampler),
            caveats=caveats,
        )
        right = int(asked.right(X, y).sum()) if len(y) else 0
        noisy = mechanism.release(np.array([right, len(y) - right]), sampler)
        counts = [max(0, int(count)) for count in noisy]
        return counts[0] / max(1, sum(counts))

    def to_be_charged(self) -> ChargeRequest:
        """What one score charges, so that a search is refused as a whole.

        Returns:
            The charge.
        """
        event = self._mechanism().event()
        return ChargeRequest(event=event, purpose=PURPOSE, relation=Relation.ADD_REMOVE, unit=self.unit)

    def _mechanism(self) -> DiscreteLaplace:
        return DiscreteLaplace.calibrated(sensitivity=1, epsilon=self.epsilon)


def _part_of(estimator: Any) -> Chosen | None:
    """By whose draws the part that scikit-learn scores was chosen; None if by none, as by position."""
    frame = inspect.currentframe()
    while frame is not None:
        seen = frame.f_locals
        of_scikit_learn = str(frame.f_globals.get("__name__")).partition(".")[0] == "sklearn"
        if of_scikit_learn and seen.get("estimator") is estimator and "test" in seen:
            return chosen_by_coins(seen["test"])
        frame = frame.f_back
    return Chosen()  # scored by hand, on rows as they came


class CoinRows(np.ndarray[Any, np.dtype[np.int64]]):
    """Positions of rows that were chosen by a coin of each row's own, as `CoinSplit` gave them."""

    chosen: Chosen | None = (
        None  # what is cut out of them, or computed from them, was chosen by more than coins
    )

    def __reduce__(self) -> tuple[Any, ...]:
        return _kept, (np.array(self), self.chosen)


def chosen_by_coins(rows: Any) -> Chosen | None:
    """By whose draws, if these are all the positions that a `CoinSplit` gave, or a plain view of them.

    scikit-learn asks for plain arrays, and hands on a view of the same memory.

    >>> kept, _ = next(iter(CoinSplit(2).split(np.zeros(100))))
    >>> chosen_by_coins(np.asarray(kept)), chosen_by_coins(kept[:5]), chosen_by_coins(np.array(kept))
    (Chosen(private=True, own_code=False), None, None)
    """
    if type(rows) is np.ndarray and type(rows.base) is CoinRows and _same_memory(rows, rows.base):
        rows = rows.base
    return rows.chosen if type(rows) is CoinRows and not rows.flags.writeable else None


def _same_memory(view: npt.NDArray[Any], whole: npt.NDArray[Any]) -> bool:
    first, second = view.__array_interface__, whole.__array_interface__
    return all(first[name] == second[name] for name in ("data", "shape", "strides", "typestr"))


class CoinSplit:
    """Parts of the rows for cross-validation, each row by a secret draw of its own.

    Folds by position move whole runs of rows when one record leaves, and neighbours would differ in several.
    A search whose charges will not all fit in their ledger is refused when it asks for the parts, before the
    first charge.

    Args:
        n_splits: How many parts there are, at least 2; each is scored once.
        sampler: Where the draws come from; a fresh secret stream by default. A seeded one is for tests: what is
            fitted on its parts, and chosen by them, is not private.

    >>> sum(len(scored) for _, scored in CoinSplit(3).split(np.zeros((10, 2))))
    10
    """

    def __init__(self, n_splits: int = 5, *, sampler: Sampler | None = None) -> None:
        self.n_splits = _validate.integer("n_splits", n_splits, least=2)
        self.sampler = sampler

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[CoinRows, CoinRows]]:
        refuse_beyond_budget(self.n_splits)
        return self._parts(len(X))

    def _parts(self, rows: int) -> Iterator[tuple[CoinRows, CoinRows]]:
        sampler = SecretStream() if self.sampler is None else self.sampler
        part = sampler.integers(self.n_splits, rows)
        for number in range(self.n_splits):
            kept, scored = (
                _kept(np.flatnonzero(rows), self.chosen) for rows in (part != number, part == number)
            )
            yield kept, scored

    @property
    def chosen(self) -> Chosen:
        """By whose draws."""
        return Chosen.by(self.sampler)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return self.n_splits


def _kept(positions: npt.NDArray[np.int64], chosen: Chosen | None) -> CoinRows:
    rows = CoinRows(positions.shape, np.int64)  # memory of its own, so that a plain view leads back here
    rows[:] = positions
    rows.setflags(write=False)
    rows.chosen = chosen
    return rows
