"""Names that users and other tools rely on."""

import subprocess
import sys

import pytest

import sfumato


def test_public_names():
    assert set(sfumato.__all__) == {
        "BoundedScaler",
        "Budget",
        "CoinSplit",
        "Ledger",
        "NoisyAccuracyScorer",
        "PrivateClassifier",
        "PrivateTrainer",
        "Relation",
        "TrainingPlan",
        "connect",
        "load",
        "train",
    }
    for name in sfumato.__all__:
        assert getattr(sfumato, name) is not None
    with pytest.raises(AttributeError):
        _ = sfumato.nonsense


@pytest.mark.parametrize(
    "package",
    [
        "accounting",
        "governance",
        "ledger",
        "mechanisms",
        "datasets",
        "models",
        "training",
        "pate",
        "local",
        "query",
        "synthesis",
        "audit",
        "learn",
        "holders",
        "runs",
    ],
)
def test_packages_export_what_they_say(package):
    module = __import__(f"sfumato.{package}", fromlist=["__all__"])
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_names_for_users_and_packages_without_an_import_of_their_own():
    assert set(dir(sfumato)) >= {*sfumato.__all__, "datasets", "learn"}
    assert not [name for name in dir(sfumato) if name.startswith("_") and name != "__version__"]
    assert "import_module" not in dir(sfumato)
    code = "import sfumato; sfumato.datasets.load; sfumato.learn.Classifier; sfumato.errors.Refused"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_clipped_gradient_sum_is_where_it_was():
    from sfumato.training import clipped_gradient_sum

    assert callable(clipped_gradient_sum)


def test_a_ledger_needs_no_torch():
    code = "import sys, sfumato.ledger, sfumato.mechanisms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_training_waits_for_no_library_that_it_does_not_need():
    """scikit-learn's tools, and what pandas and SciPy bring, are loaded by who asks for them."""
    code = "import sys; from sfumato.training import PrivateTrainer, train; " + (
        "sys.exit(bool({'scipy', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_waits_for_no_mathematics():
    code = "import sys, sfumato.cli; sys.exit(bool({'torch', 'scipy', 'numpy', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_two_packages_export_classes_of_one_name():
    homes = {}
    for package in PACKAGES:
        module = __import__(f"sfumato.{package}", fromlist=["__all__"])
        for name in module.__all__:
            if isinstance(getattr(module, name), type):
                homes.setdefault(name, {}).setdefault(id(getattr(module, name)), package)
    assert {name: sorted(found.values()) for name, found in homes.items() if len(found) > 1} == {}


PACKAGES = (
    *("accounting", "ledger", "mechanisms", "datasets", "models", "training", "pate", "local", "query"),
    *("audit", "learn", "holders", "runs"),
)
