"""Scattering of opponent colours."""

import pytest
import torch

from sfumato.errors import InvalidInput
from sfumato.models import OpponentScattering
from sfumato.models.scattering import CHANNELS, KINDS, Scattering
from sfumato_lab.drawings import landscapes


@pytest.fixture(scope="module")
def scenes() -> torch.Tensor:
    return torch.from_numpy(landscapes.draw(4, seed=1)).float() / 255


def waves(codes: torch.Tensor) -> torch.Tensor:
    """(images, colours, orders 1 and 2, 4, 4) of roots."""
    return codes[:, 3 * 16 :].unflatten(1, (3, CHANNELS - 1, 4, 4))


def test_roots_are_those_of_scattering_the_opponent_colours(scenes: torch.Tensor) -> None:
    red, green, blue = scenes.unbind(1)
    opponents = [(red + green + blue) / 3, 1.5 * (red - green), 0.75 * (red + green) - 1.5 * blue]
    transform = Scattering(side=32, centred=True)

    def averaged(images: torch.Tensor) -> torch.Tensor:
        both = 0.5 * (transform(images) + transform(images.flip(-1)))
        return torch.nn.functional.avg_pool2d(both, 2).unflatten(1, (3, CHANNELS))

    found = OpponentScattering(side=32, kind="roots")(scenes)
    expected = averaged(torch.stack(opponents, dim=1))[:, :, 1:]
    assert torch.allclose(waves(found)[:, :, :8] ** 2 - 1e-4, expected[:, :, :8], atol=1e-5)
    assert torch.allclose(waves(found) ** 2 - 1e-4, expected, atol=5e-3)  # coarser waves drop pixels
    bright = found[:, : 3 * 16].unflatten(1, (3, 4, 4)) ** 2 - 1e-3
    assert torch.allclose(bright, averaged(scenes)[:, :, 0], atol=1e-5)


def test_grey_images_have_no_waves_of_colour_and_coloured_ones_have(scenes: torch.Tensor) -> None:
    net = OpponentScattering(side=32, kind="roots")
    grey = scenes.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    assert torch.allclose(waves(net(grey))[:, 1:], torch.tensor(1e-2), atol=1e-3)
    assert float(waves(net(scenes))[:, 1:].max()) > 0.1


def test_relative_codes_hardly_know_the_contrast_which_roots_do(scenes: torch.Tensor) -> None:
    faint = 0.5 + 0.5 * (scenes - 0.5)
    moved = {}
    for kind in KINDS:
        net = OpponentScattering(side=32, kind=kind)
        codes, others = net(scenes), net(faint)
        moved[kind] = float((codes - others).norm() / codes.norm())
    assert moved["relative"] < 0.1 < moved["roots"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_and_its_mirror_image_are_nearly_the_same(kind: str, scenes: torch.Tensor) -> None:
    net = OpponentScattering(side=32, kind=kind)
    codes = net(scenes)
    apart = float((codes - net(scenes.flip(-1))).norm() / codes.norm())
    assert apart < 0.02
    assert float((codes - net(scenes.flip(-2))).norm() / codes.norm()) > 5 * apart


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_images_have_finite_codes(kind: str) -> None:
    extremes = torch.stack([torch.zeros(3, 16, 16), torch.ones(3, 16, 16), torch.eye(16).expand(3, -1, -1)])
    codes = OpponentScattering(side=16, kind=kind)(extremes)
    assert bool(codes.isfinite().all())
    assert OpponentScattering(side=16, kind=kind)(extremes[:0]).shape == (0, codes.shape[1])


def test_other_kinds_and_sides_are_refused() -> None:
    with pytest.raises(InvalidInput, match="roots, relative"):
        OpponentScattering(side=32, kind="both")
    with pytest.raises(InvalidInput, match="multiple of 8"):
        OpponentScattering(side=28, kind="roots")
