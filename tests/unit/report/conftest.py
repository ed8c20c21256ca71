"""Run folders of every kind, written by hand: what a page must be able to draw."""

import json

import numpy as np
import pytest
from PIL import Image

LEVELS = (None, 10_000.0, 1000.0, 300.0, 100.0, 8.0, 1.0, 0.25)


def history(*accuracies):
    return [{"epoch": n, "test_accuracy": a, "test_loss": 1 - a} for n, a in enumerate(accuracies, start=1)]


def trained(epsilon, accuracy, **more):
    return {
        "name": "CNN",
        "epsilon": epsilon,
        "target_epsilon": epsilon,
        "test_accuracy": accuracy,
        "test_loss": 1 - accuracy,
        "history": history(accuracy - 0.02, accuracy),
        **more,
    }


ROC = [[0.001, 0.05], [0.01, 0.1], [0.1, 0.3], [1.0, 1.0]]
SHARE = {"value": 0.1, "lower": 0.05, "upper": 0.2}
ATTACKED = {"auc": SHARE, "tpr_at_fpr_0.001": SHARE, "precision_at_median": SHARE, "recall_at_median": SHARE}
RESULTS = {
    "plain-and-private": {
        "data": "mnist",
        "rows": 60000,
        "test_rows": 10000,
        "delta": 1e-5,
        "attacker_true_positive_rate": 0.0231,
        "runs": [trained(None, 0.989), trained(1.0, 0.951)],
        "feature_maps": {
            "digit": "digit.png",
            **{side: {"conv1": "maps.png", "conv2": "maps.png"} for side in ("plain", "private")},
        },
    },
    "sweep": {
        "data": "mnist",
        "delta": 1e-5,
        "runs": [trained(e, a, seed=s) for e, a in ((0.5, 0.92), (2.0, 0.96)) for s in (1, 2)],
    },
    "best-recipe": {
        "data": "mnist",
        "delta": 1e-5,
        "note": "features learned from drawings",
        "plain_accuracy": 0.992,
        "runs": [trained(e, a, seed=s) for e, a in ((0.5, 0.982), (1.0, 0.985)) for s in (1, 2, 3)],
    },
    "votes": {
        "epsilon": 0.99,
        "delta": 1e-5,
        "test_accuracy": 0.98,
        "start_accuracy": 0.96,
        "label_accuracy": 0.9,
        "teachers": 100,
        "asked": 60,
        "answered": 60,
        "sigma": 18.0,
        "votes": [
            {"counts": [90, 10, *[0] * 8], "noisy": [85.1, 22.0, *[-3.0] * 8], "label": 0, "truth": 0},
            {"counts": [40, 35, 25, *[0] * 7], "noisy": [31.0, 44.0, *[1.0] * 8], "label": 1, "truth": 0},
        ],
    },
    "reports": {
        "delta": 0.0,
        "people": 60000,
        "note": "features learned from drawings",
        "runs": [{"epsilon": 4.0, "test_accuracy": 0.97}],
    },
    "digits": {
        "delta": 1e-5,
        "sheet": "digits.png",
        "side": 28,
        "digits": 10,
        "levels": [
            {"epsilon": epsilon, "readable": 0.97 - 0.12 * number} for number, epsilon in enumerate(LEVELS)
        ],
    },
    "differencing": {
        "published_age": 97,
        "differencing": {
            "truth": 97,
            "averages_only": 97.0,
            "minimum_group": 97.0,
            "private_median": 98.5,
            "private_95": [-222.5, 437.9],
            "share_within_5_years": 0.056,
            "tries": 300,
            "epsilon": 1.0,
        },
        "histogram": {"counts": [1, 4, 9, 4, 1], "edges": [-400, -200, 0, 200, 400, 600]},
        "reconstruction_without_a_limit": {
            "people": 64,
            "answered": 256,
            "refused": 0,
            "right": 1.0,
            "guessing": 0.53,
        },
        "reconstruction_under_a_budget": {
            "people": 64,
            "answered": 5,
            "refused": 251,
            "right": 0.64,
            "guessing": 0.53,
        },
    },
    "audit": {
        "claimed_epsilon": 2.38,
        "delta": 1e-5,
        "lower_bound": 2.34,
        "sure_bound": 2.26,
        "untested": ["the sampler"],
        "verdict": "not refuted: the attack proves ε ≥ 2.34, 98% of the claim",
        "canaries": 25992,
        "steps_observed": 12,
    },
    "membership": {
        "attack": "LiRA",
        "rows": 1000,
        "delta": 1e-4,
        "networks": {
            "without privacy": {"epsilon": None, "curve": ROC, "test_accuracy": 0.9, "LiRA": ATTACKED},
            "ε = 1": {"epsilon": 1.0, "curve": ROC, "test_accuracy": 0.5, "LiRA": ATTACKED},
        },
    },
    "epidemic": {
        "people": 5000,
        "days": 4,
        "delta": 1e-3,
        "unit": "one contact-day message",
        "curves": [
            {
                "method": method,
                "name": method,
                "epsilon": epsilon,
                "peak": 0.2,
                "prevalence": [0.01, 0.1, 0.2, 0.1],
                "epsilon_lifetime": epsilon,
                "epsilon_person": epsilon,
            }
            for method, epsilon in (("none", None), ("traditional", 1.0), ("dpfn", None), ("dpfn", 1.0))
        ],
    },
    "ledger": {
        "ledger": "a name",
        "epsilon": 12.0,
        "delta": 1e-5,
        "unit": "record",
        "relation": "add-remove",
        "epsilon_spent": 3.18,
        "epsilon_left": 8.82,
        "epsilon_if_fixed_in_advance": 2.24,
        "private": True,
        "charges": [
            {"entry": 1, "purpose": "CNN at ε = 1", "epsilon": 1.0, "epsilon_spent": 1.0, "private": True},
            {"entry": 2, "purpose": "CNN at ε = 2", "epsilon": 2.0, "epsilon_spent": 3.18, "private": True},
        ],
        "refusal": "expected a charge that fits the budget",
    },
}


def _write_run(folder, result, certificate=None):
    release = folder / "release"
    (release / "figures").mkdir(parents=True)
    (release / "result.json").write_text(json.dumps(result), encoding="utf-8")
    if certificate is not None:
        (release / "certificate.json").write_text(json.dumps(certificate), encoding="utf-8")
    sheet = np.full((28 * len(LEVELS), 280), 90, dtype=np.uint8)
    for name in ("digits.png", "digit.png", "maps.png"):
        Image.fromarray(sheet).save(release / "figures" / name)
    return folder


@pytest.fixture
def write_stage(tmp_path):
    """Write one stage's run folder as it is, or with some of its values changed."""

    def write(kind, **changes):
        result = {"stage": kind, "title": f"the {kind}", "status": "done", "settings": {}, **RESULTS[kind]}
        return _write_run(tmp_path / "demo" / kind, {**result, **changes})

    return write


@pytest.fixture
def write_run():
    return _write_run


@pytest.fixture
def whole_story(write_stage, tmp_path):
    """A folder with a run of every kind."""
    for kind in RESULTS:
        write_stage(kind)
    return tmp_path / "demo"


@pytest.fixture
def kinds():
    return tuple(RESULTS)


@pytest.fixture
def report_of_everything(whole_story, tmp_path, write_run):
    """The page of a run of every kind, with a certificate."""
    from sfumato.accounting import GaussianEvent
    from sfumato.ledger import Certificate
    from sfumato.report import write_report

    certificate = Certificate.of(GaussianEvent(4.0), purpose="a model", delta=1e-5).to_json()
    result = {"algorithm": "training", "epsilon": 0.9, "delta": 1e-5, "test_accuracy": 0.9, "test_loss": 0.3}
    write_run(whole_story / "by-hand", result, certificate)
    return write_report([whole_story], tmp_path / "report.html").path
