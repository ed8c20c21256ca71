import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

from sfumato import PrivateClassifier
from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Ledger

CHECKS = list(estimator_checks_generator(PrivateClassifier(epsilon=10, epochs=2, random_state=0), legacy=True))


@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=[check.func.__name__ + str(i) for i, (_, check) in enumerate(CHECKS)]
)
def test_behaves_as_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(2000, centers=3, n_features=4, cluster_std=1.0, random_state=0)
    return np.clip(X, -15, 15), y


def test_learns_what_is_easy(blobs):
    """Three far-apart clouds: 2,000 rows at ε=1 suffice for nearly all of them."""
    X, y = blobs
    model = PrivateClassifier(epsilon=1, classes=(0, 1, 2), public_size=2000, bounds=(-15, 15)).fit(X, y)
    assert model.score(X, y) > 0.95
    assert model.epsilon_ <= 1
    assert model.private_


@pytest.mark.keeps_out("Categories or bounds read off the data")
def test_says_what_was_read_from_the_data(blobs):
    model = PrivateClassifier(epsilon=1, epochs=1).fit(*blobs)
    assert not model.private_
    assert any("classes, public_size, bounds" in caveat for caveat in model.result_.certificate.caveats)


def test_charges_the_ledger(blobs, tmp_path):
    X, y = blobs
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-5)) as ledger:
        fit = PrivateClassifier(epsilon=0.9, epochs=1, ledger=ledger, public_size=2000)
        fit.fit(X, y)
        assert 0.85 < ledger.epsilon_spent <= 0.9
        with pytest.raises(BudgetExceeded):
            fit.fit(X, y)


def test_an_undeclared_label_is_refused(blobs):
    X, y = blobs
    with pytest.raises(InvalidInput, match="declared classes"):
        PrivateClassifier(classes=(0, 1), public_size=2000, bounds=(-15, 15)).fit(X, y)


@pytest.mark.keeps_out(
    "A second training that goes on from the weights of the first, or trains the caller's module"
)
def test_the_callers_module_is_not_trained_in_place(blobs):
    module = nn.Linear(4, 3)
    before = module.weight.detach().clone()
    model = PrivateClassifier(epsilon=1, epochs=1, module=module).fit(*blobs)
    assert module.weight.equal(before)
    assert not model.module_.weight.equal(before)
