"""Private estimators inside pipelines and searches: every fit is paid, and nothing passes for private."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import sfumato
from sfumato import BoundedScaler, Budget, CoinSplit, Ledger, NoisyAccuracyScorer, PrivateClassifier
from sfumato.errors import LedgerError
from sfumato.randomness import SecretStream
from sfumato.recipes.table import PrivateRegressor
from sfumato.trust import OWN_NOISE

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


def test_a_pickled_ledger_that_was_rolled_back_is_refused(ledger, tmp_path):
    old = (tmp_path / "l.db").read_bytes()
    classifier(ledger=ledger).fit(X, Y)
    kept = pickle.dumps(ledger)
    (tmp_path / "l.db").write_bytes(old)
    with pytest.raises(LedgerError):
        pickle.loads(kept)  # noqa: S301


# Pipelines


@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_scaler_that_saw_the_rows_is_noticed(ledger, make):
    """One person far out moves the mean and the deviation, and with them everybody's features."""
    target = Y if make is classifier else X[:, 0]
    model = Pipeline([("scale", StandardScaler()), ("model", make(ledger=ledger))]).fit(X, target)[-1]
    assert not model.private_
    assert any("scale (StandardScaler)" in caveat for caveat in model.result_.certificate.caveats)
    assert len(charges(ledger)) == 1


def test_it_is_noticed_however_deep_it_is():
    inner = make_pipeline(FunctionTransformer(), classifier(bounds=(-6, 6)))
    outer = Pipeline([("scale", StandardScaler()), ("rest", inner)]).fit(X, Y)
    assert not outer[-1][-1].private_


@pytest.mark.parametrize(
    "before",
    ["passthrough", FunctionTransformer(), BoundedScaler(bounds=(-6, 6))],
    ids=lambda one: str(one)[:10],
)
def test_a_step_that_reads_nothing_off_the_rows_stays_private(before):
    model = Pipeline([("scale", before), ("model", classifier(bounds=(-6, 6)))]).fit(X, Y)[-1]
    assert model.private_
    assert not [text for text in model.result_.certificate.caveats if text.startswith("not private")]


def test_a_fit_by_itself_stays_private():
    assert classifier().fit(X, Y).private_


# Searches


def test_every_fit_of_a_search_is_paid_and_a_search_without_noise_is_not_private(ledger):
    search = GridSearchCV(classifier(ledger=ledger), {"hidden": [2, 3]}, cv=2).fit(X, Y)
    assert len(charges(ledger)) == 2 * 2 + 1, "two settings on two parts, and the best on all rows"
    model = search.best_estimator_
    assert not model.private_
    assert any("scoring=sfumato.NoisyAccuracyScorer" in text for text in model.result_.certificate.caveats)


def test_a_search_with_paid_scores_and_coins_is_private(ledger):
    scorer = NoisyAccuracyScorer(1.0, ledger=ledger)
    pipeline = Pipeline([("scale", BoundedScaler((-6, 6))), ("model", classifier(ledger=ledger))])
    search = GridSearchCV(pipeline, {"model__hidden": [2]}, cv=CoinSplit(2), scoring=scorer).fit(X, Y)
    assert charges(ledger).count("score of a search") == 2
    assert len(charges(ledger)) == 2 * 2 + 1
    assert search.best_estimator_[-1].private_


@pytest.mark.parametrize("terms", [{"cv": 2}, {"scoring": "accuracy"}], ids=str)
def test_paid_scores_of_parts_by_position_or_coins_without_paid_scores_are_not_private(terms):
    """A record that leaves moves every later row to where another was: folds differ in more than one record."""
    private = {"cv": CoinSplit(2), "scoring": NoisyAccuracyScorer(1.0)}
    search = GridSearchCV(classifier(), {"hidden": [2]}, **{**private, **terms}).fit(X, Y)
    assert not search.best_estimator_.private_


def test_a_trial_that_is_scored_is_marked_itself(monkeypatch):
    seen = []
    fit = PrivateClassifier.fit

    def watched(model, *rows):
        fit(model, *rows)
        seen.append(model.private_)

    monkeypatch.setattr(PrivateClassifier, "fit", lambda model, *rows: (watched(model, *rows), model)[1])
    cross_val_score(classifier(), X, Y, cv=2)
    assert seen == [False, False]


@pytest.mark.parametrize(("cv", "private"), [(2, False), (CoinSplit(2), True)])
def test_parts_by_position_are_noticed_where_nothing_is_scored(cv, private):
    calibrated = CalibratedClassifierCV(classifier(), cv=cv).fit(X, Y)
    found = [each.estimator for each in calibrated.calibrated_classifiers_]
    assert [each.private_ for each in found] == [private, private]
    assert private or "split by position" in found[0].result_.certificate.caveats[-1]


def test_no_room_for_a_trial_is_no_score(tmp_path):
    with Ledger.open(tmp_path / "s.db", budget=Budget(epsilon=3, delta=1e-5)) as small:
        search = GridSearchCV(classifier(ledger=small), {"hidden": [2, 3]}, cv=2, refit=False)
        with pytest.warns(FitFailedWarning, match="fits failed"):
            search.fit(X, Y)
        assert np.isnan(search.cv_results_["mean_test_score"]).any()
        assert small.epsilon_spent <= 3


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


class Own(SecretStream):
    """A stream with code of somebody else's."""

    def integers(self, *arguments):
        return super().integers(*arguments)


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize(("sampler", "expected"), [(None, False), (Own(), True)])
def test_noise_of_ones_own_by_which_a_search_chose_is_named(ledger, make, sampler, expected):
    scorer = NoisyAccuracyScorer(1.0, ledger=ledger, sampler=sampler)
    search = GridSearchCV(make(ledger=ledger), {"epsilon": [1.0]}, scoring=scorer, cv=CoinSplit(2))
    best = search.fit(X, Y if make is classifier else X[:, 0]).best_estimator_
    assert best.private_
    assert (OWN_NOISE in best.result_.certificate.caveats) == expected
