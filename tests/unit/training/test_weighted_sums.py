"""Sums of weighted gradients: whatever the layout and the way of summing, the sum, to the declared rounding."""

import pytest
import torch
from torch import nn

from sfumato.training import clip, cross_entropy, terms
from sfumato.training.clip import Flat, PerLayer
from sfumato.training.engine import Engine, rounding_bound
from sfumato.training.terms import Fold, Gram, Materialised, Weights


def exact(weights, gradients):
    return (weights.double() @ gradients.reshape(len(gradients), -1).double()).view(gradients.shape[1:])


@pytest.mark.parametrize("units", [1, 31, 32, 33, 200])
@pytest.mark.parametrize("layout", ["as it is", "transposed", "each part by itself"])
def test_layout_does_not_matter(units, layout):
    torch.manual_seed(units)
    weights = torch.rand(units)
    gradients = {
        "as it is": torch.randn(units, 3, 5),
        "transposed": torch.randn(7, units).t(),
        "each part by itself": torch.randn(4, units, 2, 3).transpose(0, 1),
    }[layout]
    found = Materialised(gradients).weighted_sum(Weights(weights))
    torch.testing.assert_close(found.double(), exact(weights, gradients), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("few", [0, 1 << 40])
@pytest.mark.parametrize("units", [5, 64, 300, 3000])
def test_both_ways_of_summing_keep_the_declared_rounding(units, few, monkeypatch):
    """Positive values, all alike: rounding errors have nothing to cancel against."""
    monkeypatch.setattr(terms, "_FEW", few)
    weights, gradients = torch.full((units,), 0.7), torch.full((units, 40), 1.1)
    found = Materialised(gradients).weighted_sum(Weights(weights)).double()
    bound = clip._formed_depth(units, 2.0**-24) * 2.0**-24
    assert ((found / exact(weights, gradients) - 1).abs() <= bound).all()


@pytest.mark.parametrize("small", [0, 1 << 16])
@pytest.mark.parametrize("at_once", [1, 200, 1 << 21])
@pytest.mark.parametrize(("units", "positions"), [(1, 1), (64, 1), (100, 3), (300, 40), (3001, 1)])
def test_products_side_by_side_are_those_made_in_turn(units, positions, small, at_once, monkeypatch):
    """Positive values, all alike: rounding errors have nothing to cancel against."""
    monkeypatch.setattr(terms, "_CACHED", small)
    monkeypatch.setattr(terms, "_SIDE_BY_SIDE", at_once)
    weights = torch.full((units,), 0.7)
    inputs, gradients = torch.full((units, 1, positions, 6), 1.1), torch.full((units, 1, positions, 5), 0.9)
    found = Gram(inputs, gradients, Fold((5, 6))).weighted_sum(Weights(weights)).double()
    expected = exact(weights, gradients[:, 0].double().transpose(1, 2) @ inputs[:, 0].double())
    bound = clip._product_depth(units, positions, (1, 6, 5), 2.0**-24) * 2.0**-24
    assert ((found / expected - 1).abs() <= bound).all()


@pytest.mark.parametrize("tile", [1, 12, 40, 1 << 18])
@pytest.mark.parametrize(("inputs", "outputs"), [(6, 5), (5, 6), (17, 3), (3, 17)])
def test_a_sum_is_the_same_in_tiles_of_any_size(inputs, outputs, tile, monkeypatch):
    monkeypatch.setattr(terms, "_CACHED", 0)
    monkeypatch.setattr(terms, "_TILE", tile)
    torch.manual_seed(tile)
    weights, a, g = torch.rand(300), torch.rand(300, 1, 4, inputs), torch.rand(300, 1, 4, outputs)
    found = Gram(a, g, Fold((outputs, inputs))).weighted_sum(Weights(weights)).double()
    expected = exact(weights, g[:, 0].double().transpose(1, 2) @ a[:, 0].double())
    bound = clip._product_depth(300, 4, (1, inputs, outputs), 2.0**-24) * 2.0**-24
    assert ((found / expected - 1).abs() <= bound).all()


@pytest.mark.parametrize("clipping", [Flat(norm=0.1), PerLayer(norm=0.1)])
def test_sums_that_are_written_into_zeros_are_the_same(clipping):
    """Of the first kernel one tap meets data, of the second all do; NaN adds nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(5, 2))
    images, labels = torch.randn(7, 3, 1, 1), torch.zeros(7, dtype=torch.long)
    images[2] = torch.nan
    engine = Engine(model, cross_entropy, (images[:1], labels[:1]))
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    there = engine.clipped(images, labels, clipping, into=zeros).sums
    elsewhere = engine.clipped(images, labels, clipping).sums
    assert there["0.weight"].data_ptr() == zeros["0.weight"].data_ptr()
    assert all(torch.equal(there[name], elsewhere[name]) for name in zeros)
    assert there["0.weight"].count_nonzero() == 12
    assert all(value.any() for value in there.values())


@pytest.mark.parametrize("units", [5, 300, 30_000])
@pytest.mark.parametrize("uses", [1, 2])
def test_an_embedding_whose_row_all_units_look_up_keeps_the_declared_rounding(units, uses):
    """Positive values, all alike: a sum in float32 errs by a thousand times the bound here."""
    weights = torch.full((units,), 0.7)
    lookups = terms.Lookups(torch.zeros(units, 1, dtype=torch.long), torch.full((units, 1, 4), 1.1), 3)
    found = terms.term([lookups] * uses, units).weighted_sum(Weights(weights)).double()[0]
    expected = exact(weights, uses * lookups.gradients.double()[:, 0])
    bound = clip.rounding([lookups] * uses, units, units=units, rows_per_unit=1).formed
    assert ((found / expected - 1).abs() <= bound).all()
    assert bound < 40 * 2.0**-24


def test_an_embedding_costs_no_more_noise_than_other_layers():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.output = nn.Embedding(50, 8), nn.Linear(8, 2)

        def forward(self, words):
            return self.output(self.embedding(words).mean(1))

    rows = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    assert rounding_bound(Pooled(), cross_entropy, *rows, units=1300) < 0.02


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 65, 200, 700])
def test_sums_by_eights(count):
    values = torch.randn(count, 50) * 10 ** torch.randn(count, 1)
    error = (terms._by_eights(values) - values.double().sum(0)).abs()
    assert (error <= terms.depth_by_eights(count) * 2.0**-24 * values.double().abs().sum(0)).all()
