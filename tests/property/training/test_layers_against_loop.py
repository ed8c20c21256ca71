"""Layers against a loop over single examples, over generated shapes and options."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.training import clip_chunk, clipped_gradient_sum
from sfumato.training.clip import Flat

sizes = st.integers(1, 4)
slow_is_fine = settings(
    max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


class Pooled(nn.Module):
    """Any layer, its output squashed and summed to one number by fixed random weights."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        outputs = self.layer(inputs).flatten(1)
        weights = torch.sin(torch.arange(1.0, outputs.shape[1] + 1))
        return torch.tanh(outputs) @ weights


@st.composite
def linear(draw):
    width, shape = draw(sizes), draw(st.lists(sizes, max_size=2))
    return nn.Linear(width, draw(sizes), bias=draw(st.booleans())), (*shape, width)


@st.composite
def convolution(draw, dims):
    groups = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(dims)]
    dilation = [draw(st.integers(1, 2)) for _ in range(dims)]
    stride = [draw(st.integers(1, 2)) for _ in range(dims)]
    padding = draw(st.sampled_from(["same", "valid", "some"]))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])) if dims < 3 else "zeros"
    if padding == "same":
        stride = [1] * dims
    if padding == "some":
        padding = tuple(draw(st.integers(0, 2)) for _ in range(dims))
    layer = getattr(nn, f"Conv{dims}d")(
        groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3)), kernel,
        stride=stride, padding=padding, dilation=dilation, groups=groups,
        bias=draw(st.booleans()), padding_mode=mode,
    )  # fmt: skip
    space = [d * (k - 1) + 1 + draw(st.integers(2, 4)) for k, d in zip(kernel, dilation, strict=True)]
    return layer, (layer.in_channels, *space)


@st.composite
def convolution_on_few_pixels(draw):
    """Kernels larger than the image: some taps only ever see padding, or all of them."""
    side, kernel, dilation = draw(st.integers(1, 2)), draw(st.sampled_from([2, 3, 5])), draw(st.integers(1, 3))
    padding = draw(st.integers(-(-dilation * (kernel - 1) // 2), dilation * (kernel - 1) + 1))
    layer = nn.Conv2d(2, 3, kernel, stride=draw(st.integers(1, 3)), padding=padding, dilation=dilation)
    return layer, (2, side, side)


@st.composite
def convolution_by_bands(draw, dims):
    """Many channels or wide kernels, windows that share their lines: each line of the kernel by itself."""
    flat = dims == 2 and draw(st.booleans())
    channels = draw(st.integers(1, 2)) if flat else draw(st.integers(6, 9))
    kernel = (
        [draw(st.sampled_from([4, 6])), draw(st.integers(4, 8))] if flat else [draw(st.integers(2, 3))] * dims
    )
    step = 2 if flat else draw(st.integers(1, 2))  # lines abreast, or a stride that equals the dilation
    dilation = 1 if flat else step
    padding = tuple(draw(st.integers(0, 3)) for _ in range(dims))
    layer = getattr(nn, f"Conv{dims}d")(
        channels, draw(st.integers(1, 3)), kernel, stride=step, dilation=dilation, padding=padding
    )
    space = [dilation * (k - 1) + 1 + draw(st.integers(4, 9)) for k in kernel]
    return layer, (channels, *space)


@st.composite
def embedding(draw):
    layer = nn.Embedding(5, draw(sizes), padding_idx=draw(st.sampled_from([None, 2])))
    return layer, tuple(draw(st.lists(sizes, max_size=2)))


@st.composite
def group_norm(draw):
    groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 2))
    space = draw(st.lists(st.integers(2, 3), min_size=1, max_size=2))
    return nn.GroupNorm(groups, channels), (channels, *space)


@st.composite
def instance_norm(draw, dims):
    channels = draw(sizes)
    space = [draw(st.integers(2, 3)) for _ in range(dims)]
    return getattr(nn, f"InstanceNorm{dims}d")(channels, affine=True), (channels, *space)


@st.composite
def trailing_norm(draw, family):
    shape = draw(st.lists(st.integers(2, 4), min_size=1, max_size=2))
    options = {"bias": draw(st.booleans())} if family is nn.LayerNorm else {"eps": 1e-5}
    return family(shape, **options), (*draw(st.lists(sizes, max_size=2)), *shape)


CASES = {
    nn.Linear: linear(),
    nn.Conv1d: convolution(1),
    nn.Conv2d: st.one_of(convolution(2), convolution_on_few_pixels(), convolution_by_bands(2)),
    nn.Conv3d: st.one_of(convolution(3), convolution_by_bands(3)),
    nn.Embedding: embedding(),
    nn.GroupNorm: group_norm(),
    nn.InstanceNorm1d: instance_norm(1),
    nn.InstanceNorm2d: instance_norm(2),
    nn.InstanceNorm3d: instance_norm(3),
    nn.LayerNorm: trailing_norm(nn.LayerNorm),
    nn.RMSNorm: trailing_norm(nn.RMSNorm),
}


def build(data, family):
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    layer, shape = data.draw(CASES[family])
    rows = data.draw(st.integers(1, 5))
    if family is nn.Embedding:
        inputs = torch.randint(0, 5, (rows, *shape))
    else:
        inputs = torch.randn(rows, *shape)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return Pooled(layer), inputs


def loss(outputs, targets):
    return outputs * targets


def check(data, family, clipped_by_loop, distance):
    model, inputs = build(data, family)
    rows = len(inputs)
    targets = torch.linspace(0.5, 2.0, rows)
    units = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
    for clip_norm, owner in ((float("inf"), None), (0.1, None), (0.1, units)):
        ours = clipped_gradient_sum(model, loss, inputs, targets, clip_norm, units=owner)
        oracle = clipped_by_loop(model, loss, inputs, targets, clip_norm, owner)
        assert distance(ours, oracle) <= 1e-5


def _property(family):
    @slow_is_fine
    @given(data=st.data())
    def test(data, clipped_by_loop, distance):
        check(data, family, clipped_by_loop, distance)

    return test


test_linear = _property(nn.Linear)
test_conv1d = _property(nn.Conv1d)
test_conv2d = _property(nn.Conv2d)
test_conv3d = _property(nn.Conv3d)
test_embedding = _property(nn.Embedding)
test_group_norm = _property(nn.GroupNorm)
test_instance_norm1d = _property(nn.InstanceNorm1d)
test_instance_norm2d = _property(nn.InstanceNorm2d)
test_instance_norm3d = _property(nn.InstanceNorm3d)
test_layer_norm = _property(nn.LayerNorm)
test_rms_norm = _property(nn.RMSNorm)


def test_bands_are_met(monkeypatch):
    """The cases above do form gradients by bands, lines abreast or not: else they would show nothing of it."""
    from sfumato.training import terms

    formed = []
    intact = terms._formed_by_bands
    monkeypatch.setattr(terms, "_formed_by_bands", lambda *each: formed.append(each) or intact(*each))
    for layer, side in ((nn.Conv2d(1, 2, 8, stride=2), 20), (nn.Conv2d(8, 3, 3, padding=1), 6)):
        inputs = torch.randn(2, layer.in_channels, side, side)
        clipped_gradient_sum(Pooled(layer), loss, inputs, torch.ones(2), 1.0)
    assert [each[0].shape[-1] for each in formed][-1] == 8
    assert len(formed) >= 2


@pytest.mark.keeps_out(
    "A three-dimensional convolution whose padding, stride or dilation is one number for all dimensions"
)
def test_one_number_for_all_dimensions_of_a_convolution(clipped_by_loop, distance):
    model = Pooled(nn.Conv3d(2, 3, (1, 2, 1), padding="valid"))
    inputs, targets = torch.randn(3, 2, 3, 3, 3), torch.ones(3)
    ours = clipped_gradient_sum(model, loss, inputs, targets, 0.1)
    assert distance(ours, clipped_by_loop(model, loss, inputs, targets, 0.1)) <= 1e-5


def test_taps_that_all_fall_beside_the_data_have_no_gradient():
    """Three taps at −4, −1 and 2 of a row of one pixel."""
    layer = nn.Conv1d(2, 3, 3, stride=3, padding=4, dilation=3)
    sums = clipped_gradient_sum(Pooled(layer), loss, torch.randn(2, 2, 1), torch.ones(2), 1.0)
    assert not sums["layer.weight"].any()
    assert sums["layer.bias"].any()


@slow_is_fine
@given(data=st.data())
def test_no_rows_give_zeros(data):
    family = data.draw(st.sampled_from(sorted(CASES, key=str)))
    model, inputs = build(data, family)
    sums = clipped_gradient_sum(model, loss, inputs[:0], torch.zeros(0), 1.0)
    assert list(sums) == [name for name, _ in model.named_parameters()]
    assert all(not value.any() for value in sums.values())
    result = clip_chunk(model, loss, inputs[:0], torch.zeros(0), Flat(norm=1.0))
    assert len(result.norms) == len(result.finite) == 0


@slow_is_fine
@given(
    positions=st.integers(1, 12), width=st.integers(1, 40), height=st.integers(1, 40), rows=st.integers(1, 70)
)
def test_both_ways_of_a_norm_agree(positions, width, height, rows):
    """Gram matrices and formed gradients, whichever the cost model would choose."""
    from sfumato.training.terms import Fold, Gram, Materialised, Weights

    torch.manual_seed(rows)
    inputs, gradients = torch.randn(rows, 1, positions, width), torch.randn(rows, 1, positions, height)
    fold = Fold((height, width))
    gram, formed = Gram(inputs, gradients, fold), Materialised(gradients.transpose(2, 3) @ inputs, fold)
    weights = Weights(torch.rand(rows))
    torch.testing.assert_close(gram.weighted_sum(weights), formed.weighted_sum(weights), rtol=1e-4, atol=1e-4)
    expected = (gradients.double().transpose(2, 3) @ inputs.double()).square().sum((1, 2, 3))
    for term in (gram, formed):
        squares, slack = term.squared_norms()
        assert torch.all(
            (squares.double() - expected).abs() <= (0 if slack is None else slack) + 1e-5 * expected
        )
