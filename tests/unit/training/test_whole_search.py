"""A search that its ledger cannot pay to the end is refused before it pays for a part."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from sfumato import BoundedScaler, Budget, CoinSplit, Ledger, NoisyAccuracyScorer, PrivateClassifier
from sfumato.errors import BudgetExceeded, UnitMismatch
from sfumato.training import check_search

X = np.linspace(-3, 3, 120)[:, None]
Y = (X[:, 0] > 0).astype(np.int64)


def classifier(ledger, **more):
    terms = {"classes": (0, 1), "public_size": 120, "bounds": (-3, 3), "epochs": 1, "hidden": 2}
    return PrivateClassifier(**{**terms, "ledger": ledger, "epsilon": 1.0, **more})


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=2, delta=1e-5)) as book:
        yield book


def searches(ledger):
    paid = {"cv": CoinSplit(2), "scoring": NoisyAccuracyScorer(0.5, ledger=ledger)}
    steps = [("scale", BoundedScaler((-3, 3))), ("model", classifier(ledger))]
    named = {"cv": CoinSplit(3), "scoring": {"right": NoisyAccuracyScorer(1.0, ledger=ledger)}, "refit": False}
    return {
        "grid": GridSearchCV(classifier(ledger), {"hidden": [2, 3, 4]}, **paid),
        "pipeline": GridSearchCV(Pipeline(steps), {"model__epochs": [1, 1, 1]}, **paid),
        "scores alone": GridSearchCV(classifier(None), {"hidden": [2]}, **named),
        "both sides": GridSearchCV(classifier(None), {"hidden": [2, 3]}, **paid, return_train_score=True),
        "five parts": GridSearchCV(classifier(ledger), {"hidden": [2]}),
    }


@pytest.mark.parametrize("kind", searches(None))
def test_a_search_that_does_not_fit_spends_nothing(ledger, kind):
    with pytest.raises(
        BudgetExceeded, match=r"expected a search that fits .* nothing was charged: .* sfumato tune"
    ):
        check_search(searches(ledger)[kind])
    assert ledger.charges() == []


def test_the_last_fit_on_all_rows_is_counted(ledger):
    paid = {"cv": CoinSplit(2), "scoring": NoisyAccuracyScorer(0.05, ledger=ledger)}
    check_search(GridSearchCV(classifier(ledger), {"hidden": [2]}, **paid, refit=False))
    with pytest.raises(BudgetExceeded, match="charge 5 of 5 does not"):
        check_search(GridSearchCV(classifier(ledger), {"hidden": [2]}, **paid))
    assert ledger.charges() == []


def test_what_is_checked_is_what_is_charged(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=5, delta=1e-5, unit="person")) as ledger:
        model = classifier(ledger, unit="person")
        scorer = NoisyAccuracyScorer(0.3, ledger=ledger, unit="person")
        scorer(model.fit(X, Y), X, Y)
        foreseen = [model.to_be_charged(), scorer.to_be_charged()]
        assert [charge.event for charge in ledger.charges()] == [one.event for one in foreseen]
        assert [charge.purpose for charge in ledger.charges()] == [one.purpose for one in foreseen]


def test_a_ledger_of_another_unit_is_told_before_the_first_fit(tmp_path):
    with (
        Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=2, delta=1e-5, unit="person")) as ledger,
        pytest.raises(UnitMismatch),
    ):
        check_search(GridSearchCV(classifier(ledger), {"hidden": [2]}, cv=CoinSplit(2)))


def test_a_size_that_is_read_off_the_rows_foretells_nothing(ledger):
    assert classifier(ledger, public_size=None).to_be_charged() is None
