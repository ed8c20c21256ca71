"""A search among settings that is private: rows split by coins, and scores with noise, charged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from sfumato import _validate
from sfumato.accounting import Relation
from sfumato.ledger import Ledger, Unrecorded
from sfumato.mechanisms import DiscreteLaplace
from sfumato.randomness import Sampler, SecretStream
from sfumato.trust import caveats_of_sampler

PURPOSE = "score of a search"


class NoisyAccuracyScorer(BaseEstimator):
    """A scorer for `GridSearchCV` and the like: the accuracy by noisy counts, each charged before it is taken.

    *Guarantees*: released are the counts of right and of wrong answers with discrete Laplace noise of scale
    1/ε. A record is in one count of the part that is scored, and adding or removing it moves that count by one:
    ε-differential privacy a score. Every part and every setting is charged; so is every training.
    Ghosh, Roughgarden & Sundararajan 2012; Dwork & Roth 2014, theorem 3.6.

    Args:
        epsilon: The ε of each score.
        ledger: The ledger that each score is charged to; None records nothing.
        delta: The δ at which scores are stated where no ledger is given; a ledger has its own.
        sampler: Where the noise comes from; a fresh secret stream by default.

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
        sampler: Sampler | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.ledger = ledger
        self.delta = delta
        self.sampler = sampler

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        mechanism = DiscreteLaplace.calibrated(sensitivity=1, epsilon=self.epsilon)
        sampler = SecretStream() if self.sampler is None else self.sampler
        (self.ledger or Unrecorded(delta=self.delta)).pay_for(
            mechanism.event(),
            purpose=PURPOSE,
            relation=Relation.ADD_REMOVE,
            unit="record" if self.ledger is None else self.ledger.budget.unit,
            private=sampler.private,
            caveats=caveats_of_sampler(sampler),
        )
        right = int(np.sum(np.asarray(estimator.predict(X)) == np.asarray(y))) if len(y) else 0
        noisy = mechanism.release(np.array([right, len(y) - right]), sampler)
        counts = [max(0, int(count)) for count in noisy]
        return counts[0] / max(1, sum(counts))


class CoinRows(np.ndarray[Any, np.dtype[np.int64]]):
    """Positions of rows that were chosen by a coin of each row's own."""


class CoinSplit:
    """Parts of the rows for cross-validation, each row by a secret draw of its own.

    Folds by position move whole runs of rows when one record leaves, and neighbours would differ in several.

    Args:
        n_splits: How many parts there are, at least 2; each is scored once.
        sampler: Where the draws come from; a fresh secret stream by default.

    >>> sum(len(scored) for _, scored in CoinSplit(3).split(np.zeros((10, 2))))
    10
    """

    def __init__(self, n_splits: int = 5, *, sampler: Sampler | None = None) -> None:
        self.n_splits = _validate.integer("n_splits", n_splits, least=2)
        self.sampler = sampler

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[CoinRows, CoinRows]]:
        sampler = SecretStream() if self.sampler is None else self.sampler
        part = sampler.integers(self.n_splits, len(X))
        for number in range(self.n_splits):
            yield _rows(part != number), _rows(part == number)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return self.n_splits


def _rows(chosen: npt.NDArray[np.bool_]) -> CoinRows:
    return np.flatnonzero(chosen).view(CoinRows)
