"""Published networks: their prices are recomputed, runs are found again, and commands show both."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import datasets, models
from sfumato.errors import InvalidInput
from sfumato.fitting import FitConfig
from sfumato.runs import read_run
from sfumato.training import Optimization, TrainingPlan
from sfumato_lab.reproduce import networks, tables
from sfumato_lab.reproduce.networks import ROWS
from sfumato_lab.reproduce.tables import DELTA

DATA = datasets.load("digits", "train").excerpt(400)
TEST = datasets.load("digits", "test").take(100)
PLAN = TrainingPlan(sample_rate=0.25, expected_batch=100, steps=8, noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Rényi accounting of the settings, computed independently with dp-accounting's current conversion.
        ("TensorFlow Privacy, 15 epochs", 0.954),
        ("TensorFlow Privacy, 60 epochs", 2.597),
        ("TensorFlow Privacy, 45 epochs", 6.318),
        ("Opacus, 15 epochs", 0.922),
        ("Opacus, 60 epochs", 2.503),
        ("Opacus, 45 epochs", 6.093),
        ("scattering + linear", 2.59),
    ],
)
def test_settings_have_the_known_renyi_price(name, expected):
    (row,) = (row for row in ROWS if row.name == name)
    assert row.renyi_epsilon() == pytest.approx(expected, rel=1e-3)


def test_the_exact_price_of_the_sixty_epochs_tutorial():
    (row,) = (row for row in ROWS if row.name == "TensorFlow Privacy, 60 epochs")
    assert row.plan().steps == 14062
    assert row.true_epsilon() == pytest.approx(2.38169, abs=2e-3)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_true_prices_lie_below_the_claims_and_shuffled_ones_far_above(row):
    assert row.true_epsilon() < row.renyi_epsilon() < row.claimed_epsilon
    assert row.shuffled_epsilon() > 3 * row.claimed_epsilon


def test_the_small_cnns_source_was_nowhere_near_its_printed_price():
    real = networks.real_epsilons()
    assert real["shuffled, zero-out"] == pytest.approx(14.1, abs=0.05)
    assert real["shuffled, replace-one"] == pytest.approx(35.6, abs=0.05)
    assert real["had it sampled"] == pytest.approx(0.363, abs=2e-3)


def test_our_plans_make_the_printed_and_the_swept_prices_true():
    assert 0.78 < networks.our_plan().epsilon(DELTA) <= networks.PRINTED_EPSILON
    for epsilon in networks.EPSILONS:
        assert 0.99 * epsilon < networks.sweep_plan(epsilon).epsilon(DELTA) <= epsilon


def test_scattering_channels_are_scaled_by_drawings_not_by_private_rows():
    (row,) = (row for row in ROWS if row.network == "scattering")
    data, test = row.material(quick=True, watch=tables.unwatched)
    assert data.shape == (81 * 49,)
    assert data.public_size == 1200
    levels = data.inputs.reshape(len(data), 81, 49).mean((0, 2))
    assert np.abs(levels).max() < 1.5  # near the drawings' statistics,
    assert np.abs(levels).max() > 1e-3  # which are not these rows' own
    assert test.inputs.dtype == np.float32
    assert all(torch.count_nonzero(parameter) == 0 for parameter in row.build(data, 0).parameters())


def trained(out, how=PLAN, **more):
    return tables.trained("toy", models.build("mlp", side=8), DATA, TEST, how, out=out, seed=0, **more)


def test_runs_are_priced_and_found_again_and_other_settings_are_other_runs(tmp_path):
    first = trained(tmp_path)
    assert trained(tmp_path) == first  # seconds included: nothing was trained
    assert first.epsilon == pytest.approx(PLAN.epsilon(DELTA))
    assert len(first.accuracy) == len(first.loss) == 2  # epochs of four steps
    for change in ({"optimization": Optimization(learning_rate=0.5)}, {"how": replace(PLAN, steps=4)}):
        assert trained(tmp_path, **change) != first
    plain = trained(tmp_path, FitConfig(epochs=2))
    assert (plain.epsilon, len(plain.accuracy)) == (None, 2)
    assert trained(tmp_path, FitConfig(epochs=2)) == plain


def test_an_interrupted_run_is_made_again(tmp_path):
    def stop(name, share):
        if share >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, watch=stop)
    assert len(trained(tmp_path).accuracy) == 2


def check_figures(answer):
    assert answer["figures"]
    assert all(Path(path).read_bytes()[:4] == b"\x89PNG" for path in answer["figures"])


def test_private_cnn(sfumato, sfumato_json, tmp_path):
    words = ("reproduce", "private-cnn", "--quick", "--out", tmp_path)
    answer = sfumato_json(*words)
    check_figures(answer)
    plain, source, priced, ours, drawn = answer["settings"]
    assert plain["epsilon"] is None
    assert source["runs"][0]["noise_multiplier"] == 1.2
    assert priced["epsilon"] <= 0.79
    assert 0.78 < ours["epsilon"] <= 0.79
    assert 0.78 < drawn["epsilon"] <= 0.79
    assert read_run(tmp_path).result.findings == answer
    certificate = Path(ours["runs"][0]["folder"]) / "release" / "certificate.json"
    assert sfumato_json("verify", certificate)["pld"] == pytest.approx(ours["epsilon"])
    after = json.loads((Path(drawn["runs"][0]["folder"]) / "release" / "certificate.json").read_text())
    assert any("drawn by code" in str(caveat) for caveat in after["caveats"])
    code, out, _ = sfumato(*words)  # found again, and told in words
    assert code == 0
    assert "93.4%" in out
    assert "14.1" in out


def test_epsilon_sweep(sfumato, sfumato_json, tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "EPSILONS", (10.0,))
    words = ("reproduce", "epsilon-sweep", "--quick", "--out", tmp_path)
    answer = sfumato_json(*words)
    check_figures(answer)
    assert [setting["name"] for setting in answer["settings"]] == ["ε = 10", "no privacy"]
    assert all(len(run["accuracy"]) == 2 for setting in answer["settings"] for run in setting["runs"])
    assert "no privacy" in sfumato(*words)[1]


def test_published_mnist(sfumato, sfumato_json, tmp_path):
    words = ("reproduce", "published-mnist", "--quick", "--out", tmp_path, "--row", "scattering + linear")
    answer = sfumato_json(*words)
    check_figures(answer)
    (scattering,) = answer["rows"]
    assert scattering["published"]["true_epsilon"] < 2.59 < scattering["published"]["claimed_epsilon"]
    # Guessing gets .1; five standard errors on 500 test digits are .07: .4 is learned, not guessed.
    assert scattering["ours"]["test_accuracy"] > 0.4
    assert "98.7%" in sfumato(*words)[1]


def test_names_with_commas_are_told_apart(tmp_path):
    with pytest.raises(InvalidInput) as refusal:
        networks.run_published(tmp_path, quick=True, seeds=1, only=["nonsense"], watch=tables.unwatched)
    assert all(row.name in str(refusal.value) for row in ROWS)
