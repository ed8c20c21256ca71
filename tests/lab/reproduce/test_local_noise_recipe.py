"""The recipe's formulas, its distortions, and a small run of each part."""

import itertools
import math

import numpy as np
import pytest
import torch

from sfumato.datasets import load
from sfumato.randomness import SecretStream, public_torch_generator
from sfumato_lab.reproduce import clustering, local_noise
from sfumato_lab.reproduce.clustering import (
    ClusteringPlan,
    Distortion,
    cluster,
    distort,
    information_loss,
    matched_accuracy,
    merged,
)
from sfumato_lab.reproduce.local_noise import Case, released
from sfumato_lab.reproduce.noised_network import NetworkFit, WienerFilter, fit_network, predict


def test_each_image_is_scaled_by_itself():
    images = np.stack([np.eye(28), 3 * np.ones((28, 28)), np.zeros((28, 28))]).astype(np.float32)
    assert np.linalg.norm(local_noise.unit_images(images), axis=1) == pytest.approx(1)


@pytest.mark.parametrize("epsilon", [150, 2000, 3000, 5000, 200_000])
def test_the_honest_epsilon_is_far_above_the_claim(epsilon):
    sigma = local_noise.classical_sigma(epsilon)
    found = local_noise.true_epsilon(sigma)
    # The loss has mean μ²/2 and deviation μ, μ = Δ/σ with Δ = 2; δ lies about 4.65 deviations out.
    shift = 2 / sigma
    assert shift**2 / 2 + 4.4 * shift < found < shift**2 / 2 + 4.7 * shift
    assert found > 10 * epsilon
    assert local_noise.true_epsilon(sigma, releases=80) > 50 * found


STILL = {"turn": 0, "slant": 0, "zoom": 1, "move": 0, "thickness": 0}


def test_a_copy_without_distortion_is_the_middle_of_the_image():
    images = torch.rand(8, 1, 28, 28, generator=public_torch_generator(1))
    found = distort(images, Distortion(**STILL), public_torch_generator(2))
    assert torch.allclose(found, images[..., 2:26, 2:26], atol=1e-5)


@pytest.mark.parametrize("changed", [{"zoom": 2}, {"thickness": 1}])
def test_copies_differ_in_size_or_thickness_but_not_in_brightness(changed):
    images = torch.zeros(64, 1, 28, 28)
    images[:, :, 10:18, 10:18] = 0.5
    found = distort(images, Distortion(**STILL | changed), public_torch_generator(1))
    area = found.sum(dim=(1, 2, 3)) / 0.5
    assert found.max() <= 0.5 + 1e-6
    # 8 × 8 pixels; a pixel more or less on each side makes 100 or 36, twice or half the size 256 or 16.
    assert area.min() < 50
    assert area.max() > 80
    # The middle of the square stays inside it.
    assert found[:, 0, 11:13, 11:13].min() == pytest.approx(0.5, abs=1e-5)


def test_clusters_are_named_one_to_one():
    assert matched_accuracy(np.array([2, 2, 0, 1]), np.array([0, 0, 1, 2]), 3) == 1


def test_the_cheapest_merger_is_the_one_that_loses_least_information():
    joint = torch.rand(6, 6, generator=public_torch_generator(4), dtype=torch.float64)
    joint = (joint + joint.T) / (2 * joint.sum())

    def loss(groups):
        return float(information_loss((groups.T @ joint @ groups)[None]))

    tried = {}
    for first, second in itertools.combinations(range(6), 2):
        groups = torch.eye(6, dtype=torch.float64)
        groups[:, first] += groups[:, second]
        tried[first, second] = loss(groups[:, [index for index in range(6) if index != second]])
    best = min(tried, key=tried.get)
    found = merged(joint.float(), 5).double()
    assert found.sum(dim=1).tolist() == [1] * 6
    assert torch.equal(found[best[0]], found[best[1]])
    assert loss(found) == pytest.approx(tried[best], abs=1e-9)


def test_clustering_runs_and_is_repeatable():
    rows = load("digits", "train", side=28).inputs[:200, 0]
    labels = load("digits", "train").targets[:200]
    plan = ClusteringPlan(steps=3, pairs=100, heads=2, over_heads=1, over_clusters=12)
    one, other = (cluster(rows, rows, labels, plan) for _ in range(2))
    assert one.losses == other.losses
    assert all(-math.log(10) <= loss <= 0 for loss in one.losses)


def test_clusterings_of_drawings_are_found_again(tmp_path, monkeypatch):
    plan = ClusteringPlan(steps=2, pairs=50, heads=2, over_heads=1, over_clusters=12)
    first = clustering.run(tmp_path, plan, data="drawings", people=100, seeds=2)
    monkeypatch.setattr(clustering, "cluster", None)
    assert clustering.run(tmp_path, plan, data="drawings", people=100, seeds=2) == first
    assert len(first["accuracies"]) == 2


def test_the_filter_takes_noise_off():
    generator = SecretStream(test_seed=1)
    truth = (generator.normal(2000)[:, None] * np.eye(50)[0] + np.eye(50)[1]).astype(np.float32)
    noisy = truth + (0.5 * generator.normal(truth.size).reshape(truth.shape)).astype(np.float32)
    clean = WienerFilter.of(noisy, 0.5)(noisy)
    # One direction of variance 1 in noise ¼: the best linear guess leaves ¼/(1+¼) = 0.2 of it.
    assert np.mean(np.sum((clean - truth) ** 2, axis=1)) == pytest.approx(0.2, abs=0.05)


def test_a_network_that_knows_the_label_noise_learns_through_it():
    stream = SecretStream(test_seed=2)
    labels = stream.integers(2, 600)
    images = np.zeros((600, 28, 28), dtype=np.float32)
    images[:, 4:10, 4:10] = labels[:, None, None]
    channel = np.array([[0.7, 0.3], [0.3, 0.7]])
    said = np.where(stream.uniform(600) < 0.3, 1 - labels, labels)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 2))
    fit_network(net, images, said, channel, NetworkFit(epochs=4, learning_rate=0.02))
    assert (predict(net, images) == labels).mean() > 0.99


def test_releases_are_repeatable_and_each_has_its_own_noise():
    cases = [Case(data="digits", view="low-frequencies", epsilon=epsilon) for epsilon in (2.0, 12.0)]
    little, much = (released(case, people=1400, releases=3) for case in cases)
    assert released(cases[1], people=1400, releases=3) == much
    assert len(set(much["accuracies"])) > 1
    # 360 public digits, chance 0.1; twelve nats tell most of them, two hardly any.
    assert sum(much["accuracies"]) / 3 > 0.6 > sum(little["accuracies"]) / 3
    assert much["prior_accuracy"] is None


def test_a_stopped_recipe_is_taken_up(tmp_path, monkeypatch):
    settings = local_noise.Settings(people=300, test=100, epochs=1, clustering_steps=2, releases=2)
    monkeypatch.setattr(local_noise, "CASES", (Case(view="low-frequencies", epsilon=8.0),))
    monkeypatch.setattr(local_noise, "SOURCE_ERRORS", {math.inf: 0.05, 150: 0.89})
    found = local_noise.run(tmp_path, settings)
    assert [row["source_epsilon"] for row in found["rows"]] == [None, 150]
    assert all(0 <= row["network_error"] <= 1 and 0 <= row["clustering_error"] <= 1 for row in found["rows"])
    assert len(found["honest"]) == 1
    for name in ("cluster", "fit_network", "learn"):
        monkeypatch.setattr(local_noise, name, lambda *given: pytest.fail("measured twice"))
    again = local_noise.run(tmp_path, settings)
    assert (again["rows"], again["honest"]) == (found["rows"], found["honest"])
