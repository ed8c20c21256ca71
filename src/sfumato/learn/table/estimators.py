"""A private regressor in scikit-learn's manner, on columns with bounds of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from sfumato.accounting import Budget
from sfumato.caveats import Code
from sfumato.errors import InvalidInput
from sfumato.learn.table.run import TableRun, TableTraining
from sfumato.ledger import Ledger
from sfumato.policy import Column, Policy

Bounds = tuple[npt.ArrayLike, npt.ArrayLike]


class PrivateRegressor(RegressorMixin, BaseEstimator):
    """Fits a table model of a number at (epsilon, delta).

    Everything public is declared, and nothing read off the data: `bounds` are the lowest and the highest value
    of each column (one pair for all, or arrays), `target_bounds` those of the target, `public_size` about how
    many rows there are. Values beyond bounds are clipped; NaN has a place of its own. Each row is one `unit`,
    and a ledger of another unit refuses the fit.
    Rows are taken as they are handed over, and the certificate says so: earlier steps of a pipeline must not
    learn from them (`BoundedScaler`), nor a search score on them without noise (`NoisyAccuracyScorer`).

    >>> X = np.linspace(0, 1, 2000)[:, None]; y = 3 * X[:, 0]
    >>> model = PrivateRegressor(epsilon=3, bounds=(0, 1), target_bounds=(0, 3), public_size=2000).fit(X, y)
    >>> model.score(X, y) > 0.8, model.epsilon_ <= 3
    (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        bounds: Bounds,
        target_bounds: tuple[float, float],
        public_size: int,
        delta: float = 1e-5,
        model: str = "linear",
        ledger: Ledger | None = None,
        unit: str = "record",
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.public_size = public_size
        self.delta = delta
        self.model = model
        self.ledger = ledger
        self.unit = unit

    def fit(self, X: Any, y: Any) -> PrivateRegressor:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_all_finite="allow-nan")
        ready = TableTraining.prepare(
            self._policy(X.shape[1]), target="y", epsilon=self.epsilon, delta=self.delta, model=self.model
        )
        self.result_: TableRun = replace(ready, notes=(Code.ITEMS_BY_OWN_CODE(),)).train(
            ledger=self.ledger, data=_table(X, y)
        )
        self.epsilon_ = self.result_.epsilon
        self.private_ = True
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        return self.result_.model.predict(_table(X, None))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _policy(self, columns: int) -> Policy:
        """Return the declarations as the policy of a table with the columns x0, x1, … and y."""
        try:
            low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), columns) for end in self.bounds)
        except ValueError as error:
            raise InvalidInput(
                f"expected bounds=(low, high) of one number each or of {columns}, one a column, got others"
            ) from error
        ends = {f"x{place}": (float(low[place]), float(high[place])) for place in range(columns)}
        ends["y"] = self.target_bounds
        found = {
            name: Column(name=name, type="real", lower=lower, upper=upper)
            for name, (lower, upper) in ends.items()
        }
        budget = Budget(epsilon=self.epsilon, delta=self.delta, unit=self.unit)
        return Policy(table="rows", source="memory", columns=found, budget=budget, public_size=self.public_size)


def _table(X: npt.NDArray[np.float64], y: npt.NDArray[np.float64] | None) -> Any:
    import pyarrow as pa

    columns = {f"x{place}": X[:, place] for place in range(X.shape[1])}
    return pa.table(columns if y is None else {**columns, "y": y})
