"""Shapes and sizes of the published systems' models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato import models
from sfumato.errors import InvalidInput
from sfumato.models import CNN, MLP, MODELS, TanhCNN, build, resnet18


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def outputs_of(model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: found.update({name: output}))
    model(inputs)
    return found


@pytest.mark.parametrize(("make", "activation"), [(CNN, nn.ReLU), (TanhCNN, nn.Tanh)])
def test_the_cnn_is_the_published_one(make, activation):
    model = make()
    layers = [module for module in model.modules() if not list(module.children())]
    kinds = [type(layer) for layer in layers]
    pool = nn.MaxPool2d
    assert kinds == [
        *(nn.Conv2d, activation, pool, nn.Conv2d, activation, pool),
        *(nn.Flatten, nn.Linear, activation, nn.Linear),
    ]
    first, second = layers[0], layers[3]
    assert (first.in_channels, first.out_channels, first.kernel_size, first.stride, first.padding) == (
        *(1, 16),
        *((8, 8), (2, 2), (3, 3)),
    )
    assert (second.in_channels, second.out_channels, second.kernel_size, second.stride, second.padding) == (
        *(16, 32),
        *((4, 4), (2, 2), (0, 0)),
    )
    assert {(layers[i].kernel_size, layers[i].stride) for i in (2, 5)} == {(2, 1)}
    assert [(layers[i].in_features, layers[i].out_features) for i in (7, 9)] == [(512, 32), (32, 10)]
    # 16·(1·8·8+1) + 32·(16·4·4+1) + 32·(512+1) + 10·(32+1)
    assert size(model) == 1040 + 8224 + 16416 + 330 == 26_010


def test_resnet18_has_the_size_of_the_original_with_one_channel_and_ten_classes():
    # The original for 3 channels and 1,000 classes has 11,689,512 parameters (as torchvision documents).
    expected = 11_689_512 - 2 * 64 * 7 * 7 - 1000 * 513 + 10 * 513
    assert size(resnet18()) == size(resnet18(norm="batch")) == expected
    assert size(resnet18(in_channels=3, classes=1000)) == 11_689_512


def test_resnet18_has_the_known_positions_and_layers():
    model = resnet18()
    found = outputs_of(model, torch.zeros(2, 1, 28, 28))
    assert found["stem"].shape == (2, 64, 14, 14)
    positions = [found[f"stage{stage}"].shape[2:].numel() for stage in (1, 2, 3, 4)]
    assert positions == [49, 16, 4, 1]
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 1 + 16 + 3  # stem, two a block, a shortcut where a stage begins smaller
    assert (convolutions[0].kernel_size, convolutions[0].stride) == ((7, 7), (2, 2))
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == len(convolutions)
    assert {norm.num_groups for norm in norms} == {32}


def rows_touched(model: nn.Module) -> list[int]:
    """Which rows' outputs change, in training mode, when row 1 changes."""
    inputs = torch.linspace(0, 1, 3 * 784).reshape(3, 1, 28, 28)
    changed = inputs.clone()
    changed[1] = 1 - changed[1] ** 2
    with torch.no_grad():
        difference = (model.train()(inputs) - model(changed)).abs().amax(dim=1)
    return difference.gt(1e-4).nonzero().flatten().tolist()


def test_group_norm_keeps_examples_apart_and_batch_norm_does_not():
    assert rows_touched(resnet18(norm="group")) == [1]
    assert rows_touched(resnet18(norm="batch")) == [0, 1, 2]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_other_channels_classes_sides_and_no_rows(name):
    model = build(name, classes=7, in_channels=3, side=32)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert build(name)(torch.zeros(0, 1, 28, 28)).shape == (0, 10)


@pytest.mark.parametrize("name", MODELS)
def test_channels_last_gives_the_same_answers(name):
    model = build(name)
    images = torch.linspace(0, 1, 2 * 784).reshape(2, 1, 28, 28)
    expected = model(images)
    found = model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    assert torch.allclose(found, expected, atol=1e-4)


def test_convolutions_and_pools_stay_channels_last():
    model = CNN().to(memory_format=torch.channels_last)
    found = outputs_of(model, torch.zeros(2, 1, 28, 28).to(memory_format=torch.channels_last))
    for name in ("conv1", "pool1", "conv2", "pool2"):
        assert found[name].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_fixes_the_weights_and_disturbs_no_other_draw(name):
    before = torch.get_rng_state()
    first, again, other = (build(name, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two, _ in pairs)
    assert not all(torch.equal(one, three) for one, _, three in pairs)


def test_an_mlp_without_hidden_layers_is_a_logistic_regression():
    assert size(MLP(in_features=64, hidden=())) == 10 * 65
    assert size(MLP(in_features=64, hidden=(5, 6), classes=3)) == 5 * 65 + 6 * 6 + 3 * 7


def test_wrong_requests_name_the_remedy():
    with pytest.raises(InvalidInput, match="cnn, tanh-cnn, resnet18, mlp"):
        build("transformer")
    with pytest.raises(InvalidInput, match="side to be a whole number >= 20"):
        build("cnn", side=19)
    with pytest.raises(InvalidInput, match="group, batch"):
        resnet18(norm="layer")
    assert build("cnn", side=20)(torch.zeros(1, 1, 20, 20)).shape == (1, 10)


def test_exported_names_exist():
    assert sorted(models.__all__) == sorted(set(models.__all__))
    assert all(hasattr(models, name) for name in models.__all__)
