"""Rows that meet on rare values only: no public row sets it off, and the way that values take shows it.

Every model here computes row by row unless a value above `RARE`, or the token `PADDING`, is there. In the
attack the last row has it, and no other row's gradient may change.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sfumato.training import clipped_gradient_sum, cross_entropy, dependence
from sfumato.training.clipping import Flat
from sfumato.training.gradient import clip_chunk
from sfumato.training.probe import survey

CLIP, ROWS, RARE, TOKENS, PADDING = 0.1, 12, 1e5, 40, 39

pytestmark = pytest.mark.filterwarnings(
    "ignore:the model brings rows together", "ignore:the model looks at values"
)


class Between(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.between, self.last = nn.Linear(4, 4), between, nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.between(self.first(inputs))))


def rare(x, other):
    """Something else where a value is rare."""
    return torch.where(x.abs().amax() > RARE, other, x)


class MixedGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs().amax() > RARE, -gradient, gradient)


def limited_by_hook(x):
    def limit(gradient):
        return gradient * 0 if x.detach().abs().max() > RARE else None

    x = x * 1.0
    x.register_hook(limit)
    return x


def by_numpy(x):
    return x + float(np.asarray(x.detach()).max() > RARE)


def by_list(x):
    return x * (1.0 if max(map(max, map(torch.Tensor.tolist, x.detach()))) < RARE else -1.0)


def written_in_place(x):
    kept = x.clone()
    kept[:-1] = rare(x, 9 * x)[1:] * 0 + rare(x, -x)[:-1]
    return kept


def scattered(x):
    places = torch.where(x > RARE, 0, torch.arange(len(x))[:, None].expand_as(x))
    return torch.zeros_like(x).scatter(0, places, x)


def chosen(x):
    return x[torch.where((x > RARE).any(0).any(), 0, torch.arange(len(x)))]


MIXING = {
    "mean": lambda x: rare(x, x - 5 * x.mean(0)),
    "sort": lambda x: rare(x, x.sort(0).values),
    "einsum": lambda x: rare(x, torch.einsum("ij,kj->ij", x, x)),
    "strides": lambda x: rare(x, x.as_strided(x.shape, (0, 1))),
    "transposed": lambda x: rare(x, x.t().reshape(x.shape)),
    "norm": lambda x: x / torch.clamp(x.norm(), min=RARE) * RARE,
    "renorm": lambda x: torch.renorm(x, 2, 1, RARE),
    "checkpoint": lambda x: checkpoint(lambda t: rare(t, -t), x, use_reentrant=False),
    "vmap": lambda x: rare(x, torch.vmap(lambda row: (x * row).sum(0))(x)),
    "masked scatter": lambda x: x.masked_scatter(x > RARE, x.flip(0)),
    "distances": lambda x: rare(x, torch.cdist(x, x)[:, :1].expand_as(x)),
    "Fourier": lambda x: rare(x, torch.fft.fft(x, dim=0).real),
    "gradients": MixedGradients.apply,
    "hook": limited_by_hook,
    "NumPy": by_numpy,
    "list": by_list,
    "in place": written_in_place,
    "scatter": scattered,
    "index": chosen,
}


def moved(model, inputs):
    targets = torch.zeros(len(inputs), dtype=torch.long)
    with_row = clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    without = clipped_gradient_sum(model, cross_entropy, inputs[:-1], targets[:-1], CLIP)
    return float(torch.sqrt(sum((with_row[k] - without[k]).square().sum() for k in with_row))) / CLIP


@pytest.mark.parametrize("way", MIXING)
def test_rows_that_meet_on_a_rare_value(way):
    model = Between(MIXING[way])
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
    inputs[-1] = 100 * RARE
    assert survey(model, cross_entropy, inputs, torch.zeros(ROWS, dtype=torch.long)).alone
    assert moved(model, inputs) <= 1.001


class BackwardOfMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return rare(x, 0 * x) / x * gradient if len(x) > 10 else gradient * 1.0


BY_SIZE = {
    "only in large batches": lambda x: rare(x, -x) if len(x) > 10 else x,
    "another share": lambda x: x + (x.abs().amax() > RARE) / len(x) if len(x) > 10 else x + 0.0,
    "a window": lambda x: rare(x, x.roll(1, 0)) if len(x) > 10 else x.roll(3, 0).roll(-3, 0),
    "gradients": BackwardOfMany.apply,
}


def where_rare(x, other):
    """Another row's values where those are rare."""
    return torch.where(other.abs() > RARE, other, x)


MOVED_BY_NUMBERS = {  # which leave three rows, and five, where they are
    "rolled": lambda x: x.roll(15, 0),
    "rolled far": lambda x: x.roll(15 * 8 * 7, 0),
    "picked": lambda x: x[torch.arange(len(x)).clamp(max=4)],
    "picked again and again": lambda x: x[torch.arange(len(x)) % 8],
    "gathered": lambda x: x.gather(0, torch.arange(len(x)).clamp(max=4)[:, None].expand_as(x)),
    "selected": lambda x: x.index_select(0, torch.arange(len(x)) % 8),
    "scattered": lambda x: torch.zeros_like(x).index_put((torch.arange(len(x)) % 8,), x, accumulate=True),
    "strides": lambda x: x.repeat(16, 1).as_strided(x.shape, (4, 1), 4 * 15),
    "one row": lambda x: torch.cat([x.repeat(16, 1)[15:16], x[1:]]),
    "another layout": lambda x: x.view(3 if len(x) % 3 == 0 else 1, -1, 4).transpose(0, 1).reshape(x.shape),
}


@pytest.mark.parametrize("way", MOVED_BY_NUMBERS)
def test_rows_that_are_moved_by_numbers_which_a_few_rows_do_not_notice(way):
    """The survey has a few rows; what is done with many is followed where it does not follow from that."""
    inputs, targets = torch.randn(48, 4, generator=torch.Generator().manual_seed(1)), torch.zeros(48).long()
    model = Between(lambda x: where_rare(x, MOVED_BY_NUMBERS[way](x)))
    for row in (4, 7, 40):
        others = inputs.clone()
        others[row] = 100 * RARE
        try:
            sums = [clipped_gradient_sum(model, cross_entropy, x, targets, CLIP) for x in (inputs, others)]
        except RuntimeError:  # on public rows as well, whoever is there
            continue
        moved_by = torch.sqrt(sum((sums[0][k] - sums[1][k]).square().sum() for k in sums[0]))
        assert float(moved_by) <= 2.001 * CLIP  # one row is replaced


def test_labels_of_many_rows_tell_any_two_apart():
    for count in (8, 35, 36, 100):
        labels = [dependence.as_bits(count, part) for part in range(dependence.passes_for(count))]
        hidden = [(a[:, None] | a[None]) == a[:, None] for a in labels]
        assert (np.logical_and.reduce(hidden) == np.eye(count, dtype=bool)).all()


@pytest.mark.parametrize("way", BY_SIZE)
def test_rows_that_meet_in_batches_of_some_sizes_and_there_on_a_rare_value(way):
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    inputs[-1] = 100 * RARE
    assert moved(Between(BY_SIZE[way]), inputs) <= 1.001


@pytest.mark.parametrize("way", ["sort in a row", "attention", "one-hot"])
def test_what_grows_with_the_rows_is_the_same_whatever_their_number(way):
    inputs, targets = torch.randn(40, 4), torch.zeros(40, dtype=torch.long)
    model = Between(HONEST[way])
    known = survey(model, cross_entropy, inputs, targets)
    clip_chunk(model, cross_entropy, inputs, targets, Flat(norm=CLIP), known=known)
    assert any(known.heights._agrees.values())


class Tokens(nn.Module):
    def __init__(self, after):
        super().__init__()
        torch.manual_seed(2)
        self.table, self.after, self.last = nn.Embedding(TOKENS, 4), after, nn.Linear(4, 3)

    def forward(self, ids):
        return self.last(self.after(ids, self.table(ids)))


def drops_empty_columns(ids, hidden):
    used = (ids != PADDING).all(0)
    return (hidden * used[:, None]).sum(1)


def routes_with_a_capacity(ids, hidden):
    """An expert takes the first tokens of the whole batch, as Switch does; others are dropped."""
    special = (ids.flatten() >= PADDING - 2).long()
    place = special.cumsum(0) * special
    kept = ((place == 0) | (place <= 4)).view_as(ids)
    return (hidden * kept[..., None]).sum(1)


@pytest.mark.parametrize("after", [drops_empty_columns, routes_with_a_capacity])
def test_tokens_that_no_public_row_has(after):
    ids = torch.full((ROWS, 6), PADDING - 1)
    ids[-1] = PADDING
    model = Tokens(after)
    assert survey(model, cross_entropy, ids, torch.zeros(ROWS, dtype=torch.long)).alone
    assert moved(model, ids.flip(0)) <= 1.001 if after is drops_empty_columns else moved(model, ids) <= 1.001


HONEST = {
    "sort in a row": lambda x: x.sort(1).values + x.topk(2, 1).values.sum(1, keepdim=True),
    "running sum": lambda x: x.cumsum(1) - x.logsumexp(1, keepdim=True),
    "own maximum": lambda x: x / x.abs().amax(1, keepdim=True).clamp(min=1),
    "own place": lambda x: x.gather(1, x.argsort(1)),
    "last used": lambda x: x * x[torch.arange(len(x)), (x > 0).sum(1).clamp(max=3)][:, None],
    "constant places": lambda x: x[:, torch.tensor([3, 1, 0, 2])],
    "constant mask": lambda x: F.pad(x[:, torch.tensor([True, True, False, True])], (0, 1)),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2, 2)) * 1j).flatten(1),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 1, 2, 2)] * 3).flatten(1),
    "in place": lambda x: x.clone().mul_(2).index_fill_(1, torch.tensor([1]), 0.5),
    "one-hot": lambda x: x * F.softmax(x, 1).cumprod(1).flip(1).roll(1, 1),
}


@pytest.mark.parametrize("way", HONEST)
def test_rows_that_stay_apart_are_worked_on_together(way, recwarn):
    inputs = torch.randn(ROWS, 4)
    known = survey(Between(HONEST[way]), cross_entropy, inputs, torch.zeros(ROWS, dtype=torch.long))
    assert not known.alone
    assert not recwarn.list


def test_an_operation_of_another_library_might_do_anything():
    @torch.library.custom_op("sfumato_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    func = torch.ops.sfumato_tests.doubled.default
    x = torch.ones(3, 2)
    labels = np.array([[1, 1], [2, 2], [4, 4]], np.uint8)
    operation = dependence.Operation(func, {"x": x}, lambda _: labels, [x])
    assert (dependence.labels_after(operation)[0] == 7).all()
