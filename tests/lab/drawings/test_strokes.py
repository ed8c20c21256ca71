"""Drawn digits: reproducible, balanced, and laid out by the rule published for MNIST."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.datasets import DATASETS, draw, fetch, load, registry
from sfumato.errors import InvalidInput
from sfumato.randomness import public_generator
from sfumato_lab.drawings import skeletons, strokes
from sfumato_lab.drawings.skeletons import ALL_STYLES, RARER


@pytest.fixture(scope="module")
def drawn():
    return strokes.draw(3000, seed=7)


def centres_of_mass(images):
    """(images, 2): row and column, a pixel's place being its middle."""
    places = np.arange(28) + 0.5
    levels = images.astype(float)
    mass = levels.sum(axis=(1, 2))
    return np.stack([levels.sum(axis=2) @ places / mass, levels.sum(axis=1) @ places / mass], axis=1)


def extents(images):
    """(images, 2): height and width of what is not black."""
    ink = images > 0
    sides = []
    for axis in (2, 1):
        lit = ink.any(axis=axis)
        sides.append(28 - lit.argmax(axis=1) - lit[:, ::-1].argmax(axis=1))
    return np.stack(sides, axis=1)


def test_images_are_bytes_from_black_to_white(drawn):
    images, labels = drawn
    assert (images.shape, images.dtype) == ((3000, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((3000,), np.int64)
    assert (images.min(), images.max()) == (0, 255)
    assert images.max(axis=(1, 2)).min() > 127  # no empty page


@pytest.mark.parametrize("count", [1, 9, 10, 25, 3000])
def test_all_digits_are_equally_many(count):
    _, labels = strokes.draw(count, seed=3)
    counts = np.bincount(labels, minlength=10)
    assert counts.sum() == count
    assert counts.max() - counts.min() <= 1


def test_the_seed_decides_everything(drawn):
    again, labels = strokes.draw(3000, seed=7)
    np.testing.assert_array_equal(again, drawn[0])
    np.testing.assert_array_equal(labels, drawn[1])
    other, _ = strokes.draw(3000, seed=8)
    assert (other != again).any(axis=(1, 2)).all()


def test_threads_do_not_change_the_picture(drawn, monkeypatch):
    monkeypatch.setattr(strokes, "_THREADS", 1)
    alone, _ = strokes.draw(3000, seed=7)
    np.testing.assert_array_equal(alone, drawn[0])


def test_no_drawing_occurs_twice(drawn):
    assert len({image.tobytes() for image in drawn[0]}) == 3000


def test_digits_fill_a_box_of_20_with_their_proportions_kept(drawn):
    sides = extents(drawn[0])
    assert sides.max() == 20
    # The larger side fills the box; a faint or rough edge may leave its last row black.
    assert (sides.max(axis=1) >= 18).mean() > 0.99
    assert sides.min() < 10  # ones stay slim


def test_the_centre_of_mass_is_at_the_centre(drawn):
    # Whole pixels: half a pixel away at most, and as much again where rounding to bytes and the box allow.
    assert np.abs(centres_of_mass(drawn[0]) - 14).max() <= 1


def test_the_pen_is_as_wide_as_in_the_published_mean_and_deviation(drawn):
    # MNIST's mean pixel .1307 and deviation .3081 are in every tutorial.
    levels = drawn[0] / 255
    assert levels.mean() == pytest.approx(0.1307, abs=0.006)
    assert levels.std() == pytest.approx(0.3081, abs=0.008)


def test_a_steady_hand_draws_the_skeleton():
    steady = strokes.Hand(
        **dict.fromkeys(strokes.Hand.__dataclass_fields__, 0.0) | {"pose_concentration": 1e6, "pen": 0.05}
    )
    images, labels = strokes.draw(400, seed=1, hand=steady)
    ones = images[labels == 1]
    assert len({image.tobytes() for image in ones}) < len(
        ones
    )  # only styles, and traces of the mixture, differ
    upright = ones[extents(ones)[:, 1] < 8]
    assert len(upright) > 0


def test_a_negative_amount_is_refused():
    with pytest.raises(InvalidInput, match=r"expected shake >= 0, got shake=-0\.1"):
        strokes.Hand(shake=-0.1)
    with pytest.raises(InvalidInput, match="count"):
        strokes.draw(0, seed=1)


@pytest.mark.parametrize("index", range(len(ALL_STYLES)))
def test_a_line_passes_through_the_points_of_its_style(index):
    style = ALL_STYLES[index]
    for pose in style.poses:
        line = strokes._curve(index) @ pose.astype(np.float32)
        used = sorted({point for stroke in style.strokes for point in stroke})
        assert used == list(range(len(pose)))
        gaps = np.linalg.norm(line[:, None] - pose[None], axis=2).min(axis=0)
        assert gaps.max() < 1e-5


def test_every_sample_is_a_weighted_mean_of_points():
    # Shares that sum to one: moving the page moves the line with it.
    for index in range(len(ALL_STYLES)):
        np.testing.assert_allclose(strokes._curve(index).sum(axis=1), 1.0, atol=1e-5)


def test_each_digit_has_styles_whose_weights_are_a_distribution():
    for digit in range(10):
        weights = [style.weight for style in skeletons.STYLES if style.digit == digit]
        assert len(weights) >= 2
        assert sum(weights) == pytest.approx(1.0)


def test_rarer_ways_are_drawn_only_if_asked_for_and_are_the_smaller_part():
    common, all_ways = (strokes.draw_styles(2000, seed=5, rarer=rarer)[2] for rarer in (False, True))
    assert common.max() < len(skeletons.STYLES)
    assert set(all_ways[all_ways >= len(skeletons.STYLES)]) == set(
        range(len(skeletons.STYLES), len(ALL_STYLES))
    )
    for digit in range(10):
        assert sum(style.weight for style in RARER if style.digit == digit) < 1.0


def test_the_depth_inside_a_straight_line_is_the_distance_to_its_edge():
    # A vertical line of radius 2 through x = 10, denser than a pixel: depth is 2 − |x − 10| beside it.
    points = np.zeros((1, strokes._SAMPLES, 2), dtype=np.float32)
    points[0, :, 0], points[0, :, 1] = 10.0, np.linspace(-5, 25, strokes._SAMPLES)
    radius = np.full((1, strokes._SAMPLES), 2.0, dtype=np.float32)
    depth = strokes._depth(points, radius)[..., 0]
    expected = 2.0 - np.abs(np.arange(20) + 0.5 - 10.0)
    np.testing.assert_allclose(depth, np.broadcast_to(expected, (20, 20)), atol=0.04)


def test_centring_moves_a_box_by_whole_pixels():
    boxes = public_generator(5).random((50, 20, 20)).astype(np.float32)
    images = strokes.centre(boxes)
    for box, image in zip(boxes, images, strict=True):
        rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
        window = image[rows[0] : rows[0] + 20, columns[0] : columns[0] + 20]
        np.testing.assert_array_equal(window, np.rint(255 * box))


def test_the_data_set_of_drawings_is_public_in_both_splits(monkeypatch):
    monkeypatch.setattr(registry, "_DRAWN_SIZES", {"train": 60, "test": 40})
    train, test = load("strokes", "train"), load("strokes", "test")
    assert (train.visibility, test.visibility) == ("public", "public")
    assert (len(train), len(test), train.shape) == (60, 40, (1, 28, 28))
    rows = {row.tobytes() for row in train.inputs}
    assert not rows & {row.tobytes() for row in test.inputs}
    assert (DATASETS["strokes"].public_size["train"], fetch("strokes")) == (60_000, ())


def test_each_net_of_a_prior_has_its_share_of_the_drawings():
    images, labels = draw("strokes-together", 32, seed=3)
    parts = [
        draw(net, count, seed=3) for net, count in (("strokes", 11), ("strokes-wide", 11), ("strokes-rare", 10))
    ]
    np.testing.assert_array_equal(images, np.concatenate([part for part, _ in parts]))
    np.testing.assert_array_equal(labels, np.concatenate([part for _, part in parts]))
    assert 0 <= images.min() <= images.max() <= 1


def test_drawings_that_no_one_registered_are_refused():
    with pytest.raises(InvalidInput, match="landscapes"):
        draw("faces", 10, seed=1)
