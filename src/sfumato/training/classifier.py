"""Private learning in scikit-learn's manner: a classifier, noisy scores, a split by coins."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from sfumato import _validate, randomness
from sfumato.accounting import Relation
from sfumato.caveats import Code
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Certificate, ChargeRequest, Ledger, Unrecorded
from sfumato.randomness import Sampler, SecretStream, caveats_of_sampler
from sfumato.training.answers import answers, right_answers
from sfumato.training.hold_out import noisy_counts, noisy_shares
from sfumato.training.optimization import Optimization
from sfumato.training.plan import RECORD, TrainingPlan
from sfumato.training.run import TrainingResult, train

Positions: TypeAlias = npt.NDArray[np.int64]
PURPOSE = "score of a search"


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """Fit a small network, or a copy of `module`, with DP-SGD, in the manner of scikit-learn.

    Declare the public facts: `classes`, `public_size` and `bounds`. Those that are not declared are read off
    the data, for convenience: `private_` is then False, and the certificate names them. Rows are taken as they
    are handed over, and the certificate says that too: earlier steps of a pipeline must not learn from them
    (scale with `BoundedScaler`), nor a search score on them without noise (score with `NoisyAccuracyScorer`,
    split with `CoinSplit`, or use `sfumato tune`). The trained network is `module_`, the result with its
    certificate `result_`.

    Args:
        epsilon: The ε of the fit, above 0.
        delta: Its δ, far below 1 / number of rows.
        module: A network to train a copy of; None for one hidden layer.
        hidden: The width of the hidden layer.
        classes: All labels that there can be.
        public_size: The declared number of rows.
        bounds: Lowest and highest value of a feature: one pair for all, or arrays with one of each.
            Features are clipped to them and scaled to ±1.
        epochs: How often each row is used, on average.
        learning_rate: The step size of SGD; 0.5 by default, or less where the noise would be too much for that.
        clip_norm: The bound of one row's gradient.
        ledger: Where the fit is charged; without one nothing is recorded.
        unit: The unit of one row, such as "record" or "person"; a ledger of another unit refuses the fit.
        random_state: Seeds the first weights and, for tests, the noise: the fit is then not private.

    Terms:
        X: (rows, features) numbers.

    >>> X = np.array([[0.0], [1.0]] * 50); y = np.array([0, 1] * 50)
    >>> declared = {"classes": (0, 1), "public_size": 100, "bounds": (0, 1)}
    >>> model = PrivateClassifier(epsilon=3, epochs=0.2, hidden=2, **declared).fit(X, y)
    >>> model.private_, model.epsilon_ <= 3
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        module: nn.Module | None = None,
        hidden: int = 64,
        classes: Any = None,
        public_size: int | None = None,
        bounds: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        epochs: float = 20,
        learning_rate: float | None = None,
        clip_norm: float = 1.0,
        ledger: Ledger | None = None,
        unit: str = RECORD,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.module = module
        self.hidden = hidden
        self.classes = classes
        self.public_size = public_size
        self.bounds = bounds
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.ledger = ledger
        self.unit = unit
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Charge the ledger, train, and keep the network as `module_`.

        Args:
            X: (rows, features) numbers.
            y: (rows,) labels.

        Returns:
            The classifier itself.

        Raises:
            BudgetExceeded: If the ledger has no room. Nothing was trained.
            InvalidInput: If a label is not declared.
        """
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        caveats = self._read_what_is_not_declared(X, y)
        seed = 0 if self.random_state is None else self.random_state
        self.module_ = self._network(X.shape[1], seed) if self.module is None else copy.deepcopy(self.module)
        targets = np.searchsorted(self.classes_, y)
        if not np.array_equal(self.classes_[np.minimum(targets, len(self.classes_) - 1)], y):
            raise InvalidInput("expected labels among the declared classes, got others; declare all of them")
        self.result_: TrainingResult = train(
            self.module_,
            (self._scaled(X), torch.from_numpy(targets)),
            **self._terms(self.public_size_),
            optimization=Optimization(learning_rate=self.learning_rate),
            ledger=self.ledger,
            units=None if self.unit == RECORD else np.arange(len(X)),
            caveats=(*caveats, Code.ITEMS_BY_OWN_CODE()),
            sampler=None if self.random_state is None else SecretStream(test_seed=seed),
        )
        self.epsilon_ = self.result_.epsilon
        self.private_ = not caveats and self.random_state is None
        if caveats:
            reasons = caveats[0].removeprefix("not private: ")
            warnings.warn(f"this fit is not private (private_ is False): {reasons}", stacklevel=2)
        return self

    def to_be_charged(self) -> ChargeRequest | None:
        """Return the charge of one fit; None where `public_size` is not declared: noise follows the rows."""
        if self.public_size is None:
            return None
        plan = TrainingPlan.calibrated(**self._terms(self.public_size))
        return ChargeRequest(
            event=plan.event(), purpose="private training", relation=plan.relation, unit=plan.unit
        )

    def _terms(self, size: int) -> dict[str, Any]:
        """Return the arguments that a plan is calibrated to."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "public_size": size,
            "epochs": self.epochs,
            "expected_batch": min(1024, max(1, size // 8)),
            "clip_norm": self.clip_norm,
            "unit": self.unit,
            "rows_per_unit": None if self.unit == RECORD else 1,
        }

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Return (rows, classes) scores; (rows,) for two classes, above 0 for the second."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the probability of each class, (rows, classes), each row adding up to 1."""
        return torch.softmax(torch.from_numpy(self._outputs(X)), dim=1).numpy()

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the label of each row."""
        scores = self._outputs(X)
        return self.classes_[scores.argmax(axis=1)]

    def predict_apart(self, X: Any) -> npt.NDArray[Any]:
        """Return the label of each row by that row alone, whether the network mixes rows or not.

        For counts on private rows, whose sensitivity rests on it; slower than `predict`.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False, ensure_all_finite=False, ensure_min_samples=0)
        numbers = answers(self.module_, self._scaled(X))
        found = np.empty(len(numbers), dtype=object)
        known = (numbers >= 0) & (numbers < len(self.classes_))
        found[known] = self.classes_[numbers[known]]
        return found

    def _outputs(self, X: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        self.module_.eval()
        with torch.inference_mode():
            return self.module_(self._scaled(X)).numpy()

    def _read_what_is_not_declared(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> list[str]:
        """Fill in the public facts; those that had to be read off the data make the fit not private."""
        read = [name for name in ("classes", "public_size", "bounds") if getattr(self, name) is None]
        self.classes_ = unique_labels(y) if self.classes is None else np.unique(np.asarray(self.classes))
        self.public_size_ = len(X) if self.public_size is None else self.public_size
        self.bounds_ = (float(X.min()), float(X.max())) if self.bounds is None else self.bounds
        if len(self.classes_) < 2:
            raise InvalidInput(
                f"expected at least two classes, got {len(self.classes_)} class; declare classes=(…)"
            )
        return [Code.READ_FROM_DATA(facts=", ".join(read))] if read else []

    def _scaled(self, X: npt.NDArray[Any]) -> torch.Tensor:
        low, high = (np.asarray(end, dtype=np.float64) for end in self.bounds_)
        middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-12)
        return torch.from_numpy(np.clip((X - middle) / half, -1, 1).astype(np.float32))

    def _network(self, features: int, seed: int) -> nn.Module:
        with randomness.public_torch_seed(seed):
            return nn.Sequential(
                nn.Linear(features, self.hidden), nn.Tanh(), nn.Linear(self.hidden, len(self.classes_))
            )


class NoisyAccuracyScorer(BaseEstimator):
    """Score for `GridSearchCV` and the like: the accuracy by noisy counts, each charged before it is taken.

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
        unit: The unit of one row, such as "record" or "person"; a ledger of another unit refuses the score.
        sampler: Source of the noise; a fresh secret stream by default. A seeded one is for tests: the choice of
            a search by it is not private.

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
        unit: str = RECORD,
        sampler: Sampler | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.ledger = ledger
        self.delta = delta
        self.unit = unit
        self.sampler = sampler

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        mechanism = noisy_counts(self.epsilon)
        sampler = SecretStream() if self.sampler is None else self.sampler
        self.certificate_: Certificate = (self.ledger or Unrecorded(delta=self.delta)).pay_for(
            mechanism.event(),
            purpose=PURPOSE,
            relation=Relation.ADD_REMOVE,
            unit=self.unit,
            private=bool(sampler.private),
            caveats=(Code.ITEMS_BY_OWN_CODE(), *caveats_of_sampler(sampler)),
        )
        right = right_answers(estimator, X, y) if len(y) else np.zeros(0, dtype=np.bool_)
        return noisy_shares([right], mechanism, sampler)[0][0]

    def to_be_charged(self) -> ChargeRequest:
        """Return the charge of one score."""
        event = noisy_counts(self.epsilon).event()
        return ChargeRequest(event=event, purpose=PURPOSE, relation=Relation.ADD_REMOVE, unit=self.unit)


class CoinSplit:
    """Split the rows for cross-validation, each row by a secret draw of its own.

    Folds by position move whole runs of rows when one record leaves, and neighbours would differ in several.

    Args:
        n_splits: How many parts there are, at least 2; each is scored once.
        sampler: Source of the draws; a fresh secret stream by default. A seeded one is for tests: models fitted
            on its parts, and chosen by them, are not private, which no certificate says.

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
    cannot pay to its end would stop in the middle with a part of the budget gone, and choose nothing. The cost
    of estimators and scorers of other kinds is not counted.

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
    """Return the ledger and the charge of a fit or score; None if it records nothing, or follows the rows."""
    ledger = getattr(payer, "ledger", None)
    request = payer.to_be_charged() if isinstance(ledger, Ledger) and hasattr(payer, "to_be_charged") else None
    return None if ledger is None or request is None else (ledger, request)


def _last_step(estimator: Any) -> Any:
    steps = getattr(estimator, "steps", None)
    return _last_step(steps[-1][-1]) if isinstance(steps, list) and steps else estimator
