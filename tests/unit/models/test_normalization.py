from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidInput
from sfumato.models import replace_batchnorm, resnet18

KINDS = {nn.BatchNorm1d: (3, 48, 5), nn.BatchNorm2d: (3, 48, 5, 5), nn.BatchNorm3d: (3, 48, 2, 2, 2)}


def randomised(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, norm.num_features))
        norm.bias.copy_(torch.linspace(-1, 1, norm.num_features))
    return norm


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_replaced_with_its_scales_and_shifts(kind):
    old = randomised(kind(48, eps=1e-3))
    model = nn.Sequential(nn.Identity(), nn.Sequential(old))
    new = replace_batchnorm(model)[1][0]
    assert isinstance(new, nn.GroupNorm)
    assert new.num_channels == 48
    assert 48 % new.num_groups == 0
    assert new.eps == 1e-3
    assert torch.equal(new.weight, old.weight)
    assert torch.equal(new.bias, old.bias)
    inputs = torch.linspace(0, 1, torch.Size(KINDS[kind]).numel()).reshape(KINDS[kind])
    assert new(inputs).shape == old(inputs).shape


def test_the_model_handed_in_is_untouched():
    model = nn.Sequential(randomised(nn.BatchNorm2d(4)))
    copy = replace_batchnorm(model)
    with torch.no_grad():
        copy[0].weight.zero_()
    assert isinstance(model[0], nn.BatchNorm2d)
    assert torch.equal(model[0].weight, torch.linspace(0.5, 2, 4))


def test_a_whole_model_becomes_the_one_built_with_group_norm():
    converted, built = replace_batchnorm(resnet18(norm="batch")), resnet18(norm="group")
    assert {name: tensor.shape for name, tensor in converted.state_dict().items()} == {
        name: tensor.shape for name, tensor in built.state_dict().items()
    }
    assert [type(module) for module in converted.modules()] == [type(module) for module in built.modules()]
    built.load_state_dict(converted.state_dict())
    images = torch.linspace(0, 1, 2 * 784).reshape(2, 1, 28, 28)
    assert torch.equal(converted(images), built(images))


def test_a_model_that_is_a_batch_norm_is_replaced_itself():
    assert isinstance(replace_batchnorm(nn.BatchNorm1d(32)), nn.GroupNorm)


def test_mode_type_and_frozen_parameters_are_kept():
    old = nn.BatchNorm2d(4).double().eval().requires_grad_(False)
    new = replace_batchnorm(old)
    assert (new.weight.dtype, new.training, new.weight.requires_grad) == (torch.float64, False, False)


def test_without_scales_there_are_none():
    new = replace_batchnorm(nn.BatchNorm2d(4, affine=False))
    assert list(new.parameters()) == []


def test_a_layer_used_twice_stays_one_layer():
    shared = nn.BatchNorm2d(4)
    model = replace_batchnorm(nn.Sequential(shared, nn.ReLU(), shared, nn.Sequential(shared)))
    assert isinstance(model[0], nn.GroupNorm)
    assert model[0] is model[2] is model[3][0]


@pytest.mark.parametrize("channels", [1, 2, 3, 7, 16, 24, 31, 32, 33, 64, 100, 512])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_groups_divide_the_channels_and_are_never_too_small(kind, channels):
    new = replace_batchnorm(kind(channels))
    each = channels // new.num_groups
    assert each * new.num_groups == channels
    assert new.num_groups <= 32
    assert new.num_groups == 1 or each >= (16 if kind is nn.BatchNorm1d else 2)


def test_flat_features_survive_normalisation():
    # One value a group would come out as the shift, whatever the input.
    rows = torch.linspace(-1, 1, 64).reshape(2, 32) ** 3
    outputs = replace_batchnorm(nn.BatchNorm1d(32))(rows)
    assert outputs.std(dim=1).min() > 0.5


def test_a_layer_that_does_not_know_its_channels_is_refused():
    with pytest.raises(InvalidInput, match=r"LazyBatchNorm2d.*run the model once"):
        replace_batchnorm(nn.Sequential(nn.LazyBatchNorm2d()))
