"""Features that each image has by itself, of unit length, and a head that starts at nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.models import FeatureClassifier, PriorLevels, load_prior


class Pixels(nn.Module):
    def forward(self, images):
        return images.flatten(1)


def images(count: int) -> torch.Tensor:
    return torch.linspace(0.01, 1, count * 784).reshape(count, 1, 28, 28).sin().abs()


def test_features_have_unit_length_and_the_head_knows_nothing():
    model = FeatureClassifier([Pixels(), Pixels()], classes=4)
    features = model.features(images(3))
    assert features.shape == (3, 2 * 784)
    assert torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-6)
    assert not model(images(3)).any()


def test_weights_are_the_lengths_of_the_parts():
    model = FeatureClassifier([Pixels(), Pixels()], classes=4, weights=(4.0, 3.0))
    first, second = model.features(images(3)).split(784, dim=1)
    assert torch.allclose(first.norm(dim=1), torch.full((3,), 0.8), atol=1e-6)
    assert torch.allclose(second.norm(dim=1), torch.full((3,), 0.6), atol=1e-6)


def test_an_image_is_looked_at_by_itself():
    model = FeatureClassifier([PriorLevels(load_prior("strokes"))], classes=10)
    both = model.features(images(300))  # more than are looked at together
    assert torch.allclose(model.features(images(300)[7:8]), both[7:8], atol=1e-5)
    assert both.shape[1] == 576 + 864 + 576


def test_the_centre_is_the_mean_of_public_features():
    model = FeatureClassifier([Pixels()], classes=2)
    public = images(5)
    model.fit_to(public)
    expected = nn.functional.normalize(public.flatten(1), dim=1).mean(0)
    assert torch.allclose(model.centre, expected, atol=1e-6)
    moved = nn.functional.normalize(nn.functional.normalize(public.flatten(1), dim=1) - expected, dim=1)
    assert torch.allclose(model.features(public), moved, atol=1e-5)


@pytest.mark.parametrize("count", [40, 900])  # fewer and more public images than features
def test_directions_are_the_principal_ones_weighed_by_their_variance(count):
    model = FeatureClassifier([Pixels()], classes=2, directions=3)
    public = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    public[:, :, :2] *= torch.linspace(0, 30, count).view(-1, 1, 1, 1)  # two rows of pixels vary the most
    model.fit_to(public)
    rows = nn.functional.normalize(public.flatten(1), dim=1)
    _, values, vectors = torch.linalg.svd((rows - rows.mean(0)).double(), full_matrices=False)
    variances = values[:3] ** 2
    expected = vectors[:3].T * (variances / variances[0] + 1e-4) ** -0.25
    signs = (model.directions.double() * expected).sum(0).sign()
    assert torch.allclose(model.directions.double() * signs, expected, atol=1e-3)
    assert torch.allclose(model.features(public).norm(dim=1), torch.ones(count), atol=1e-5)


def test_only_the_head_is_trainable():
    def learns(model):
        return {name for name, value in model.named_parameters() if value.requires_grad}

    extractor = PriorLevels(load_prior("strokes"))
    assert learns(FeatureClassifier([extractor], classes=3)) == {"head.weight"}
    assert learns(FeatureClassifier([extractor], classes=3, bias=True)) == {"head.weight", "head.bias"}


def test_a_row_moves_the_head_by_no_more_than_its_error():
    """A bias would add as much again to the squared norm of a gradient, and so to the noise."""
    model = FeatureClassifier([Pixels()], classes=4)
    logits = model(torch.rand(1, 1, 28, 28))
    error = (logits.softmax(1) - torch.eye(4)[1]).norm()
    torch.nn.functional.cross_entropy(logits, torch.tensor([1])).backward()
    whole = torch.cat([value.grad.flatten() for value in model.head.parameters()]).norm()
    assert torch.allclose(whole, error, rtol=1e-4)


def test_no_images_have_no_features():
    assert FeatureClassifier([Pixels()], classes=2).features(torch.zeros(0, 1, 28, 28)).shape == (0, 784)


def test_products_of_directions_have_the_square_of_a_product_and_half_the_length():
    model = FeatureClassifier([Pixels()], classes=2, adapts="products", products=3)
    rows = nn.functional.normalize(torch.randn(4, 784, generator=torch.Generator().manual_seed(1)), dim=1)
    mean, leading = rows.mean(0), torch.eye(784)[[5, 9, 11]] * torch.tensor([[1.0], [2.0], [3.0]])
    model.adapt(torch.cat([mean[None], leading]))
    found = model.adapted(rows)
    assert found.shape == (4, 784 + 6)
    assert torch.allclose(found.norm(dim=1), torch.ones(4), atol=1e-6)
    centred = nn.functional.normalize(rows - mean, dim=1)
    along = nn.functional.normalize(centred @ leading.T, dim=1)
    kernel = (centred @ centred.T + 0.25 * (along @ along.T) ** 2) / 1.25
    assert torch.allclose(found @ found.T, kernel, atol=1e-6)
