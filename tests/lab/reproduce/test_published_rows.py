"""The published settings, priced: what was claimed is recomputed, and what is true is below or far above it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato_lab.reproduce import epsilon_sweep, private_cnn
from sfumato_lab.reproduce.kept_runs import DELTA
from sfumato_lab.reproduce.published_mnist import ROWS, Material, linear_head


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
    real = private_cnn.real_epsilons()
    assert real["shuffled, zero-out"] == pytest.approx(14.1, abs=0.05)
    assert real["shuffled, replace-one"] == pytest.approx(35.6, abs=0.05)
    assert real["had it sampled"] == pytest.approx(0.363, abs=2e-3)


def test_our_plans_make_the_printed_and_the_swept_prices_true():
    assert 0.78 < private_cnn.our_plan(private_cnn.OURS).epsilon(DELTA) <= private_cnn.PRINTED_EPSILON
    for epsilon in epsilon_sweep.EPSILONS:
        assert 0.99 * epsilon < epsilon_sweep.plan(epsilon_sweep.FULL, epsilon).epsilon(DELTA) <= epsilon


def test_scattering_channels_are_scaled_by_drawings_not_by_private_rows():
    data, test = Material(quick=True).scattered
    assert data.shape == (81 * 49,)
    assert data.public_size == 1200
    levels = data.inputs.reshape(len(data), 81, 49).mean((0, 2))
    assert np.abs(levels).max() < 1.5  # near the drawings' statistics,
    assert np.abs(levels).max() > 1e-3  # which are not these rows' own
    assert test.inputs.dtype == np.float32
    assert all(torch.count_nonzero(parameter) == 0 for parameter in linear_head(data).parameters())
