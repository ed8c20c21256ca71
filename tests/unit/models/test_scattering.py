"""The scattering transform against a slow one written from the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sfumato import datasets
from sfumato.errors import InvalidInput
from sfumato.models.scattering import CHANNELS, Scattering, ScatteringCodes
from sfumato_lab.drawings import leaves

SIDE, PAD = 12, 4
SIZE = SIDE + 2 * PAD


def offsets(size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Signed distances from the origin on a periodic grid, over five periods each way."""
    steps = np.arange(size)[:, None] + size * np.arange(-5, 6)[None]  # (pixels, periods)
    return np.meshgrid(steps.ravel(), steps.ravel(), indexing="ij")


def fold(values: np.ndarray, size: int = SIZE) -> np.ndarray:
    return values.reshape(size, 11, size, 11).sum((1, 3))


def wavelet(scale: int, angle: float) -> np.ndarray:
    """Morlet's wavelet with the usual shape: σ = .8·2^j, ξ = 3π/4·2^−j, twice as long as wide."""
    rows, columns = offsets()
    along = np.cos(angle) * rows + np.sin(angle) * columns
    across = np.cos(angle) * columns - np.sin(angle) * rows
    sigma = 0.8 * 2**scale
    gauss = np.exp(-(along**2 + (across / 2) ** 2) / (2 * sigma**2)) / (2 * np.pi * sigma**2 * 2)
    wave, gauss = fold(gauss * np.exp(1j * 3 * np.pi / 4 / 2**scale * along)), fold(gauss)
    return wave - gauss * wave.sum() / gauss.sum()


def low_pass() -> np.ndarray:
    rows, columns = offsets()
    gauss = fold(np.exp(-(rows**2 + columns**2) / (2 * 1.6**2)))
    return gauss / gauss.sum()


def convolve(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Circular convolution, pixel by pixel."""
    total = np.zeros(image.shape, dtype=complex)
    for (row, column), weight in np.ndenumerate(kernel):
        total += weight * np.roll(image, (row, column), axis=(0, 1))
    return total


def averaged(image: np.ndarray) -> np.ndarray:
    return convolve(image, low_pass()).real[PAD:-PAD:4, PAD:-PAD:4]


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    return (torch.sin(0.9 * rows + 0.4 * columns**1.3) * (rows > 3)).float()


def test_every_order_is_as_defined(image: torch.Tensor) -> None:
    found = Scattering(side=SIDE)(image[None, None])[0].numpy()
    padded = np.pad(image.numpy().astype(float), PAD, mode="reflect")
    angles = [math.pi * turn / 8 for turn in range(8)]
    fine = [np.abs(convolve(padded, wavelet(0, angle))) for angle in angles[:3]]
    assert found.shape == (81, 3, 3)
    np.testing.assert_allclose(found[0], averaged(padded), atol=1e-5)
    for turn in range(3):
        np.testing.assert_allclose(found[1 + turn], averaged(fine[turn]), atol=1e-5)
    # From the coarser scale on every second pixel is dropped before averaging, which is exact only for maps
    # without high frequencies; those of a modulus at this scale are below a few per cent.
    for turn in range(0, 8, 3):
        coarse = np.abs(convolve(padded, wavelet(1, angles[turn])))
        np.testing.assert_allclose(found[9 + turn], averaged(coarse), rtol=0.05, atol=2e-3)
    for first in range(3):
        again = np.abs(convolve(fine[first], wavelet(1, angles[5])))
        np.testing.assert_allclose(found[17 + 8 * first + 5], averaged(again), rtol=0.05, atol=2e-3)


def test_a_flat_image_has_its_level_and_no_waves() -> None:
    found = Scattering()(torch.full((1, 1, 28, 28), 0.7))[0]
    assert torch.allclose(found[0], torch.tensor(0.7), atol=1e-5)
    assert float(found[1:].abs().max()) < 1e-5


def test_it_follows_contrast_and_moves_with_the_image() -> None:
    transform = Scattering()
    images, _ = datasets.load("digits", "test", side=28).take(4).tensors()
    images = images * (torch.arange(28) - 13.5).abs().lt(9)  # room at the sides
    found = transform(images)
    assert torch.allclose(transform(3 * images), 3 * found, rtol=1e-4, atol=1e-6)
    moved = transform(images.roll(4, dims=-1))
    assert torch.allclose(moved[..., 2:-1], found[..., 1:-2], atol=2e-3)
    assert not torch.allclose(moved, found, atol=2e-3)


def test_channels_sides_and_no_rows() -> None:
    assert Scattering(side=32)(torch.rand(2, 3, 32, 32)).shape == (2, 3 * CHANNELS, 8, 8)
    assert Scattering()(torch.zeros(0, 1, 28, 28)).shape == (0, CHANNELS, 7, 7)
    assert list(Scattering().parameters()) == []


@pytest.fixture(scope="module")
def scenes() -> torch.Tensor:
    return torch.from_numpy(leaves.draw(4, seed=1)).float() / 255


def test_codes_are_roots_of_the_mean_over_an_image_and_its_mirror_image(scenes: torch.Tensor) -> None:
    transform = Scattering(side=32, centred=True)
    both = torch.nn.functional.avg_pool2d(0.5 * (transform(scenes) + transform(scenes.flip(-1))), 2)
    expected = both.unflatten(1, (3, CHANNELS))
    found = ScatteringCodes(side=32)(scenes).reshape(expected.shape) ** 2 - 1e-3
    assert torch.allclose(found[:, :, :9], expected[:, :, :9], atol=1e-5)
    assert torch.allclose(found, expected, atol=5e-3)  # coarser waves are looked at on every second pixel


def test_codes_of_an_image_and_its_mirror_image_are_nearly_the_same(scenes: torch.Tensor) -> None:
    net = ScatteringCodes(side=32)
    codes = net(scenes)
    assert float((codes - net(scenes.flip(-1))).abs().max()) < 0.02
    assert float((codes - net(scenes.flip(-2))).abs().max()) > 0.1


def test_codes_want_sides_of_whole_squares() -> None:
    with pytest.raises(InvalidInput, match="multiple of 8"):
        ScatteringCodes(side=28)


@pytest.mark.parametrize("side", [4, 30])
def test_a_side_that_does_not_fit_is_refused(side: int) -> None:
    with pytest.raises(InvalidInput, match="resize the images"):
        Scattering(side=side)
