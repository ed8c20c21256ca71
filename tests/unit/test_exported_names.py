"""Names that users and other tools rely on."""

import subprocess
import sys

import pytest

import sfumato


def test_public_names():
    assert set(sfumato.__all__) == {
        "Budget",
        "Ledger",
        "PrivateClassifier",
        "PrivateTrainer",
        "Relation",
        "TrainingPlan",
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
        "ledger",
        "mechanisms",
        "datasets",
        "models",
        "training",
        "pate",
        "local",
        "query",
        "synthesis",
        "tracing",
        "audit",
    ],
)
def test_packages_export_what_they_say(package):
    module = __import__(f"sfumato.{package}", fromlist=["__all__"])
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_clipped_gradient_sum_is_where_it_was():
    from sfumato.training import clipped_gradient_sum

    assert callable(clipped_gradient_sum)


def test_a_ledger_needs_no_torch():
    code = "import sys, sfumato.ledger, sfumato.mechanisms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
