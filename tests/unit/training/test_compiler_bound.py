"""No unit adds more than its bound through a compiled graph, whatever its numbers are like."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.models import CNN
from sfumato.training import Automatic, Flat, PerLayer, batch, terms
from sfumato.training.engine import Engine

cross_entropy = partial(F.cross_entropy, reduction="none")


def total_norm(sums):
    return float(torch.stack([value.double().norm() for value in sums.values()]).norm())


def weigh(outputs, targets):
    """One loss a row whose gradient with respect to the outputs is exactly `targets`."""
    return (outputs * targets).flatten(1).sum(1)


def cancelling(rows, positions, width, *, offset=0.0, scale=1.0):
    """Inputs of a linear layer on sequences, and output gradients that cancel over the positions."""
    inputs = offset + scale * torch.randn(rows, positions, width)
    gradients = torch.randn(rows, positions, width)
    return inputs, gradients - gradients.mean(1, keepdim=True)


@pytest.mark.parametrize("clipping", [Flat(norm=1.0), Automatic(norm=1.0), PerLayer(norm=1.0)])
@pytest.mark.parametrize("positions", [1, 4, 50])
def test_extreme_numbers(clipping, positions):
    torch.manual_seed(1)
    inputs, gradients = cancelling(1, positions, 8)
    engine = Engine(nn.Linear(8, 8), weigh, (inputs, gradients))
    for input_scale in (1e30, 1e19, 1e-19, 1e-40, 0.0):
        for gradient_scale in (1e30, 1e-19, 1e-40, 0.0):
            result = engine.clipped(inputs * input_scale, gradients * gradient_scale, clipping)
            assert total_norm(result.sums) <= clipping.sensitivity * (1 + 1e-6)
            assert not any(value.isnan().any() for value in result.sums.values())


@pytest.mark.parametrize("scale", [1e30, 1e19, 1e-19, 1e-30])
def test_extreme_numbers_are_clipped_not_dropped(scale):
    """Squares overflow or vanish in float32, the gradient does not: it must come out with norm C."""
    torch.manual_seed(1)
    inputs, gradients = cancelling(1, 4, 8, scale=scale)
    engine = Engine(nn.Linear(8, 8, bias=False), weigh, (torch.randn(1, 4, 8), gradients))
    result = engine.clipped(inputs, gradients / scale * 100, Flat(norm=1.0))
    assert total_norm(result.sums) == pytest.approx(1.0, rel=1e-5)
    assert bool(result.finite.all())


def worst_of_one(offset):
    torch.manual_seed(2)
    inputs, gradients = cancelling(64, 4, 64, offset=offset, scale=1e-2)
    engine = Engine(nn.Linear(64, 64, bias=False), weigh, (torch.randn(1, 4, 64), gradients[:1]))
    return max(
        total_norm(engine.clipped(inputs[r : r + 1], gradients[r : r + 1], Flat(norm=1.0)).sums)
        for r in range(64)
    )


@pytest.mark.parametrize("offset", [3e3, 1e5])
def test_cancelling_output_gradients(offset):
    assert worst_of_one(offset) <= 1 + 1e-6


def test_cancelling_gradients_without_the_slack_would_pass(monkeypatch):
    monkeypatch.setattr(terms, "slack_factor", lambda *_: 0.0)
    assert worst_of_one(1e5) > 1.1


class Small(nn.Module):
    """A Gram layer on positions, a formed one, a norm, and a layer used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4)
        self.wide, self.same, self.output = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, images):
        maps = torch.relu(self.norm(self.conv(images))).flatten(2)  # (rows, 4, 16)
        return self.output(self.same(torch.relu(self.same(torch.relu(self.wide(maps))))).mean(1))


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    inputs, targets = 5 * torch.randn(200, 1, 9, 9), torch.randint(0, 5, (200,))
    return Engine(Small(), cross_entropy, (torch.randn(1, 1, 9, 9), targets[:1])), inputs, targets


def pairs(small, count, clipping):
    """How much one unit more changes the sums, over random chunks, wherever others come to lie."""
    engine, inputs, targets = small
    for draw in range(count):
        torch.manual_seed(draw)
        chosen = torch.randperm(len(inputs))[: int(torch.randint(2, 80, ()))]
        with_unit = engine.clipped(inputs[chosen], targets[chosen], clipping)
        without = engine.clipped(inputs[chosen[1:]], targets[chosen[1:]], clipping)
        assert torch.equal(with_unit.norms[1:], without.norms)
        assert torch.equal(with_unit.coefficients[1:], without.coefficients)
        yield total_norm({n: with_unit.sums[n] - without.sums[n] for n in with_unit.sums})


def test_adding_a_unit_changes_the_sum_by_at_most_the_sensitivity(small):
    eta = small[0].rounding_bound(units=80)
    worst = max(pairs(small, 80, Flat(norm=0.05)))
    assert 0.999 * 0.05 <= worst <= 0.05 * (1 + eta)
    assert eta < 0.05


def test_a_clip_that_is_off_is_noticed(small, monkeypatch):
    monkeypatch.setattr(Flat, "coefficients", lambda self, norms: (self.norm / norms).clamp(max=1.0) * 1.05)
    assert max(pairs(small, 10, Flat(norm=0.05))) > 0.05 * 1.02


def test_declared_rounding_covers_every_chunk(small):
    engine, inputs, targets = small
    declared = engine.rounding_bound(units=12, rows_per_unit=4)
    torch.manual_seed(0)
    for _ in range(15):
        counts = torch.randint(1, 5, (int(torch.randint(1, 13, ())),))
        units = torch.arange(len(counts)).repeat_interleave(counts)
        chosen = slice(len(units))
        found = engine.clipped(inputs[chosen], targets[chosen], Flat(norm=1.0), units=units)
        assert found.rounding <= declared


def test_rounding_of_the_usual_net_is_small():
    engine = Engine(CNN(), cross_entropy, (torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.long)))
    assert engine.rounding_bound(units=256) < 0.01


def test_norms_and_losses_come_in_the_order_of_the_units(small):
    engine, inputs, targets = small
    units = torch.tensor([3, 1, 3, 2, 3, 1])
    result = engine.clipped(inputs[:6], targets[:6], Flat(norm=0.1), units=units)
    for place, unit in enumerate((1, 2, 3)):
        rows = (units == unit).nonzero().flatten()
        alone = engine.clipped(inputs[rows], targets[rows], Flat(norm=0.1), units=units[rows])
        assert torch.equal(result.norms[place], alone.norms[0])
        assert torch.equal(result.losses[rows], alone.losses)


def test_no_rows_at_all(small):
    result = small[0].clipped(torch.zeros(0, 1, 9, 9), torch.zeros(0, dtype=torch.long), Flat(norm=0.1))
    assert total_norm(result.sums) == 0
    assert len(result.norms) == len(result.losses) == 0


@pytest.mark.parametrize("rows", [torch.zeros(3, 1, 9, 8), torch.zeros(3, 1, 9, 9, dtype=torch.float64)])
def test_rows_of_another_shape_or_type(small, rows):
    with pytest.raises(InvalidInput, match="shapes and types of the example"):
        small[0].clipped(rows, torch.zeros(3, dtype=torch.long), Flat(norm=0.1))


def test_a_block_that_is_batched_wrongly_is_refused(monkeypatch, small):
    """The block graph is compared with the row's graph before a height is used."""
    relu = torch.ops.aten.relu.default
    monkeypatch.setitem(batch._RULES, relu, lambda block, node: block.rows(node.args[0]))
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    engine = Engine(model, cross_entropy, (torch.zeros(1, 6), torch.zeros(1, dtype=torch.long)))
    with pytest.raises(UnsupportedModel, match="a block of"):
        engine.clipped(torch.randn(4, 6), torch.zeros(4, dtype=torch.long), Flat(norm=math.inf))


@pytest.mark.keeps_out(
    "Products with few columns that round a row by its place, so that each row is computed by itself"
)
@pytest.mark.parametrize(("inputs", "outputs"), [(35, 3), (33, 10), (50, 2), (8, 5), (7, 7)])
def test_narrow_products_round_alike_at_every_place(inputs, outputs):
    """Of whatever width, so that rows are worked on in blocks, not one by one."""
    torch.manual_seed(0)
    rows, targets = torch.randn(40, inputs), torch.randint(0, outputs, (40,))
    model = nn.Sequential(nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, inputs), nn.Linear(inputs, outputs))
    engine = Engine(model, cross_entropy, (rows[:1], targets[:1]))
    assert min(engine.split(40, 1)) >= 16
    plain, turned = (
        engine.clipped(rows.roll(by, 0), targets.roll(by, 0), Flat(norm=1.0)).norms for by in (0, 3)
    )
    assert torch.equal(plain.roll(3, 0), turned)
