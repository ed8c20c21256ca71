"""Private estimators inside pipelines and searches: every fit is paid, and a record moves a score by one."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, scale
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

import sfumato
from sfumato import BoundedScaler, Budget, CoinSplit, Ledger, NoisyAccuracyScorer, PrivateClassifier
from sfumato.caveats import Code
from sfumato.errors import LedgerError, RelationMismatch
from sfumato.learn.table import PrivateRegressor
from sfumato.mechanisms import DiscreteLaplace

X = np.linspace(-3, 3, 120)[:, None] * np.array([1.0, -2.0])
Y = (X[:, 0] > 0).astype(np.int64)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=50, delta=1e-5)) as book:
        yield book


def classifier(**more):
    terms = {"epsilon": 2, "classes": (0, 1), "public_size": 120, "bounds": (-6, 6), "epochs": 1, "hidden": 2}
    return PrivateClassifier(**{**terms, **more})


def regressor(**more):
    return PrivateRegressor(epsilon=2, bounds=(-6, 6), target_bounds=(-3, 3), public_size=120, **more)


def charges(ledger):
    return [charge.purpose for charge in ledger.charges()]


# Copies


@pytest.mark.keeps_out("A clone of an estimator that spends from a copy of the ledger")
@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_clone_spends_from_the_same_ledger(ledger, make):
    """A copy of the ledger beside it would be a second budget for the same people."""
    copied = clone(make(ledger=ledger))
    assert copied.ledger is ledger
    copied.fit(X, Y if make is classifier else X[:, 0])
    assert len(charges(ledger)) == 1


def test_a_fitted_estimator_is_pickled_with_its_ledgers_address(ledger):
    model = classifier(ledger=ledger).fit(X, Y)
    back = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert back.predict(X).tolist() == model.predict(X).tolist()
    assert back.result_.certificate == model.result_.certificate
    assert back.ledger.head == ledger.head
    back.fit(X, Y)
    assert len(charges(ledger)) == 2, "both spend from one file"
    back.ledger.close()


@pytest.mark.keeps_out("A clone of an estimator that spends from a copy of the ledger")
def test_a_pickled_ledger_that_was_rolled_back_is_refused(ledger, tmp_path):
    old = (tmp_path / "l.db").read_bytes()
    classifier(ledger=ledger).fit(X, Y)
    kept = pickle.dumps(ledger)
    (tmp_path / "l.db").write_bytes(old)
    with pytest.raises(LedgerError):
        pickle.loads(kept)  # noqa: S301


# Pipelines and searches


@pytest.mark.keeps_out(
    "A private estimator behind a scaler that saw the rows, or chosen by scores without noise, or on "
    "folds by position"
)
def test_every_fit_and_score_of_a_search_is_paid_and_says_how_rows_came(ledger):
    scorer = NoisyAccuracyScorer(1.0, ledger=ledger)
    pipeline = Pipeline([("scale", BoundedScaler((-6, 6))), ("model", classifier(ledger=ledger))])
    search = GridSearchCV(pipeline, {"model__hidden": [2]}, cv=CoinSplit(2), scoring=scorer).fit(X, Y)
    assert charges(ledger).count("score of a search") == 2
    assert len(charges(ledger)) == 2 * 2 + 1
    model = search.best_estimator_[-1]
    assert model.private_
    assert Code.ITEMS_BY_OWN_CODE() in model.result_.certificate.caveats
    scorer(search.best_estimator_, X, Y)
    assert Code.ITEMS_BY_OWN_CODE() in scorer.certificate_.caveats


def test_a_regressor_says_how_rows_came():
    assert Code.ITEMS_BY_OWN_CODE() in regressor().fit(X, X[:, 0]).result_.certificate.caveats


def test_no_room_for_a_trial_is_no_score(tmp_path):
    with Ledger.open(tmp_path / "s.db", budget=Budget(epsilon=3, delta=1e-5)) as small:
        search = GridSearchCV(classifier(ledger=small), {"hidden": [2, 3]}, cv=2, refit=False)
        with pytest.warns(FitFailedWarning, match="fits failed"):
            search.fit(X, Y)
        assert np.isnan(search.cv_results_["mean_test_score"]).any()
        assert small.epsilon_spent <= 3


# Scores


class Centred(nn.Module):
    """Row by row while it trains; in evaluation it centres what it is shown."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 2)

    def forward(self, rows):
        return self.line(rows if self.training else rows - rows.mean(0, keepdim=True))


class Counting(BaseEstimator):
    """Answers every third row that it sees, and keeps count."""

    def predict(self, X):
        self.seen_ = getattr(self, "seen_", 0) + 1
        return np.full(len(X), 0 if self.seen_ % 3 == 1 else 1)


def counts(monkeypatch, scorer, estimator, rows, labels):
    seen, release = [], DiscreteLaplace.release

    def watched(mechanism, values, sampler):
        seen.append((np.array(values), mechanism.sensitivity))
        return release(mechanism, values, sampler)

    monkeypatch.setattr(DiscreteLaplace, "release", watched)
    scorer(estimator, rows, labels)
    monkeypatch.setattr(DiscreteLaplace, "release", release)
    ((values, sensitivity),) = seen
    return values, sensitivity


def centred(rows, labels):
    model = classifier(module=Centred(), bounds=(0, 1), public_size=len(rows)).fit(rows, labels)
    with torch.no_grad():  # whatever was learned: a sign decides
        model.module_.line.weight[:] = torch.tensor([[1.0], [-1.0]])
        model.module_.line.bias[:] = 0
    return model


def mixes_in_a_pipeline(rows, labels):
    return Pipeline([("mix", FunctionTransformer(scale)), ("model", centred(rows, labels))])


def remembers(rows, labels):
    return Counting()


def a_known_one(rows, labels):
    return Pipeline([("scale", BoundedScaler((0, 1))), ("model", classifier(bounds=(-1, 1)).fit(rows, labels))])


@pytest.mark.keeps_out("A score of a model that centres its rows in evaluation: one record moves all counts")
@pytest.mark.parametrize("make", [centred, mixes_in_a_pipeline, remembers, a_known_one])
def test_a_record_moves_a_score_by_one_whatever_the_estimator_does_with_rows(make, monkeypatch):
    """A network that centres its rows in evaluation moved all counts but one."""
    rows, labels = np.full((61, 1), 0.5, dtype=np.float32), np.zeros(61, dtype=np.int64)
    rows[-1] = 1.0  # the record that comes or goes
    estimator, scorer = make(rows, labels), NoisyAccuracyScorer(1.0)
    with_it, sensitivity = counts(monkeypatch, scorer, estimator, rows, labels)
    without, _ = counts(monkeypatch, scorer, estimator, rows[:-1], labels[:-1])
    assert abs(with_it - without).sum() <= sensitivity == 1
    assert with_it.sum() == 61


def test_a_row_that_raises_is_a_wrong_answer_and_changes_no_other(monkeypatch):
    rows, labels = np.full((30, 1), 0.5, dtype=np.float32), np.zeros(30, dtype=np.int64)
    estimator = a_known_one(rows, labels)
    whole, _ = counts(monkeypatch, NoisyAccuracyScorer(1.0), estimator, rows, labels)
    rows[7] = np.inf  # no scaler takes it
    found, _ = counts(monkeypatch, NoisyAccuracyScorer(1.0), estimator, rows, labels)
    assert abs(found - whole).max() <= 1
    assert found.sum() == 30


# Units


@pytest.mark.keeps_out("Rows charged as people")
@pytest.mark.parametrize("spend", ["classifier", "regressor", "score"])
def test_a_row_is_charged_as_a_person_only_where_it_is_said_to_be_one(tmp_path, spend):
    """One person with 40 rows moves a count of rows by 40."""

    def use(**unit):
        if spend == "classifier":
            classifier(ledger=people, **unit).fit(X, Y)
        elif spend == "regressor":
            regressor(ledger=people, **unit).fit(X, X[:, 0])
        else:
            NoisyAccuracyScorer(0.5, ledger=people, **unit)(DummyClassifier().fit(X, Y), X, Y)

    with Ledger.open(tmp_path / "p.db", budget=Budget(epsilon=50, delta=1e-5, unit="person")) as people:
        with pytest.raises(RelationMismatch, match="unit='person'"):
            use()
        assert people.epsilon_spent == 0
        use(unit="person")
        assert [charge.unit for charge in people.charges()] == ["person"]


# The scaler


CHECKS = list(estimator_checks_generator(BoundedScaler(bounds=(-100, 100)), legacy=False))


@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=[str(i) for i in range(len(CHECKS))])
def test_the_scaler_is_an_estimator(estimator, check):
    check(estimator)


def test_the_scaler_learns_nothing():
    scaler = BoundedScaler(bounds=(0, [1, 10]))
    fitted = scaler.fit(np.full((3, 2), 77.0))
    assert {name for name in vars(fitted) if name != "bounds"} <= {"n_features_in_", "feature_names_in_"}
    assert fitted.transform([[0.5, 99.0]]).tolist() == [[0.0, 1.0]]
    for bounds in [(1, 0), (0, float("nan")), (0, 0)]:
        with pytest.raises(sfumato.errors.InvalidInput, match="low < high"):
            BoundedScaler(bounds=bounds).fit_transform([[0.5]])


def test_coins_split_every_row_once():
    parts = list(CoinSplit(3).split(X))
    assert sorted(np.concatenate([test for _, test in parts]).tolist()) == list(range(120))
    assert all(sorted([*train, *test]) == list(range(120)) for train, test in parts)
