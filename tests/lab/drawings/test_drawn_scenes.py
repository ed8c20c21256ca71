"""Scenes of leaves, landscapes and moved images: public, reproducible, and as wide as they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.errors import InvalidInput
from sfumato.randomness import public_generator
from sfumato_lab.drawings import landscapes, leaves
from sfumato_lab.drawings.writers import Moves

both = pytest.mark.parametrize("kind", [leaves, landscapes])


@both
def test_scenes_are_the_same_for_a_seed(kind):
    scenes = kind.draw(6, seed=3)
    assert (scenes.shape, scenes.dtype) == ((6, 3, 32, 32), np.uint8)
    assert np.array_equal(scenes, kind.draw(6, seed=3))
    assert not np.array_equal(scenes, kind.draw(6, seed=4))


@both
def test_scenes_vary_within_and_among_each_other(kind):
    scenes = kind.draw(200, seed=1) / 255.0
    assert 0.4 < scenes.mean() < 0.6
    assert scenes.std(axis=(1, 2, 3)).min() > 0.01
    # Neighbouring pixels are alike, as in photographs; with noise alone the correlation would be 0.
    assert np.corrcoef(scenes[..., :-1].ravel(), scenes[..., 1:].ravel())[0, 1] > 0.8


@both
def test_no_scenes_are_refused(kind):
    with pytest.raises(InvalidInput, match="count"):
        kind.draw(0, seed=1)


def test_single_pixels_of_landscapes_hardly_differ_from_their_neighbours_by_chance():
    """Else a dictionary of patches would show noise; half of the smoothest of leaves' differences are noise."""

    def smoothest(scenes):  # the median over scenes of the smallest deviation of neighbours among 4 × 4 squares
        steps = np.diff(scenes / 255.0, axis=3)[..., :28].reshape(len(scenes), 3, 8, 4, 7, 4)
        return np.median(steps.std(axis=(3, 5)).min(axis=(1, 2, 3)))

    assert smoothest(landscapes.draw(200, seed=1)) < 0.5 * smoothest(leaves.draw(200, seed=1))


@pytest.mark.parametrize("slope", [0.5, 1.5])
def test_amplitudes_of_a_rough_surface_fall_with_frequency_as_told(slope):
    surfaces = landscapes._rough(2000, slope, public_generator(1))
    power = np.square(np.abs(np.fft.fft2(surfaces))).mean(0)
    # 2,000 squared amplitudes: the mean of each has a relative deviation of 1/√2000, their ratio 3%.
    assert power[0, 2] / power[0, 8] == pytest.approx(4 ** (2 * slope), rel=0.2)
    assert np.allclose(surfaces.std(axis=(1, 2)), 1.0, atol=1e-3)


def test_no_move_leaves_images_as_they_are():
    images = torch.rand(5, 1, 28, 28)
    still = Moves(turn=0.0, scale=0.0, shear=0.0, shift=0.0)
    assert torch.allclose(still.of(images, public_generator(1)), images, atol=1e-5)


def test_a_shift_is_in_pixels():
    images = torch.zeros(400, 1, 28, 28)
    images[:, 0, 14, 14] = 1.0
    moved = Moves(turn=0.0, scale=0.0, shear=0.0, shift=3.0).of(images, public_generator(1))
    places = torch.arange(28.0)
    rows = (moved.sum((1, 3)) @ places) - 14
    assert rows.abs().max() <= 3.0 + 1e-4
    assert rows.abs().max() > 2.5
    assert torch.allclose(moved.sum((1, 2, 3)), torch.ones(400), atol=1e-4)


def test_each_image_is_moved_by_itself():
    images = torch.rand(1, 1, 28, 28).expand(8, -1, -1, -1)
    moved = Moves(turn=0.2, scale=0.1, shear=0.1, shift=1.0).of(images, public_generator(2))
    assert len({tuple(image.flatten()[:200].tolist()) for image in moved}) == 8


def test_a_negative_bound_is_refused():
    with pytest.raises(InvalidInput, match="shift"):
        Moves(turn=0.0, scale=0.0, shear=0.0, shift=-1.0)
