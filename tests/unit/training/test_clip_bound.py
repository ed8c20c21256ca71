"""No unit may add more than its bound, whatever its numbers are like."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import InvalidInput
from sfumato.models import CNN
from sfumato.training import clip_chunk, clipped_gradient_sum, rounding_bound, terms
from sfumato.training.clip import Automatic, Flat, PerLayer

cross_entropy = partial(F.cross_entropy, reduction="none")


def total_norm(sums):
    return float(torch.stack([value.double().norm() for value in sums.values()]).norm())


def weigh(outputs, targets):
    """One loss a row whose gradient with respect to the outputs is exactly `targets`."""
    return (outputs * targets).flatten(1).sum(1)


def on_positions(rows, positions, width, *, offset=0.0, scale=1.0):
    """Inputs of a linear layer on sequences, and output gradients that cancel over the positions."""
    inputs = offset + scale * torch.randn(rows, positions, width)
    gradients = torch.randn(rows, positions, width)
    gradients -= gradients.mean(1, keepdim=True)
    return inputs, gradients


EXTREMES = [1e30, 1e-19, 1e-40, 0.0]


@pytest.mark.parametrize("clipping", [Flat(norm=1.0), Automatic(norm=1.0), PerLayer(norm=1.0)])
@pytest.mark.parametrize("input_scale", EXTREMES)
@pytest.mark.parametrize("gradient_scale", EXTREMES)
def test_extreme_numbers(clipping, input_scale, gradient_scale):
    torch.manual_seed(1)
    model = nn.Linear(8, 8)
    for positions in (1, 4, 50):
        inputs, gradients = on_positions(3, positions, 8, scale=input_scale)
        for row in range(3):
            one = inputs[row : row + 1], gradients[row : row + 1] * gradient_scale
            result = clip_chunk(model, weigh, *one, clipping)
            assert total_norm(result.sums) <= clipping.sensitivity * (1 + 1e-6)
            assert not any(value.isnan().any() for value in result.sums.values())


@pytest.mark.parametrize("input_scale", [1e30, 1e19, 1e-19, 1e-30])
def test_extreme_numbers_are_clipped_not_dropped(input_scale):
    """Squares overflow or vanish in float32, the gradient does not: it must come out with norm C."""
    torch.manual_seed(1)
    model = nn.Linear(8, 8, bias=False)
    inputs, gradients = on_positions(1, 4, 8, scale=input_scale)
    result = clip_chunk(model, weigh, inputs, gradients / input_scale * 100, Flat(norm=1.0))
    assert total_norm(result.sums) == pytest.approx(1.0, rel=1e-5)
    assert bool(result.finite.all())


@pytest.mark.keeps_out("Float sums whose real sensitivity exceeds the declared one")
@pytest.mark.parametrize("offset", [3e3, 1e5])
def test_cancelling_output_gradients(offset):
    """A large common offset times gradients that sum to zero: float32 Gram norms are mostly noise here."""
    torch.manual_seed(2)
    model = nn.Linear(64, 64, bias=False)
    inputs, gradients = on_positions(64, 4, 64, offset=offset, scale=1e-2)
    result = clip_chunk(model, weigh, inputs, gradients, Flat(norm=1.0))
    formed = gradients.double().transpose(1, 2) @ inputs.double()
    for row in range(64):
        one = slice(row, row + 1)
        added = clip_chunk(model, weigh, inputs[one], gradients[one], Flat(norm=1.0)).sums
        assert total_norm(added) <= 1 + 1e-6
    # what was added is the formed gradient, to the accuracy of float32 products of size offset
    assert torch.all((result.norms[:, 0].double() - formed.flatten(1).norm(dim=1)).abs() <= 1e-5 * offset)


def test_cancelling_gradients_without_the_slack_would_pass(monkeypatch):
    """The same inputs with the slack ignored: the bound is broken many times over."""
    torch.manual_seed(2)
    model = nn.Linear(64, 64, bias=False)
    inputs, gradients = on_positions(64, 4, 64, offset=1e5, scale=1e-2)
    monkeypatch.setattr(terms, "slack_factor", lambda *_: 0.0)
    worst = max(
        total_norm(
            clip_chunk(model, weigh, inputs[r : r + 1], gradients[r : r + 1], Flat(norm=1.0)).sums
        )
        for r in range(64)
    )  # fmt: skip
    assert worst > 1.1


def pairs(model, inputs, targets, count, *, clipping, **options):
    """How much one unit more changes the sums, over random chunks."""
    for draw in range(count):
        torch.manual_seed(draw)
        chosen = torch.randperm(len(inputs))[: int(torch.randint(1, 12, ()))]
        with_unit = clip_chunk(model, cross_entropy, inputs[chosen], targets[chosen], clipping, **options)
        without = clip_chunk(model, cross_entropy, inputs[chosen[1:]], targets[chosen[1:]], clipping, **options)
        yield total_norm({n: with_unit.sums[n] - without.sums[n] for n in with_unit.sums})


class Small(nn.Module):
    """A Gram layer on positions, a formed one, and a norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4)
        self.wide, self.output = nn.Linear(16, 64), nn.Linear(64, 5)

    def forward(self, images):
        maps = torch.relu(self.norm(self.conv(images))).flatten(2)  # (rows, 4, 16)
        return self.output(torch.relu(self.wide(maps)).mean(1))


@pytest.mark.keeps_out("Microbatch clipping doubles the sensitivity")
def test_adding_a_unit_changes_the_sum_by_at_most_the_sensitivity():
    torch.manual_seed(0)
    model, inputs, targets = Small(), 5 * torch.randn(200, 1, 9, 9), torch.randint(0, 5, (200,))
    clipping = Flat(norm=0.05)
    eta = rounding_bound(model, cross_entropy, inputs[:1], targets[:1], units=12)
    worst = max(pairs(model, inputs, targets, 250, clipping=clipping))
    assert 0.999 * 0.05 <= worst <= 0.05 * (1 + eta)
    assert eta < 0.02


@pytest.mark.keeps_out("A norm over several parameters whose last bit depends on the place of a row")
def test_norms_have_the_same_bits_at_every_place():
    torch.manual_seed(0)
    model, inputs, targets = Small(), 5 * torch.randn(200, 1, 9, 9), torch.randint(0, 5, (200,))
    for units in (70, 73, 79):
        chosen = torch.randperm(200)[:units]
        norms = clip_chunk(model, cross_entropy, inputs[chosen], targets[chosen], Flat(norm=0.05)).norms
        moved = clip_chunk(model, cross_entropy, inputs[chosen[1:]], targets[chosen[1:]], Flat(norm=0.05)).norms
        assert torch.equal(norms[1:], moved)


def test_a_clip_that_is_off_is_noticed(monkeypatch):
    torch.manual_seed(0)
    model, inputs, targets = Small(), 5 * torch.randn(50, 1, 9, 9), torch.randint(0, 5, (50,))
    clipping = Flat(norm=0.05)
    monkeypatch.setattr(Flat, "coefficients", lambda self, norms: (self.norm / norms).clamp(max=1.0) * 1.05)
    assert max(pairs(model, inputs, targets, 20, clipping=clipping)) > 0.05 * 1.02


@pytest.mark.keeps_out("NaN or Inf passes the clip")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_units_that_are_not_finite_add_exactly_nothing(bad):
    torch.manual_seed(0)
    model, inputs, targets = CNN(), torch.randn(6, 1, 28, 28), torch.arange(6)
    clean = clip_chunk(model, cross_entropy, inputs, targets, Flat(norm=0.1))
    spoiled = inputs.clone()
    spoiled[2, 0, 3, 3] = bad
    result = clip_chunk(model, cross_entropy, spoiled, targets, Flat(norm=0.1))
    assert result.finite.tolist() == [True, True, False, True, True, True]
    assert result.coefficients[2].tolist() == [0.0]
    others = torch.arange(6) != 2
    assert torch.equal(result.norms[others], clean.norms[others])
    rest = clip_chunk(model, cross_entropy, inputs[others], targets[others], Flat(norm=0.1))
    torch.testing.assert_close(result.sums, rest.sums, rtol=1e-5, atol=1e-7)


def test_a_unit_with_one_bad_row_adds_nothing():
    torch.manual_seed(0)
    model, inputs, targets = Small(), torch.randn(6, 1, 9, 9), torch.arange(6) % 5
    inputs[3] = float("nan")
    units = torch.tensor([7, 7, 8, 8, 9, 9])
    result = clip_chunk(model, cross_entropy, inputs, targets, Flat(norm=0.1), units=units)
    assert result.finite.tolist() == [True, False, True]
    rows = torch.tensor([0, 1, 4, 5])
    rest = clip_chunk(model, cross_entropy, inputs[rows], targets[rows], Flat(norm=0.1), units=units[rows])
    torch.testing.assert_close(result.sums, rest.sums, rtol=1e-5, atol=1e-7)


def test_a_loss_that_is_not_finite_for_one_row():
    model = nn.Linear(3, 2)
    sums = clipped_gradient_sum(
        model, lambda out, t: out.sum(1) * t, torch.ones(2, 3), torch.tensor([1.0, float("inf")]), 1.0
    )
    assert total_norm(sums) == pytest.approx(1.0, rel=1e-6)


def test_norms_and_losses_come_in_the_order_of_the_units():
    torch.manual_seed(0)
    model, inputs, targets = Small(), torch.randn(6, 1, 9, 9), torch.arange(6) % 5
    units = torch.tensor([3, 1, 3, 2, 3, 1])
    result = clip_chunk(model, cross_entropy, inputs, targets, Flat(norm=0.1), units=units)
    for place, unit in enumerate((1, 2, 3)):
        rows = units == unit
        alone = clip_chunk(model, cross_entropy, inputs[rows], targets[rows], Flat(norm=0.1), units=units[rows])
        torch.testing.assert_close(result.norms[place], alone.norms[0])
        torch.testing.assert_close(result.losses[rows], alone.losses)


@pytest.mark.keeps_out("Float sums whose real sensitivity exceeds the declared one")
def test_declared_rounding_covers_every_chunk():
    model, example = Small(), torch.zeros(1, 1, 9, 9)
    declared = rounding_bound(
        model, cross_entropy, example, torch.zeros(1, dtype=torch.long), units=12, rows_per_unit=4
    )
    torch.manual_seed(0)
    for _ in range(30):
        rows = int(torch.randint(1, 13, ()))
        counts = torch.randint(1, 5, (rows,))
        units = torch.arange(rows).repeat_interleave(counts)
        inputs, targets = torch.randn(len(units), 1, 9, 9), torch.zeros(len(units), dtype=torch.long)
        assert (
            clip_chunk(model, cross_entropy, inputs, targets, Flat(norm=1.0), units=units).rounding <= declared
        )


def test_rounding_of_the_usual_net_is_small():
    example = torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.long)
    assert rounding_bound(CNN(), cross_entropy, *example, units=256) < 0.01


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), 1e-12])
def test_bounds_that_make_no_sense(norm):
    for make in (lambda: Flat(norm=norm), lambda: PerLayer(norm=norm), lambda: Automatic(norm=norm)):
        with pytest.raises(InvalidInput, match="norm"):
            make()


def test_per_layer_takes_a_total_or_a_list():
    assert PerLayer(norms=(3.0, 4.0)).sensitivity == 5.0
    assert PerLayer(norm=2.0).sensitivity == 2.0
    for wrong in ({}, {"norm": 1.0, "norms": (1.0,)}):
        with pytest.raises(InvalidInput, match="either norm or norms"):
            PerLayer(**wrong)
    with pytest.raises(InvalidInput, match="one bound for each of the 4 layers"):
        clipped_gradient_sum(
            CNN(), cross_entropy, torch.randn(2, 1, 28, 28), torch.tensor([0, 1]), PerLayer(norms=(1.0, 2.0))
        )
