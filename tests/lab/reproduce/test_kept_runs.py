"""Runs are trained once: found again, taken up where they stopped, and not confused with each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sfumato import datasets, models
from sfumato.fitting import FitConfig
from sfumato.training import Optimization, TrainingPlan
from sfumato_lab.reproduce import kept_runs
from sfumato_lab.reproduce.kept_runs import DELTA, plain_run, private_run

DATA = datasets.load("digits", "train").excerpt(400)
TEST = datasets.load("digits", "test").take(100)
PLAN = TrainingPlan(sample_rate=0.25, expected_batch=100, steps=12, noise_multiplier=1.0)
SLOW, FAST = Optimization(learning_rate=0.1), Optimization(learning_rate=0.5)


def network():
    return models.build("mlp", side=8)


def private(out, plan=PLAN, optimization=SLOW, **more):
    model = network()
    return private_run("toy", model, DATA, TEST, plan, optimization, out=out, **more), model


def plain(out, config):
    model = network()
    return plain_run("toy", model, DATA, TEST, config, out=out), model


def same_weights(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_private_run_is_priced_and_found_again_with_its_weights(tmp_path):
    first, trained = private(tmp_path)
    again, loaded = private(tmp_path)
    assert again == first  # seconds included: nothing was trained
    assert same_weights(trained, loaded)
    assert not same_weights(trained, network())
    assert first.epsilon == pytest.approx(PLAN.epsilon(DELTA))
    assert len(first.accuracy) == len(first.loss) == 3  # epochs of four steps


def test_a_plain_run_is_found_again_and_released_nowhere(tmp_path):
    first, trained = plain(tmp_path, FitConfig(epochs=2))
    again, loaded = plain(tmp_path, FitConfig(epochs=2))
    assert again == first
    assert same_weights(trained, loaded)
    assert first.epsilon is None
    assert not list((tmp_path / "release").glob("*.safetensors"))
    assert len(plain(tmp_path, FitConfig(epochs=3))[0].accuracy) == 3


@pytest.mark.parametrize("change", [{"optimization": FAST}, {"plan": replace(PLAN, steps=8)}])
def test_other_settings_are_another_run(tmp_path, change):
    first, _ = private(tmp_path)
    other, _ = private(tmp_path, **change)
    assert other != first


def stop_after(steps):
    def watch(name, share):
        if round(share * PLAN.steps) == steps:
            raise KeyboardInterrupt

    return watch


def steps_taken(out, **more):
    shares = []
    private(out, watch=lambda name, share: shares.append(round(share * PLAN.steps)), **more)
    return shares


def test_an_interrupted_run_goes_on_from_its_last_epoch(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        private(tmp_path, watch=stop_after(6))
    assert steps_taken(tmp_path) == list(range(5, 13))
    assert len(kept_runs.RunFolder(tmp_path).release.joinpath("history.jsonl").read_text().splitlines()) == 3


def test_half_a_run_of_other_settings_is_not_gone_on_with(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        private(tmp_path, watch=stop_after(6))
    assert steps_taken(tmp_path, optimization=FAST) == list(range(1, 13))
