"""A search among settings that is private: rows split by coins, and scores with noise, charged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import ParameterGrid

from sfumato import _validate
from sfumato.accounting import Relation
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Certificate, ChargeRequest, Ledger, Unrecorded
from sfumato.mechanisms import DiscreteLaplace
from sfumato.randomness import Sampler, SecretStream, caveats_of_sampler
from sfumato.training.answers import right_answers
from sfumato.training.sources import ITEMS_BY_OWN_CODE

Positions: TypeAlias = npt.NDArray[np.int64]
PURPOSE = "score of a search"


class NoisyAccuracyScorer(BaseEstimator):
    """A scorer for `GridSearchCV` and the like: the accuracy by noisy counts, each charged before it is taken.

    *Guarantees*: released are the counts of right and of wrong answers with discrete Laplace noise of scale
    1/ε. A record is in one count of the part that is scored, and adding or removing it moves that count by one:
    ε-differential privacy a score. For that each row is answered by itself: estimators that Sfumato does not
    know are shown one row at a time. Every part and every setting is charged; so is every
    training; `check_search` tells in advance whether a ledger can pay for all. `certificate_` is that of the
    last score. How rows were split is not known here: split by coins (`CoinSplit`).
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
        self.certificate_: Certificate = (self.ledger or Unrecorded(delta=self.delta)).pay_for(
            mechanism.event(),
            purpose=PURPOSE,
            relation=Relation.ADD_REMOVE,
            unit=self.unit,
            private=bool(sampler.private),
            caveats=(ITEMS_BY_OWN_CODE, *caveats_of_sampler(sampler)),
        )
        right = int(right_answers(estimator, X, y).sum()) if len(y) else 0
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


class CoinSplit:
    """Parts of the rows for cross-validation, each row by a secret draw of its own.

    Folds by position move whole runs of rows when one record leaves, and neighbours would differ in several.
    Args:
        n_splits: How many parts there are, at least 2; each is scored once.
        sampler: Where the draws come from; a fresh secret stream by default. A seeded one is for tests: what is
            fitted on its parts, and chosen by them, is not private, which no certificate says.

    >>> sum(len(scored) for _, scored in CoinSplit(3).split(np.zeros((10, 2))))
    10
    """

    def __init__(self, n_splits: int = 5, *, sampler: Sampler | None = None) -> None:
        self.n_splits = _validate.integer("n_splits", n_splits, least=2)
        self.sampler = sampler

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Positions, Positions]]:
        sampler = SecretStream() if self.sampler is None else self.sampler
        part = sampler.integers(self.n_splits, len(X))
        for number in range(self.n_splits):
            yield np.flatnonzero(part != number), np.flatnonzero(part == number)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return self.n_splits


def check_search(search: Any) -> None:
    """Refuse, before its first charge, a search whose charges will not all fit in a ledger.

    scikit-learn fits and scores one setting after another, and each pays for itself: a search that the ledger
    cannot pay to its end would stop in the middle with a part of the budget gone, and choose nothing. What an
    estimator or scorer of other kinds costs is not counted.

    Args:
        search: A GridSearchCV, or another with `param_grid`, `estimator`, `scoring`, `cv` and `refit`.

    Raises:
        BudgetExceeded: If a charge does not fit. Nothing was charged.

    >>> from sklearn.dummy import DummyClassifier
    >>> from sklearn.model_selection import GridSearchCV
    >>> check_search(GridSearchCV(DummyClassifier(), {"strategy": ["prior"]}, cv=CoinSplit(3)))
    """
    parts = search.cv if isinstance(search.cv, int) else 5 if search.cv is None else search.cv.get_n_splits()
    fits = [
        _charge_of(_last_step(clone(search.estimator).set_params(**one)))
        for one in ParameterGrid(search.param_grid)
    ]
    named = search.scoring.values() if isinstance(search.scoring, Mapping) else [search.scoring]
    scores = [_charge_of(scorer) for scorer in named] * (2 if search.return_train_score else 1)
    trials = [found for fit in fits for found in [fit, *scores] * parts]
    for refit in fits if search.refit else [None]:  # any setting may be the one that is fitted on all rows
        charges = [found for found in (*trials, refit) if found is not None]
        for ledger in {found[0].name: found[0] for found in charges}.values():
            _check(ledger, [request for of, request in charges if of.name == ledger.name])


def _check(ledger: Ledger, requests: Sequence[ChargeRequest]) -> None:
    refused = ledger.first_beyond(requests)
    if refused is None:
        return
    spent, left = ledger.epsilon_spent, ledger.epsilon_left
    raise BudgetExceeded(
        f"expected a search that fits what is left of {ledger.place}, got one whose charge {refused + 1} of "
        f"{len(requests)} does not; nothing was charged: epsilon_spent={spent:.6g}, epsilon_left={left:.6g}; "
        "try fewer settings or parts, or a smaller epsilon for each, or use sfumato tune, which pays for the "
        "best of its trials only",
        epsilon_spent=spent,
        epsilon_left=left,
    )


def _charge_of(payer: Any) -> tuple[Ledger, ChargeRequest] | None:
    """The ledger and the charge of one fit or score; None where it records nothing, or follows the rows."""
    ledger = getattr(payer, "ledger", None)
    request = payer.to_be_charged() if isinstance(ledger, Ledger) and hasattr(payer, "to_be_charged") else None
    return None if ledger is None or request is None else (ledger, request)


def _last_step(estimator: Any) -> Any:
    steps = getattr(estimator, "steps", None)
    return _last_step(steps[-1][-1]) if isinstance(steps, list) and steps else estimator
