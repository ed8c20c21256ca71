"""The recipe's formulas, its distortions, and a small run of each part."""

import math

import numpy as np
import pytest
import torch

from sfumato.datasets import load
from sfumato.experiments import local_noise
from sfumato.experiments.clustering import ClusteringPlan, cluster, distort, matched_accuracy
from sfumato.local.network import NetworkFit, WienerFilter, fit_network, predict
from sfumato.randomness import SecretStream, public_torch_generator


def test_each_image_is_scaled_by_itself():
    images = np.stack([np.eye(28), 3 * np.ones((28, 28)), np.zeros((28, 28))]).astype(np.float32)
    assert np.linalg.norm(local_noise.unit_images(images), axis=1) == pytest.approx(1)


@pytest.mark.parametrize("epsilon", local_noise.SOURCE_EPSILONS)
def test_the_honest_epsilon_is_far_above_the_claim(epsilon):
    sigma = local_noise.classical_sigma(epsilon)
    found = local_noise.honest_epsilon(sigma)
    # The loss has mean μ²/2 and deviation μ, μ = Δ/σ with Δ = 2; δ lies about 4.65 deviations out.
    shift = 2 / sigma
    assert shift**2 / 2 + 4.4 * shift < found < shift**2 / 2 + 4.7 * shift
    assert found > 10 * epsilon
    assert local_noise.honest_epsilon(sigma, releases=80) > 50 * found


def test_distorted_copies_are_crops_of_the_image():
    images = torch.zeros(64, 1, 28, 28)
    images[:, :, 2:26, 2:26] = 0.5
    found = distort(images, 0.0, public_torch_generator(1))
    assert found.shape == (64, 1, 24, 24)
    assert float(found.max()) == pytest.approx(0.5)
    # The middle of any crop lies inside the square.
    assert found[:, 0, 12, 12].tolist() == pytest.approx([0.5] * 64)


def test_clusters_are_named_one_to_one():
    assert matched_accuracy(np.array([2, 2, 0, 1]), np.array([0, 0, 1, 2]), 3) == 1


def test_clustering_runs_and_is_repeatable():
    rows = load("digits", "train", side=28).inputs[:200, 0]
    labels = load("digits", "train").targets[:200]
    plan = ClusteringPlan(epochs=1, pairs=100, sub_heads=2, over_clusters=12)
    one, other = (cluster(rows, rows, labels, plan) for _ in range(2))
    assert one.losses == other.losses
    assert all(-math.log(10) <= loss <= 0 for loss in one.losses)


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
