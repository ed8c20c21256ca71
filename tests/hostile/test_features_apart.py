"""Features of private rows: nobody's presence changes a bit of another's, whatever kernels do with shapes."""

import numpy as np
import pytest
import torch

from sfumato import datasets
from sfumato.learn import features
from sfumato.learn.statistic import StatisticPlan
from sfumato.models import FeatureClassifier, OpponentScattering, PatchCodes, ScatteringCodes, Whitened
from sfumato.models.rows_apart import rows_apart
from sfumato.pate import Adaptation, PublicSide
from sfumato_lab.drawings import leaves


def neighbours_agree(compute, rows):
    """Without its first row everybody has another place, and the last part of the batch another height."""
    whole = rows_apart(compute, rows)
    return all(
        rows_apart(compute, rows[gone:]).equal(whole[gone:])
        and rows_apart(compute, rows[:-gone]).equal(whole[:-gone])
        for gone in (1, 57)
    )


@pytest.mark.keeps_out(
    "Features computed in batches, so that one row's presence changes low bits of others before clipping"
)
@pytest.mark.parametrize("data", ["mnist", "photographs"])
def test_features_of_the_default_recipe(data):
    recipe = features.recipe_for(data)
    model = features.bare(recipe, classes=10)
    images = torch.from_numpy(datasets.load("digits", "train").inputs[:200]).reshape(-1, 1, 8, 8)
    images = torch.nn.functional.interpolate(images, size=(28, 28))
    assert neighbours_agree(model.features, images)


def test_a_scene_that_leaves_changes_no_other_and_moves_what_is_measured_by_its_own_share():
    shape = (3, 16, 16)
    opponents = (OpponentScattering(side=16, kind=kind) for kind in ("roots", "relative"))
    kinds = (PatchCodes(patches=3), PatchCodes(patches=3, shrink=2), ScatteringCodes(side=16), *opponents)
    parts = [Whitened(kind, shape=shape, directions=8) for kind in kinds]
    model = FeatureClassifier(parts, classes=10, shape=shape, adapts="shift", weights=(1.0, 0.7, 1.0, 0.8, 0.8))
    drawn = torch.from_numpy(leaves.draw(190, seed=1)[:, :, 8:24, 8:24]) / 255
    model.fit_to(drawn[:60])
    whole, without = (rows_apart(model.features, rows) for rows in (drawn[60:], drawn[61:]))
    assert without.equal(whole[1:])
    for more in ({"kind": "mean"}, {"kind": "leading", "places": ((0, 4), (8, 12)), "directions": 3}):
        plan = StatisticPlan(width=40, noise_multiplier=1.0, **more)
        sums = plan._sums(whole)
        assert np.linalg.norm(sums - plan._sums(without)) <= plan.mechanism.sensitivity
        company = 1 - 1 / len(whole)  # sabotaged: a row's length hangs on how many there are
        assert np.linalg.norm(sums - plan._sums(without * company**3)) > plan.mechanism.sensitivity


def test_products_of_leading_directions():
    model = FeatureClassifier([torch.nn.Flatten()], classes=2, adapts="products", products=9)
    generator = torch.Generator().manual_seed(1)
    model.adapt(torch.randn(10, 784, generator=generator))
    assert neighbours_agree(model.adapted, torch.randn(200, 784, generator=generator))


@pytest.mark.keeps_out(
    "Features computed in batches, so that one row's presence changes low bits of others before clipping"
)
def test_features_of_teachers():
    drawn = datasets.load("strokes", "test").take(60).inputs
    how = Adaptation(prior="strokes", steps=0)
    side = PublicSide.of(drawn, how, classes=10, progress=lambda what, share: None)
    images = torch.from_numpy(np.concatenate([drawn, drawn, drawn])[:150])
    assert neighbours_agree(side.views[0].features, images)


def test_a_computation_whose_bits_hang_on_the_height_gets_one_row_at_a_time():
    heights = []

    def by_height(rows):
        heights.append(len(rows))
        return rows * (1 + 1e-3 * len(rows))

    def by_place(rows):
        heights.append(len(rows))
        return rows + 1e-3 * torch.arange(len(rows))[:, None]

    rows = torch.rand(70, 3)
    assert neighbours_agree(by_height, rows)  # one height for all
    assert set(heights) == {128}
    heights.clear()
    assert neighbours_agree(by_place, rows)
    assert heights[-1] == 1


def test_a_computation_that_brings_rows_together_gets_one_row_at_a_time():
    assert neighbours_agree(lambda rows: rows - rows.mean(0), torch.rand(9, 4))
