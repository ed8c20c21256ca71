"""A private classifier in scikit-learn's manner."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from sfumato import randomness
from sfumato.caveats import Caveat, Code
from sfumato.errors import InvalidInput
from sfumato.ledger import ChargeRequest, Ledger
from sfumato.randomness import SecretStream
from sfumato.training.answers import answers
from sfumato.training.optimization import Optimization
from sfumato.training.plan import TrainingPlan
from sfumato.training.run import TrainingResult, train
from sfumato.training.sources import ITEMS_BY_OWN_CODE


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """Fit a small network, or a copy of `module`, with DP-SGD, in the manner of scikit-learn.

    Declare what is public: `classes`, `public_size` and `bounds`. What is not declared is read off the data,
    for convenience: `private_` is then False, and the certificate says what was read. Rows are taken as they
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
        unit: What one row is, such as "record" or "person"; a ledger of another unit refuses the fit.
        random_state: Seeds the first weights and, for tests, the noise: the fit is then not private.

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
        unit: str = "record",
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
            units=np.arange(len(X)) if self._named else None,
            caveats=(*caveats, ITEMS_BY_OWN_CODE),
            sampler=None if self.random_state is None else SecretStream(test_seed=seed),
        )
        self.epsilon_ = self.result_.epsilon
        self.private_ = not caveats and self.random_state is None
        if caveats:
            reasons = f"read from data: {caveats[0].parameters['facts']}"
            warnings.warn(f"this fit is not private (private_ is False): {reasons}", stacklevel=2)
        return self

    def to_be_charged(self) -> ChargeRequest | None:
        """What one fit charges, so that a search is refused as a whole.

        Returns:
            The charge; None where `public_size` is not declared, and the noise follows the rows.
        """
        if self.public_size is None:
            return None
        plan = TrainingPlan.calibrated(**self._terms(self.public_size))
        return ChargeRequest(
            event=plan.event(), purpose="private training", relation=plan.relation, unit=plan.unit
        )

    @property
    def _named(self) -> bool:
        """Whether each row is a unit of its own under another name than record."""
        return self.unit != "record"

    def _terms(self, size: int) -> dict[str, Any]:
        """What a plan is calibrated to."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "public_size": size,
            "epochs": self.epochs,
            "expected_batch": min(1024, max(1, size // 8)),
            "clip_norm": self.clip_norm,
            "unit": self.unit,
            "rows_per_unit": 1 if self._named else None,
        }

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Score each class.

        Args:
            X: (rows, features) numbers.

        Returns:
            (rows, classes) scores; (rows,) for two classes, above 0 for the second.
        """
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Estimate the probability of each class.

        Args:
            X: (rows, features) numbers.

        Returns:
            (rows, classes), each row adding up to 1.
        """
        return torch.softmax(torch.from_numpy(self._outputs(X)), dim=1).numpy()

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Name the class of each row.

        Args:
            X: (rows, features) numbers.

        Returns:
            (rows,) labels.
        """
        scores = self._outputs(X)
        return self.classes_[scores.argmax(axis=1)]

    def predict_apart(self, X: Any) -> npt.NDArray[Any]:
        """Name the class of each row by that row alone, whatever the network does with rows together.

        For counts on private rows, whose sensitivity rests on it; slower than `predict`.

        Args:
            X: (rows, features) numbers; a row with others that are no numbers decides nothing about the rest.

        Returns:
            (rows,) labels.
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

    def _read_what_is_not_declared(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> list[Caveat]:
        """Fill in the public facts; what had to be read off the data makes the fit not private."""
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
