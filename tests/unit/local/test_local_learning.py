"""Release, file, learn: on drawn digits and small crowds."""

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Budget
from sfumato.audit.replay import ReplayOutcome
from sfumato.datasets import load
from sfumato.errors import BudgetExceeded, DataUnavailable, InvalidInput, LittleProtection
from sfumato.ledger import Certificate, Ledger
from sfumato.local import (
    ClassMoments,
    LabelledDirection,
    NoisedData,
    ReportPlan,
    TablePlan,
    View,
    blend,
    build_view,
    certificate_place,
    learn,
    linear_discriminant,
    nearest_mean,
    noise_images,
    open_ledger,
    open_policy_ledger,
    quadratic_discriminant,
    read_noised,
    read_table_plan,
    release_images,
    release_table,
    views,
)
from sfumato.policy import Column, Policy
from sfumato.randomness import SecretStream
from sfumato_lab.drawings import strokes


@pytest.fixture(scope="module")
def digits():
    rows = load("digits", "train", side=28)
    return rows.inputs[:, 0], rows.targets


@pytest.fixture(scope="module")
def view():
    return build_view("low-frequencies", 24)


def release(folder, digits, view, *, name="noised", epsilon=8.0, ledger=None, **changes):
    plan = ReportPlan(classes=10, dimension=view.dimension, epsilon=epsilon, **changes)
    place = folder / f"{name}.npz"
    with open_ledger(ledger or folder / "people.db", epsilon=epsilon, delta=plan.delta) as book:
        return release_images(
            *digits,
            plan=plan,
            view=view,
            name="digits",
            sampler=SecretStream(test_seed=1),
            ledger=book,
            out=place,
        )


def test_a_release_is_a_file_with_a_certificate_that_holds(tmp_path, digits, view):
    data, certificate = release(tmp_path, digits, view)
    assert certificate.verify().pld == 8
    assert certificate.unit == "person"
    assert str(certificate.relation) == "replace-one"
    assert certificate.plan["shuffled"]["epsilon"] == "no amplification"
    read = read_noised(tmp_path / "noised.npz")
    assert (read.vectors == data.vectors).all()
    assert read.plan == data.plan
    assert Certificate.read(certificate_place(tmp_path / "noised.npz")).event == certificate.event


@pytest.mark.filterwarnings("error::sfumato.errors.LittleProtection")
def test_a_delta_that_protects_nobody_is_told_of_before_the_charge(tmp_path, digits, view):
    with pytest.raises(LittleProtection, match=rf"this release .* delta < 1 / {len(digits[1])} people"):
        release(tmp_path, digits, view, randomiser="gaussian", delta=9e-4)
    with Ledger.open(tmp_path / "people.db") as ledger:
        assert ledger.charges() == []


def test_a_policy_whose_delta_protects_nobody_is_told_of(tmp_path):
    age = Column(name="age", type="integer", lower=0, upper=120)
    budget = Budget(epsilon=2, delta=1e-4, unit="person", relation="replace-one")
    declared = Policy(
        table="people", source="p.csv", columns={"age": age}, budget=budget, public_size=20_000, ledger=None
    )
    with pytest.warns(LittleProtection, match=r"this budget .* expected delta < 1 / 20000 people"):
        open_policy_ledger(declared, tmp_path / "p.toml").close()


def test_the_same_people_are_released_once(tmp_path, digits, view):
    release(tmp_path, digits, view)
    with pytest.raises(InvalidInput, match="once"):
        release(tmp_path, digits, view)
    with pytest.raises(BudgetExceeded):
        release(tmp_path, digits, view, name="again", epsilon=0.1)
    assert not (tmp_path / "again.npz").exists()


def test_a_release_that_the_ledger_refuses_looks_at_nothing(tmp_path, digits, view, monkeypatch):
    release(tmp_path, digits, view)
    monkeypatch.setattr(View, "directions", lambda self, images: pytest.fail("looked at the images"))
    with pytest.raises(BudgetExceeded):
        release(tmp_path, digits, view, name="again")


def test_the_classifier_is_as_fine_as_the_reports_allow():
    """Two classes with one mean and unlike spreads; the public guess knows neither."""
    guess = ClassMoments(shares=np.full(2, 0.5), means=np.eye(4)[:2], covariances=np.stack([np.eye(4)] * 2))
    view = View(
        kind="low-frequencies", centre=np.zeros(784, "f4"), matrix=np.eye(784, 4, dtype="f4"), public=guess
    )
    stream = SecretStream(test_seed=3)
    labels = stream.integers(2, 20_000)
    vectors = stream.normal(80_000).reshape(-1, 4) * np.where(labels[:, None] == 0, [1, 1, 1, 6], [6, 1, 1, 1])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = {}
    for epsilon in (0.5, 8.0):
        plan = ReportPlan(classes=2, dimension=4, epsilon=epsilon)
        said, noised = plan.randomise(labels, vectors, stream)
        found[epsilon] = learn(NoisedData(labels=said, vectors=noised, plan=plan, view=view, name="drawn")).name
    assert found == {0.5: "linear", 8.0: "quadratic"}


def test_drawings_of_other_classes_give_directions_only(digits):
    """The drawn shapes are of other kinds than anybody's labels: their moments and their names say nothing."""
    view = build_view("shapes", 16)
    assert len(view.public.shares) != 10
    plan = ReportPlan(classes=10, dimension=16, epsilon=12.0)
    data = noise_images(*digits, plan=plan, view=view, name="digits", sampler=SecretStream(test_seed=1))
    test = load("digits", "test", side=28)
    right = learn(data).predict(test.inputs[:, 0]) == test.targets
    assert right.mean() > 0.4  # chance is 0.1: 360 guesses reach 0.4 with a chance below 1e-40


def test_bad_input_is_refused_and_nothing_is_charged(tmp_path, digits, view):
    images, labels = digits
    for bad in ((images, labels + 5), (images * 3, labels), (np.full_like(images, np.nan), labels)):
        with pytest.raises(InvalidInput):
            release(tmp_path, bad, view)
    assert list(tmp_path.glob("*.npz")) == []
    release(tmp_path, digits, view)  # the ledger still has room


@pytest.mark.parametrize("classifier", ["nearest-mean", "linear", "quadratic"])
def test_learning_from_reports_alone(tmp_path, digits, view, classifier):
    data, _ = release(tmp_path, digits, view, epsilon=12.0)
    test = load("digits", "test", side=28)
    right = learn(data, classifier=classifier).predict(test.inputs[:, 0]) == test.targets
    assert right.mean() > 0.6  # chance is 0.1: 360 guesses reach 0.6 with a chance below 1e-50


def test_gaussian_reports_are_learnt_from_too(tmp_path, digits, view):
    data, certificate = release(tmp_path, digits, view, epsilon=12.0, delta=1e-5, randomiser="gaussian")
    assert certificate.verify().pld <= 12
    assert certificate.eta > 0
    test = load("digits", "test", side=28)
    assert (learn(data, classifier="linear").predict(test.inputs[:, 0]) == test.targets).mean() > 0.3


def test_one_person_moves_only_their_own_report(replay, digits, view):
    images, labels = digits[0][:50], digits[1][:50]
    other = images.copy()
    other[-1] = images[0]

    def pipeline(rows, sampler):
        plan = ReportPlan(classes=10, dimension=view.dimension, epsilon=8.0)
        data = noise_images(rows, labels, plan=plan, view=view, name="digits", sampler=sampler)
        shown = (data.labels[:-1], data.vectors[:-1], data.plan.to_json(), data.vectors.shape)
        return ReplayOutcome(public=shown)

    replay(pipeline, images, other)


def test_a_likelihood_attack_stays_below_epsilon():
    from sfumato.audit import distinguish, epsilon_bound

    randomiser = LabelledDirection(classes=4, dimension=8, epsilon=2.0)
    one, other = np.eye(8)[0], -np.eye(8)[0]

    def draws(label, vector):
        def draw(count):
            stream = SecretStream()
            labels, points = randomiser.release(np.full(count, label), np.tile(vector, (count, 1)), stream)
            return np.column_stack([labels, points])

        return draw

    def score(rows):
        labels, points = rows[:, 0].astype(np.int64), rows[:, 1:]
        return randomiser.log_density(labels, points, 0, one) - randomiser.log_density(labels, points, 1, other)

    def bound(errors, alpha):
        return epsilon_bound(errors, delta=0.0, alpha=alpha)

    errors = distinguish(draws(0, one), draws(1, other), bound, trials=20_000, score=score)
    assert 1.5 < bound(errors, 1e-6) <= 2.0


def test_what_is_no_noised_data_set_is_refused(tmp_path):
    with pytest.raises(DataUnavailable):
        read_noised(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(InvalidInput, match="noised data set"):
        read_noised(tmp_path / "other.npz")


def test_classifiers_agree_with_gaussians_by_hand():
    moments = ClassMoments(
        shares=np.array([0.5, 0.5]),
        means=np.array([[0.0, 0.0], [2.0, 0.0]]),
        covariances=np.stack([np.eye(2), np.eye(2)]),
    )
    rows = np.array([[0.9, 5.0], [1.1, -5.0]])  # the border is x = 1
    for make in (nearest_mean, linear_discriminant, quadratic_discriminant):
        assert make(moments).scores(rows).argmax(axis=1).tolist() == [0, 1]


def test_a_blend_without_trust_is_the_prior():
    prior, learnt = np.array([[2.0, 1.0]]), np.array([[0.0, 9.0]])
    assert blend(prior, learnt, 0.0).argmax() == 0
    assert blend(prior, learnt, 1.0).argmax() == 1
    assert blend([[1.0, 0.9]], learnt, 0.1).argmax() == 1  # little trust tips a doubt
    assert blend([[9.0, 0.0]], learnt, 0.1).argmax() == 0  # and overrules nothing sure


POLICY = """
[table]
source = "people.csv"
[budget]
epsilon = 4.0
[columns.age]
type = "integer"
lower = 0
upper = 100
[columns.city]
type = "text"
categories = ["Delft", "Utrecht"]
"""


@pytest.fixture
def people(tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY)
    return pd.DataFrame({"age": [20, 40] * 2000, "city": ["Delft", "Utrecht", "Delft", "Delft"] * 1000})


def test_a_table_is_noised_column_by_column(tmp_path, people):
    plan = read_table_plan(tmp_path / "policy.toml")
    assert plan.epsilon == pytest.approx(4)
    with open_ledger(tmp_path / "people.db", epsilon=plan.epsilon, delta=0.0) as ledger:
        certificate = release_table(
            people,
            plan=plan,
            name="people",
            sampler=SecretStream(test_seed=1),
            ledger=ledger,
            out=tmp_path / "noised.npz",
        )
    assert certificate.verify().pld == pytest.approx(4)
    with np.load(tmp_path / "noised.npz") as archive:
        found = plan.estimates({name: archive[name] for name in archive.files})
    # Laplace noise of scale 50 has standard deviation 71, over √4000: 1.1; six of them.
    assert abs(found["age"].values[0] - 30) < 7
    assert abs(found["city"].values[0] - 0.75) < 0.08


def test_no_cell_can_cause_an_error(tmp_path, people):
    plan = read_table_plan(tmp_path / "policy.toml")
    odd = pd.DataFrame({"age": [None, "x", 1e9, -5], "city": ["Paris", None, 3, "Delft"]})
    reports = plan.randomise(odd, SecretStream(test_seed=1))
    assert {name: len(values) for name, values in reports.items()} == {"age": 4, "city": 4}
    assert set(reports["city"].tolist()) <= {0, 1}


def test_undeclared_columns_and_unknown_keys_are_refused(tmp_path, people):
    place = tmp_path / "policy.toml"
    place.write_text(POLICY.replace("lower = 0\n", "").replace("upper = 100\n", ""))
    with pytest.raises(InvalidInput, match="declare"):
        read_table_plan(place)
    place.write_text(POLICY.replace("lower", "low"))
    with pytest.raises(InvalidInput, match="low"):
        read_table_plan(place)
    with pytest.raises(InvalidInput, match="at least one column"):
        TablePlan(columns=())


def test_priors_together_join_their_features_and_answer_by_the_mean():
    images = strokes.draw(6, seed=4)[0].astype(np.float32) / 255
    seen, scores = views.prior_outputs(views.TOGETHER, images)
    apart = [views.prior_outputs(name, images) for name in views.NETS[views.TOGETHER]]
    np.testing.assert_allclose(seen, np.concatenate([one for one, _ in apart], axis=1), atol=1e-6)
    np.testing.assert_allclose(scores, np.mean([said for _, said in apart], axis=0), atol=1e-5)
    total = np.exp(apart[0][1]).sum(axis=1)  # of geometric means of two heads, which agree on drawings
    assert ((total > 0.9) & (total < 1 + 1e-5)).all()
