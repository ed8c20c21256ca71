"""PrivateRegressor, and bounds of each column."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato import PrivateClassifier
from sfumato.accounting import Budget
from sfumato.errors import InvalidInput
from sfumato.learn.table import PrivateRegressor
from sfumato.ledger import Ledger
from sfumato.randomness import public_generator

DRAW = public_generator(0)
X = DRAW.uniform([0, -50], [1, 50], (2000, 2))
Y = X[:, 0] - X[:, 1] / 50
KNOWN = {"bounds": ([0, -50], [1, 50]), "target_bounds": (-1, 2), "public_size": 2000}


def test_a_number_is_learned_and_charged(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=6, delta=1e-5)) as ledger:
        model = PrivateRegressor(epsilon=5, ledger=ledger, **KNOWN).fit(X, Y)
        assert ledger.epsilon_spent == pytest.approx(model.epsilon_)
    assert model.score(X, Y) > 0.85
    assert model.predict([[np.nan, 9e9]]).shape == (1,)


def test_nothing_is_read_off_the_data():
    """One person far beyond the bounds is clipped, whoever they are."""
    model = PrivateRegressor(epsilon=1, **KNOWN).fit(np.vstack([X, [1e30, -1e30]]), np.append(Y, 1e30))
    assert ((model.predict(X) >= -1) & (model.predict(X) <= 2)).all()


def test_bounds_that_do_not_fit_the_columns_are_refused():
    with pytest.raises(InvalidInput, match="one a column"):
        PrivateRegressor(**(KNOWN | {"bounds": ([0, 0, 0], [1, 1, 1])})).fit(X, Y)


def test_a_classifier_takes_bounds_of_each_column():
    model = PrivateClassifier(classes=(0, 1), public_size=8, bounds=([0, -50], [1, 50]))
    model.bounds_ = model.bounds
    assert model._scaled(np.array([[0, 50], [0.5, 0], [7, -99]])).tolist() == [[-1, 1], [0, 0], [1, -1]]
