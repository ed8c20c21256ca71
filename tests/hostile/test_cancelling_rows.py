"""Gradients that cancel all but their rounding errors: what is left of them is clipped, whatever the kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.training.clip import Automatic, Flat, PerLayer, clipped_alone
from sfumato.training.engine import clip_chunk

POSITIONS, OUTPUTS, INPUTS = 8, 10, 100


def loss(outputs, targets):
    return (outputs * targets).sum((1, 2))


def norm(sums):
    return sum(value.double().square().sum() for value in sums.values()).sqrt().item()


def cancelling_row(generator):
    """Output gradients ±v beside equal inputs: exactly, the gradient is zero."""
    order = torch.randperm(POSITIONS, generator=generator)
    half = POSITIONS // 2
    sizes = 2.0 ** torch.randint(0, 24, (half,), generator=generator)
    values, inputs = (torch.randn(half, generator=generator) for _ in range(2))
    values = values * sizes
    signed, equal = torch.cat([values, -values])[order], torch.cat([inputs, inputs])[order]
    return (
        equal[None, :, None].expand(1, POSITIONS, INPUTS).contiguous(),
        signed[None, :, None].expand(1, POSITIONS, OUTPUTS).contiguous(),
    )


def formed(row, times):
    inputs, gradients = (part.expand(times, -1, -1).contiguous() for part in row)
    return (gradients.transpose(1, 2) @ inputs)[0].norm().item()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.keeps_out("Matrix kernels that round by batch shape")
def test_a_row_that_kernels_disagree_about_adds_no_more_than_the_bound(two_threads):
    """The worst of 1,200 rows: formed in a batch of one it may be hundreds of times what it is among eight."""
    generator = torch.Generator().manual_seed(0)
    rows = [cancelling_row(generator) for _ in range(1200)]
    worst = max(rows, key=lambda row: formed(row, 1) / max(formed(row, 8), 1e-6))
    bound = 1.01 * max(formed(worst, 8), 1e-6)
    model = nn.Linear(INPUTS, OUTPUTS, bias=False)
    alone = clip_chunk(model, loss, *worst, Flat(norm=bound))
    assert norm(alone.sums) <= bound * (1 + alone.rounding)
    others = torch.randn(40, POSITIONS, INPUTS), torch.randn(40, POSITIONS, OUTPUTS)
    for company in (others, rows[3], rows[4]):
        joined = [torch.cat(parts) for parts in zip(company, worst, strict=True)]
        without, among = (clip_chunk(model, loss, *some, Flat(norm=bound)) for some in (company, joined))
        change = {name: among.sums[name].double() - without.sums[name].double() for name in among.sums}
        assert norm(change) <= bound * (1 + max(among.rounding, without.rounding))


class Fickle:
    """A term whose gradient comes out otherwise each time that it is formed, as if by another kernel."""

    def __init__(self):
        self.asked = []

    def gradient(self, units):
        self.asked.append(units.tolist())
        return 10.0 ** len(self.asked) * torch.ones(len(units), 3, 2)


@pytest.mark.parametrize("clipping", [Flat(norm=1.0), PerLayer(norm=1.0), Automatic(norm=1.0)])
def test_norm_and_sum_are_of_one_and_the_same_gradient(clipping):
    terms = {"weight": Fickle(), "bias": Fickle()}
    layers = clipping.layers(list(terms))
    norms, sums = clipped_alone(terms, layers, torch.tensor([4]), clipping)
    assert all(term.asked == [[4]] for term in terms.values())
    assert norms.shape == (1, len(layers))
    assert 0.9 < norm(sums) <= 1.0


def test_units_are_formed_by_themselves_whoever_else_is_there():
    term = Fickle()
    _, sums = clipped_alone({"weight": term}, [["weight"]], torch.tensor([1, 5, 6]), Flat(norm=1.0))
    assert term.asked == [[1], [5], [6]]
    assert norm(sums) <= 3.0


def test_a_gradient_that_is_not_finite_adds_nothing():
    class Broken(Fickle):
        def gradient(self, units):
            return torch.full((len(units), 2), float("inf"))

    norms, sums = clipped_alone({"weight": Broken()}, [["weight"]], torch.tensor([0]), Flat(norm=1.0))
    assert not norms.isfinite().any()
    assert sums == {}


def test_a_gamma_below_what_float32_resolves_is_refused():
    with pytest.raises(ValueError, match="gamma"):
        Automatic(norm=1.0, gamma=1e-23)
