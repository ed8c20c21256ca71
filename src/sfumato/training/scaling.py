"""Scaling by declared bounds: for private estimators, in place of a scaler that looks at the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import validate_data

from sfumato.errors import InvalidInput


class BoundedScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Scales features from declared bounds to ±1, and clips values beyond; nothing is read off the rows.

    Args:
        bounds: The lowest and the highest value of a feature, said without looking at the rows: one pair for
            all features, or two arrays with an entry for each.

    >>> BoundedScaler(bounds=(0, 10)).fit_transform([[0.0], [5.0], [20.0]]).ravel().tolist()
    [-1.0, 0.0, 1.0]
    """

    def __init__(self, bounds: tuple[npt.ArrayLike, npt.ArrayLike]) -> None:
        self.bounds = bounds

    def fit(self, X: Any, y: Any = None) -> BoundedScaler:
        validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan")
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        low, high = (np.asarray(end, dtype=np.float64) for end in self.bounds)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and np.all(low < high)):
            raise InvalidInput("expected bounds=(low, high) with low < high for every feature, got others")
        found: npt.NDArray[np.float64] = np.clip((X - (low + high) / 2) / ((high - low) / 2), -1, 1)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        return tags
