"""Codes of patches, and whitening by public images."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from sfumato.models import PatchCodes, Whitened, patches
from sfumato_lab.drawings import leaves


@pytest.fixture(scope="module")
def fitted():
    net = PatchCodes(patches=6)
    net.fit_to(scenes(100))
    return net


def scenes(count):
    return torch.from_numpy(leaves.draw(count, seed=1)) / 255


def test_an_image_and_its_mirror_image_have_the_same_codes(fitted):
    images = scenes(4)
    assert torch.allclose(fitted(images), fitted(images.flip(-1)), atol=1e-5)
    assert not torch.allclose(fitted(images), fitted(images.flip(-2)), atol=1e-2)


def test_contrast_and_brightness_hardly_matter(fitted):
    images = scenes(4)
    assert torch.allclose(fitted(images), fitted(0.7 * images + 0.2), atol=0.05)


def test_the_codes_are_the_formula(fitted):
    images = scenes(1)
    windows = images[0].unfold(1, 6, 1).unfold(2, 6, 1).permute(1, 2, 3, 4, 0).reshape(27, 27, 108)
    normalised = (windows - windows.mean(2, keepdim=True)) / (
        windows.var(2, keepdim=True, unbiased=False) + patches._FLAT
    ).sqrt()
    white = functional.normalize(normalised @ fitted.whitening, dim=2)
    codes = white @ fitted.dictionary.T  # (27, 27, filters)
    regions = torch.stack([functional.relu(s * codes - patches._THRESHOLD) for s in (1, -1)])
    pooled = regions.reshape(2, 3, 9, 3, 9, 12).mean((2, 4)).permute(0, 3, 1, 2)  # (signs, filters, 3, 3)
    both = 0.5 * (pooled[:, :6] + pooled[:, 6:].flip(-1))
    assert torch.allclose(fitted(images)[0], (both + 1e-3).sqrt().flatten(), atol=1e-5)


def test_patches_of_shrunk_images_cover_all_of_them():
    net = PatchCodes(patches=20, shrink=2)
    images = scenes(50)
    net.fit_to(images)
    changed = images.clone()
    changed[:, :, 28:] = 1 - changed[:, :, 28:]  # the lowest pixels are seen by the lowest regions alone
    moved = (net(images) - net(changed)).abs().reshape(50, 2, 20, 3, 3).amax((0, 1, 2))
    assert moved[2].min() > 1e-3
    assert moved[0].max() < 1e-6
    assert torch.allclose(net(images), net(images.flip(-1)), atol=1e-5)


def test_no_image_gives_no_codes(fitted):
    assert fitted(torch.zeros(0, 3, 32, 32)).shape == (0, 108)


def test_directions_are_about_as_wide():
    images = torch.randn(4000, 1, 2, 3) * torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    net = Whitened(nn.Flatten(), shape=(1, 2, 3), directions=6)
    net.fit_to(images)
    rows = net(images)
    assert torch.allclose(rows.mean(0), torch.zeros(6), atol=1e-2)
    deviations = rows.std(0)
    # (λ / (λ + .003 λ₁))^½ is at least .95 where variances differ by up to 36.
    assert deviations.min() > 0.94 * deviations.max()
