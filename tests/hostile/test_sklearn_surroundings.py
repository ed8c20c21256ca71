"""Private estimators inside pipelines and searches: every fit is paid, and nothing passes for private."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import typer
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.impute import SimpleImputer
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    permutation_test_score,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, StandardScaler, scale
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

import sfumato
from sfumato import BoundedScaler, Budget, CoinSplit, Ledger, NoisyAccuracyScorer, PrivateClassifier
from sfumato.cli.app import app
from sfumato.datasets import Chosen
from sfumato.datasets.chosen import SEEDED_CHOICE
from sfumato.errors import LedgerError, RelationMismatch
from sfumato.ledger.statement import as_json
from sfumato.mechanisms import DiscreteLaplace
from sfumato.randomness import SecretStream
from sfumato.recipes.table import PrivateRegressor
from sfumato.training.known_steps import is_row_wise
from sfumato.training.own_code import OWN_CODE
from sfumato.training.scoring import SPLIT, chosen_by_coins
from sfumato.training.surroundings import SCORED, _scored, _split_by
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


def test_a_ledger_says_of_the_noise_that_it_was_not_seeded_and_of_nothing_else(ledger):
    """Its help says so, too: whoever reads `private` there may take it for more."""
    model = Pipeline([("scale", StandardScaler()), ("model", classifier(ledger=ledger))]).fit(X, Y)[-1]
    assert not model.private_
    assert as_json(ledger)["private"]
    told = typer.main.get_command(app).commands["ledger"].commands["show"].help
    assert "`private` says that no noise was seeded, and no more" in " ".join(told.split())


def test_it_is_noticed_however_deep_it_is():
    inner = make_pipeline(FunctionTransformer(), classifier(bounds=(-6, 6)))
    outer = Pipeline([("scale", StandardScaler()), ("rest", inner)]).fit(X, Y)
    assert not outer[-1][-1].private_


class Wrapped(BoundedScaler):
    """Says that it needs no fit, and centres what it is shown."""

    def transform(self, X):
        return X - np.mean(X, axis=0)


class OwnImputer(SimpleImputer):
    """Says that it fills in a constant."""

    def transform(self, X):
        return X - np.mean(X, axis=0)


class OwnColumns(ColumnTransformer):
    """Says that it names its columns."""

    def fit_transform(self, X, y=None, **more):
        return super().fit_transform(X, y, **more) - np.mean(X, axis=0)


FILLED = {"strategy": "constant", "fill_value": 0.0, "keep_empty_features": True}


def replaced(step):
    step.transform = lambda X: X - np.mean(X, axis=0)
    return step


@pytest.mark.parametrize(
    "before",
    [
        FunctionTransformer(scale),
        FunctionTransformer(lambda rows: rows - rows.mean(0)),
        Normalizer(),
        Wrapped(bounds=(-6, 6)),
        replaced(BoundedScaler(bounds=(-6, 6))),
        FeatureUnion([("mix", FunctionTransformer(scale))]),
        make_pipeline(BoundedScaler(bounds=(-6, 6)), FunctionTransformer(scale)),
        SimpleImputer(),
        SimpleImputer(**{**FILLED, "fill_value": None}),
        SimpleImputer(**{**FILLED, "keep_empty_features": False}),
        SimpleImputer(**FILLED, add_indicator=True),
        OwnImputer(**FILLED),
        replaced(SimpleImputer(**FILLED)),
        ColumnTransformer([("a", StandardScaler(), [0])], remainder="passthrough"),
        ColumnTransformer([("a", "passthrough", [0])], remainder=StandardScaler()),
        ColumnTransformer([("a", "passthrough", lambda rows: [int(np.std(rows[:, 1]) > 0), 0])]),
        ColumnTransformer([("a", "passthrough", [0])], remainder="passthrough", transformer_weights={"a": 2}),
        ColumnTransformer([("a", make_pipeline(StandardScaler()), [0, 1])]),
        OwnColumns([("a", "passthrough", [0, 1])]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_only_steps_that_are_known_to_keep_rows_apart_pass(before):
    """`requires_fit=False` says that a step keeps nothing, and not that it does not mix rows."""
    model = Pipeline([("before", before), ("model", classifier())]).fit(X, Y)[-1]
    assert not model.private_
    assert any("step before" in text for text in model.result_.certificate.caveats)


class Permuted:
    """Scores on labels that were dealt anew by position."""

    def __init__(self, inner):
        self.inner = inner

    def fit(self, rows, labels):
        options = {"cv": CoinSplit(2), "scoring": NoisyAccuracyScorer(1.0), "n_permutations": 1}
        permutation_test_score(self.inner, rows, labels, **options)


@pytest.mark.parametrize(
    "around",
    [
        lambda inner: BaggingClassifier(inner, n_estimators=1),
        lambda inner: TunedThresholdClassifierCV(inner, cv=CoinSplit(2)),
        lambda inner: StackingClassifier([("one", inner)], cv=CoinSplit(2)),
        lambda inner: VotingClassifier([("one", inner)]),
        lambda inner: OneVsRestClassifier(inner),
        lambda inner: CalibratedClassifierCV(inner, cv=CoinSplit(2), ensemble=False),
        lambda inner: CalibratedClassifierCV(inner, cv=CoinSplit(2), method="isotonic"),
        lambda inner: HalvingGridSearchCV(
            inner, {"hidden": [2, 3]}, cv=CoinSplit(2), scoring=NoisyAccuracyScorer(1.0)
        ),
        Permuted,
        lambda inner: TunedThresholdClassifierCV(
            GridSearchCV(inner, {"hidden": [2]}, cv=CoinSplit(2), scoring=NoisyAccuracyScorer(1.0)),
            cv=CoinSplit(2),
        ),
    ],
    ids=[
        *("bagging", "threshold", "stacking", "voting", "one-vs-rest", "calibrated", "calibrated-of-parts"),
        *("halving", "permuted", "threshold-of-search"),
    ],
)
def test_a_tool_of_scikit_learn_that_is_not_known_is_noticed(around, monkeypatch):
    """A list of bad callers is never finished: whoever is not known makes the fit not private."""
    seen, fit = [], PrivateClassifier.fit

    def watched(model, *rows):
        fit(model, *rows)
        seen.append(model)
        return model

    monkeypatch.setattr(PrivateClassifier, "fit", watched)
    around(classifier()).fit(X, Y)
    assert seen
    assert not any(model.private_ for model in seen)
    assert all(any("not known" in text for text in model.result_.certificate.caveats) for model in seen)


@pytest.mark.parametrize(("cv", "private"), [(2, False), (CoinSplit(2), True)])
def test_parts_by_position_are_noticed_where_nothing_is_scored(cv, private, monkeypatch):
    seen, fit = [], PrivateClassifier.fit

    def watched(model, *rows):
        fit(model, *rows)
        seen.append(model)
        return model

    monkeypatch.setattr(PrivateClassifier, "fit", watched)
    cross_val_predict(classifier(), X, Y, cv=cv)
    assert [model.private_ for model in seen] == [private, private]
    assert private or "split by position" in seen[0].result_.certificate.caveats[-1]


def test_a_pipeline_around_a_search_is_noticed():
    search = GridSearchCV(classifier(), {"hidden": [2]}, cv=CoinSplit(2), scoring=NoisyAccuracyScorer(1.0))
    known = Pipeline([("scale", BoundedScaler((-6, 6))), ("search", search)]).fit(X, Y)[-1]
    assert known.best_estimator_.private_
    mixing = Pipeline([("scale", StandardScaler()), ("search", clone(search))]).fit(X, Y)[-1]
    assert not mixing.best_estimator_.private_


@pytest.mark.parametrize(
    "before",
    [
        "passthrough",
        FunctionTransformer(),
        BoundedScaler(bounds=(-6, 6)),
        Binarizer(),
        SimpleImputer(**FILLED),
        ColumnTransformer([("a", BoundedScaler(bounds=(-6, 6)), [0])], remainder="passthrough"),
        ColumnTransformer(
            [
                ("a", make_pipeline(SimpleImputer(**FILLED), BoundedScaler(bounds=(-6, 6))), [1]),
                ("b", "drop", [0]),
            ]
        ),
    ],
    ids=lambda one: str(one)[:10],
)
def test_a_step_that_reads_nothing_off_the_rows_stays_private(before):
    model = Pipeline([("scale", before), ("model", classifier(bounds=(-6, 6)))]).fit(X, Y)[-1]
    assert model.private_
    assert not [text for text in model.result_.certificate.caveats if text.startswith("not private")]


STEPS = {
    "imputer": SimpleImputer(**FILLED),
    "columns": ColumnTransformer(
        [("a", BoundedScaler(bounds=(-6, 6)), [0]), ("b", SimpleImputer(**FILLED), [1])], remainder="drop"
    ),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_a_known_step_gives_a_row_the_same_bits_whoever_else_is_there(step):
    """An empty column too, which one row fills: without `keep_empty_features` it would come and go with it."""
    rows = np.array([[1.0, np.nan], [2.0, np.nan], [np.nan, np.nan], [5.0, 3.0]])
    rows[2, 0] = 0.25
    assert is_row_wise(step)
    whole = clone(step).fit_transform(rows)
    without = clone(step).fit_transform(rows[:-1])
    assert whole[:-1].tobytes() == without.tobytes()
    assert is_row_wise(clone(step).fit(rows))


def test_columns_that_were_fitted_by_something_else_are_not_known():
    step = ColumnTransformer([("a", FunctionTransformer(scale), [0, 1])]).fit(X)
    step.transformers = [("a", "passthrough", [0, 1])]
    assert not is_row_wise(step)


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


NAMED = {"right": NoisyAccuracyScorer(1.0)}


@pytest.mark.parametrize("scoring", [NoisyAccuracyScorer(1.0), NAMED], ids=["one", "named"])
@pytest.mark.parametrize("jobs", [None, 2])
def test_every_trial_of_a_private_search_is_private_and_warns_of_nothing(scoring, jobs, recwarn):
    """scikit-learn makes plain arrays of the rows of a part before it fits on them."""
    terms = {"cv": CoinSplit(2), "scoring": scoring, "n_jobs": jobs, "return_estimator": True}
    pipeline = Pipeline([("scale", BoundedScaler((-6, 6))), ("model", classifier())])
    found = [each[-1] for each in cross_validate(pipeline, X, Y, **terms)["estimator"]]
    assert [each.private_ for each in found] == [True, True]
    assert not [text for each in found for text in each.result_.certificate.caveats if "not private" in text]
    assert not [str(each.message) for each in recwarn if "not private" in str(each.message)]


@pytest.mark.parametrize("scoring", [NoisyAccuracyScorer(1.0), NAMED], ids=["one", "named"])
def test_every_fit_of_a_private_search_is_private_and_warns_of_nothing(scoring, monkeypatch, recwarn):
    seen, fit = [], PrivateClassifier.fit

    def watched(model, *rows):
        fit(model, *rows)
        seen.append(model.private_)
        return model

    monkeypatch.setattr(PrivateClassifier, "fit", watched)
    refit = "right" if scoring is NAMED else True
    GridSearchCV(classifier(), {"hidden": [2, 3]}, cv=CoinSplit(2), scoring=scoring, refit=refit).fit(X, Y)
    assert seen == [True] * 5
    assert not [str(each.message) for each in recwarn if "not private" in str(each.message)]


class Changed(CoinSplit):
    """Parts by coins, and then something else."""

    def __init__(self, change):
        super().__init__(2)
        self.change = change

    def split(self, X, y=None, groups=None):
        return ((self.change(kept), scored) for kept, scored in super().split(X, y, groups))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[:50],
        lambda rows: np.asarray(rows)[:50],
        lambda rows: np.asarray(rows)[::-1],
        lambda rows: rows + 0,
        lambda rows: np.arange(60).view(type(rows)),
        lambda rows: pickle.loads(pickle.dumps(rows[:50])),  # noqa: S301
    ],
    ids=["cut", "view-cut", "reversed", "computed", "not-drawn", "pickled"],
)
def test_rows_that_were_changed_after_the_coins_are_not_by_coins(change):
    found = cross_validate(
        classifier(), X, Y, cv=Changed(change), scoring=NoisyAccuracyScorer(1.0), return_estimator=True
    )
    assert [each.private_ for each in found["estimator"]] == [False, False]


def test_several_scores_are_paid_only_if_each_is():
    scoring = {**NAMED, "other": "accuracy"}
    found = cross_validate(classifier(), X, Y, cv=CoinSplit(2), scoring=scoring, return_estimator=True)
    assert [each.private_ for each in found["estimator"]] == [False, False]


def test_a_trial_that_is_scored_is_marked_itself(monkeypatch):
    seen = []
    fit = PrivateClassifier.fit

    def watched(model, *rows):
        fit(model, *rows)
        seen.append(model.private_)

    monkeypatch.setattr(PrivateClassifier, "fit", lambda model, *rows: (watched(model, *rows), model)[1])
    cross_val_score(classifier(), X, Y, cv=2)
    assert seen == [False, False]


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
    """Answers the first row that it ever sees, and no other; keeps what it saw."""

    def predict(self, X):
        before, self.seen_ = getattr(self, "seen_", 0), getattr(self, "seen_", 0) + len(X)
        return np.where(np.arange(len(X)) + before == 0, 0, 1)


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
    assert (OWN_CODE in scorer.certificate_.caveats) == (make is not a_known_one)


def test_a_row_that_raises_is_a_wrong_answer_and_changes_no_other(monkeypatch):
    rows, labels = np.full((30, 1), 0.5, dtype=np.float32), np.zeros(30, dtype=np.int64)
    estimator = a_known_one(rows, labels)
    whole, _ = counts(monkeypatch, NoisyAccuracyScorer(1.0), estimator, rows, labels)
    rows[7] = np.inf  # no scaler takes it
    found, _ = counts(monkeypatch, NoisyAccuracyScorer(1.0), estimator, rows, labels)
    assert abs(found - whole).max() <= 1
    assert found.sum() == 30


# Units


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


# Seeded coins and seeded noise

SEEDED = {"sampler": SecretStream(test_seed=1)}
PAID = NoisyAccuracyScorer(1.0)


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize(
    "terms", [{"cv": CoinSplit(2, **SEEDED)}, {"scoring": NoisyAccuracyScorer(1.0, **SEEDED)}]
)
def test_what_seeded_coins_or_scores_chose_is_not_private(ledger, make, terms):
    """Of such parts half the rows are others when a record leaves; from such a score anybody has the count."""
    best = make(ledger=ledger)
    search = GridSearchCV(best, {"epsilon": [1.0]}, **{"cv": CoinSplit(2), "scoring": PAID, **terms})
    with pytest.warns(UserWarning, match="chosen by draws from a seeded stream"):
        best = search.fit(X, Y if make is classifier else X[:, 0]).best_estimator_
    assert not best.private_
    assert not best.result_.certificate.private
    assert SEEDED_CHOICE in best.result_.certificate.caveats
    assert not list(ledger.charges())[-1].private


class Exact(NoisyAccuracyScorer):
    """A score without noise, and without a charge."""

    def __call__(self, estimator, X, y):
        return float((estimator.predict(X) == y).mean())


class ByPosition(CoinSplit):
    def split(self, X, y=None, groups=None):
        half = np.arange(len(X)) < len(X) // 2
        return iter([(np.flatnonzero(half), np.flatnonzero(~half))])


def test_scorer_and_split_are_taken_by_their_exact_type():
    assert SCORED in list(_scored(Exact(1.0), Chosen()))
    assert SCORED in list(_scored({"paid": PAID, "other": Exact(1.0)}, Chosen()))
    assert SCORED not in list(_scored(PAID, Chosen()))
    assert _split_by(ByPosition(2)) is None
    assert _split_by(CoinSplit(2)) == Chosen()
    assert _split_by(CoinSplit(2, sampler=Own())) == Chosen(own_code=True)


@pytest.mark.parametrize(
    ("cv", "expected"),
    [
        (list(CoinSplit(2).split(X)), Chosen()),
        (list(CoinSplit(2, **SEEDED).split(X)), Chosen(private=False)),
        ([*CoinSplit(2).split(X), *ByPosition(2).split(X)], None),
        ([], None),
        (CoinSplit(2).split(X), None),  # nobody knows what it gave
    ],
    ids=["coins", "seeded", "one-by-position", "none", "iterator"],
)
def test_a_list_of_parts_is_known_by_each_of_them(cv, expected):
    assert _split_by(cv) == expected


def test_a_search_on_a_list_of_parts_by_coins_is_private():
    parts = list(CoinSplit(2).split(X))
    assert (
        GridSearchCV(classifier(), {"hidden": [2]}, cv=parts, scoring=PAID).fit(X, Y).best_estimator_.private_
    )


def test_parts_remember_their_coins_in_another_process():
    kept, _ = next(CoinSplit(2, **SEEDED).split(X))
    assert chosen_by_coins(pickle.loads(pickle.dumps(kept))) == Chosen(private=False)  # noqa: S301


@pytest.mark.parametrize(
    ("cv", "private", "said"),
    [(CoinSplit(2), True, None), (CoinSplit(2, **SEEDED), False, SEEDED_CHOICE), (2, True, SPLIT)],
    ids=["coins", "seeded", "position"],
)
def test_a_score_tells_how_its_part_was_chosen(ledger, cv, private, said):
    scorer = NoisyAccuracyScorer(1.0, ledger=ledger)
    cross_val_score(DummyClassifier(), X, Y, cv=cv, scoring=scorer)
    assert [charge.private for charge in ledger.charges()] == [private] * 2
    assert {SEEDED_CHOICE, SPLIT} & set(scorer.certificate_.caveats) == {said} - {None}
