"""Whole models against a loop over single units."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import UnsupportedModel
from sfumato.models import CNN, resnet18
from sfumato.training import clip_chunk, clipped_gradient_sum
from sfumato.training.clip import Automatic, Flat, PerLayer

cross_entropy = partial(F.cross_entropy, reduction="none")


class Encoder(nn.Module):
    def __init__(self, *, batch_first=True):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=batch_first), 2,
            enable_nested_tensor=False,
        )  # fmt: skip
        self.output = nn.Linear(16, 3)

    def forward(self, tokens):
        return self.output(self.layers(self.embedding(tokens)).mean(1))


class Attention(nn.Module):
    """Attention with rows second, key padding, and weights that are used."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.output = nn.Linear(8, 3)

    def forward(self, inputs):
        sequence = inputs.transpose(0, 1)
        padding = inputs[:, :, 0] > 1
        mixed, weights = self.attention(sequence, sequence, sequence, key_padding_mask=padding)
        return self.output(mixed.transpose(0, 1).mean(1)) + weights.square().sum((1, 2))[:, None]


class Recurrent(nn.Module):
    def __init__(self, family, **options):
        super().__init__()
        self.recurrent = family(5, 6, **options)
        self.output = nn.LazyLinear(3)

    def forward(self, inputs):
        first = self.recurrent.batch_first
        states, last = self.recurrent(inputs if first else inputs.transpose(0, 1))
        last = last[0] if isinstance(last, tuple) else last
        return self.output(torch.cat([states[:, -1] if first else states[-1], last[0]], dim=1))


class Tied(nn.Module):
    """The embedding table is also the output layer's weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(torch.tanh(self.embedding(tokens))).sum(1)


class Reused(nn.Module):
    """One layer three times, on other numbers of positions."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        hidden = torch.tanh(self.layer(inputs))
        return torch.tanh(self.layer(hidden)).sum(1) + self.layer(hidden[:, 0])


class Adapter(nn.Module):
    """A frozen linear layer with a trainable low-rank part (LoRA)."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features))
        self.up = nn.Parameter(torch.randn(layer.out_features, rank))

    def forward(self, inputs):
        return self.layer(inputs) + inputs @ self.down.T @ self.up.T


class OwnParameter(nn.Module):
    """A container with a parameter of its own beside its layers: a class token."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        return torch.tanh(self.layer(torch.cat([self.token.expand(len(inputs), 1, 4), inputs], dim=1))).sum(1)


class InPlace(nn.Module):
    """In-place activations on outputs, on views of them, and a residual added in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs):
        hidden = F.relu_(self.first(inputs))
        deep = self.norm(self.second(hidden))
        deep += hidden
        return F.relu_(deep).sum(1)


class Folded(nn.Module):
    """Rows and positions folded into the first dimension, row by row."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 6), nn.GroupNorm(2, 6)

    def forward(self, inputs):
        return self.norm(self.layer(inputs.reshape(-1, 4))).reshape(len(inputs), -1, 6).sum(1)


def another_forward(layer, forward):
    """A layer of torch's whose forward pass was replaced on the object."""
    layer.forward = partial(forward, layer)
    return layer


def cubed(layer, inputs):
    return F.linear(inputs, layer.weight**3, layer.bias)


def images(rows=5):
    return torch.randn(rows, 1, 28, 28)


def sequences(rows=5, width=5):
    return torch.randn(rows, 4, width)


def tokens(rows=5):
    return torch.randint(0, 7, (rows, 6))


MODELS = {
    "CNN": (CNN, images),
    "ResNet-18": (resnet18, images),
    "transformer": (Encoder, tokens),
    "attention, rows second": (Attention, partial(sequences, width=8)),
    "LSTM": (partial(Recurrent, nn.LSTM, batch_first=True), sequences),
    "LSTM, rows second": (partial(Recurrent, nn.LSTM, bidirectional=True), sequences),
    "GRU": (partial(Recurrent, nn.GRU, batch_first=True), sequences),
    "GRU, rows second": (partial(Recurrent, nn.GRU, num_layers=2), sequences),
    "tied weights": (Tied, tokens),
    "reused layer": (lambda: Reused(nn.Linear(4, 4)), partial(sequences, width=4)),
    "adapter": (lambda: nn.Sequential(Adapter(nn.Linear(5, 4)), nn.Flatten(), nn.Linear(16, 3)), sequences),
    "own parameter": (OwnParameter, partial(sequences, width=4)),
    "in place": (InPlace, partial(sequences, width=4)),
    "folded rows": (Folded, partial(sequences, width=4)),
    "forward on the object": (
        lambda: nn.Sequential(nn.Flatten(), another_forward(nn.Linear(20, 3), cubed)),
        sequences,
    ),
}


def case(name):
    torch.manual_seed(5)
    build, draw = MODELS[name]
    model, inputs = build(), draw()
    classes = model(inputs).shape[1]
    return model, inputs, torch.randint(0, classes, (len(inputs),))


@pytest.mark.keeps_out("Tied weights or custom layers silently mis-clipped")
@pytest.mark.parametrize("name", MODELS)
def test_model_against_loop(name, clipped_by_loop, distance):
    model, inputs, targets = case(name)
    for clip_norm, units in (
        (float("inf"), None),
        (0.2, None),
        (0.2, torch.tensor([0, 4, 4, 1, 1])),
        (0.2, torch.tensor([2, 9, 2, 2, 9])),
    ):
        ours = clipped_gradient_sum(model, cross_entropy, inputs, targets, clip_norm, units=units)
        assert {n: s.shape for n, s in ours.items()} == {
            n: p.shape for n, p in model.named_parameters() if p.requires_grad
        }
        assert distance(ours, clipped_by_loop(model, cross_entropy, inputs, targets, clip_norm, units)) <= 1e-5


@pytest.mark.parametrize("name", ["CNN", "transformer", "GRU"])
def test_chunks_change_nothing_but_rounding(name, distance):
    model, _, _ = case(name)
    inputs = MODELS[name][1](rows=9)
    targets = torch.arange(9) % 3
    units = torch.tensor([0, 1, 2, 2, 3, 4, 4, 4, 4])
    whole = clipped_gradient_sum(model, cross_entropy, inputs, targets, 0.2, chunk=9, units=units)
    for chunk in (1, 2, 5):
        parts = clipped_gradient_sum(model, cross_entropy, inputs, targets, 0.2, chunk=chunk, units=units)
        assert distance(parts, {n: v.double() for n, v in whole.items()}) <= 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_leaves_the_model_as_it_was(name):
    model, inputs, targets = case(name)
    modules = list(model.modules())
    before = [{k: copy.copy(v) for k, v in vars(m).items() if not k.startswith("_flat")} for m in modules]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    clipped_gradient_sum(model, cross_entropy, inputs, targets, 1.0)
    with pytest.raises(UnsupportedModel, match="ZeroDivisionError"):
        clipped_gradient_sum(model, lambda outputs, _: 1 / 0, inputs, targets, 1.0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    for module, old in zip(modules, before, strict=True):
        assert {k for k in vars(module) if not k.startswith("_flat")} == set(old)
        assert not module._forward_hooks
        assert module._forward_pre_hooks == old["_forward_pre_hooks"]
        assert module._parameters.keys() == old["_parameters"].keys()
        assert all(module._parameters[k] is old["_parameters"][k] for k in old["_parameters"])


def test_frozen_parameters_have_no_sum():
    model = CNN()
    model.conv1.requires_grad_(False)
    model.output.bias.requires_grad_(False)
    sums = clipped_gradient_sum(model, cross_entropy, images(), torch.zeros(5, dtype=torch.long), 1.0)
    assert list(sums) == [name for name, p in model.named_parameters() if p.requires_grad]


def test_unused_parameters_get_zeros():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, inputs):
            self.unused(inputs)
            return self.used(inputs)

    sums = clipped_gradient_sum(Half(), cross_entropy, torch.randn(3, 4), torch.zeros(3, dtype=torch.long), 1.0)
    assert not sums["unused.weight"].any()
    assert sums["used.weight"].any()


def test_user_hooks_run_and_stay(clipped_by_loop, distance):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, args, output: torch.tanh(output))
    inputs, targets = torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    ours = clipped_gradient_sum(model, cross_entropy, inputs, targets, 0.2)
    assert distance(ours, clipped_by_loop(model, cross_entropy, inputs, targets, 0.2)) <= 1e-5
    assert len(model[0]._forward_hooks) == 1


def test_inputs_may_be_tuples_and_dicts():
    bilinear = nn.Bilinear(3, 4, 2)
    left, right, targets = torch.randn(5, 3), torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    by_tuple = clipped_gradient_sum(bilinear, cross_entropy, (left, right), targets, 1.0)
    by_dict = clipped_gradient_sum(bilinear, cross_entropy, {"input1": left, "input2": right}, targets, 1.0)
    torch.testing.assert_close(by_tuple, by_dict)


def test_dropout_is_the_same_in_both_directions():
    """With a linear layer after dropout, a row's gradient is zero exactly where its input was dropped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 1, bias=False)).train()
    result = clip_chunk(model, lambda out, _: out[:, 0], torch.ones(1, 6), torch.zeros(1), Flat(norm=1e3))
    values = set(result.sums["1.weight"].flatten().tolist())
    assert values == {0.0, 2.0}


@pytest.mark.parametrize("clipping", [PerLayer(norm=0.3), PerLayer(norms=(0.1, 0.2, 0.05, 0.3))])
def test_per_layer(clipping, clipped_by_loop, distance):
    torch.manual_seed(0)
    model, inputs, targets = CNN(), images(), torch.arange(5)
    bounds = clipping.norms or (0.15,) * 4
    ours = clipped_gradient_sum(model, cross_entropy, inputs, targets, clipping)
    for layer, bound in zip(("conv1", "conv2", "hidden", "output"), bounds, strict=True):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(layer))
        oracle = clipped_by_loop(model, cross_entropy, inputs, targets, bound)
        assert distance({name: ours[name] for name in oracle}, oracle) <= 1e-5


def test_automatic(clipped_by_loop, distance):
    torch.manual_seed(0)
    model, inputs, targets = CNN(), images(), torch.arange(5)
    ours = clipped_gradient_sum(model, cross_entropy, inputs, targets, Automatic(norm=0.7, gamma=0.01))
    oracle = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    for row in range(5):
        one = clipped_by_loop(model, cross_entropy, inputs[row : row + 1], targets[row : row + 1], float("inf"))
        norm = torch.stack([value.norm() for value in one.values()]).norm()
        for name in oracle:
            oracle[name] += 0.7 / (norm + 0.01) * one[name]
    assert distance(ours, oracle) <= 1e-5


def test_without_a_bound_it_is_the_plain_gradient():
    torch.manual_seed(0)
    model, inputs, targets = CNN(), images(32), torch.arange(32) % 10
    ours = clipped_gradient_sum(model, cross_entropy, inputs, targets, float("inf"))
    F.cross_entropy(model(inputs), targets, reduction="sum").backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5)
