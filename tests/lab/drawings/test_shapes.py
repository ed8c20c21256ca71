"""Drawn shapes: reproducible, balanced, filled exactly where the outline says."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.errors import InvalidInput
from sfumato_lab.drawings import shapes
from sfumato_lab.drawings import shapes as outlines


@pytest.fixture(scope="module")
def drawn():
    return shapes.draw(1700, seed=7)


def test_images_are_bytes_and_none_is_empty(drawn):
    images, labels = drawn
    assert (images.shape, images.dtype) == ((1700, 28, 28), np.uint8)
    assert labels.dtype == np.int64
    assert ((images > 0).mean(axis=(1, 2)) > 0.05).all()


def test_all_kinds_are_equally_many(drawn):
    assert np.bincount(drawn[1]).tolist() == [100] * shapes.CLASSES


def test_the_seed_decides_everything(drawn):
    again, labels = shapes.draw(1700, seed=7)
    np.testing.assert_array_equal(again, drawn[0])
    np.testing.assert_array_equal(labels, drawn[1])
    other, _ = shapes.draw(1700, seed=8)
    assert (other != again).any(axis=(1, 2)).all()


def test_the_longer_side_fills_the_image(drawn):
    ink = drawn[0] > 0
    height, width = ink.any(axis=2).sum(axis=1), ink.any(axis=1).sum(axis=1)
    assert (np.maximum(height, width) >= 27).mean() > 0.99


def loop(*corners):
    """Both ends of each edge of one closed loop, one shape."""
    starts = np.array([corners], dtype=np.float32)
    return starts, np.roll(starts, -1, axis=1)


def test_a_rectangle_covers_its_pixels_and_halves_of_those_it_cuts():
    coverage = shapes._fill(*loop((4.5, 3), (4.5, 10), (9, 10), (9, 3)))[0]
    expected = np.zeros((28, 28))
    expected[3:10, 5:9] = 1.0
    expected[3:10, 4] = 0.5
    np.testing.assert_allclose(coverage, expected, atol=1e-6)


@pytest.mark.parametrize("corners", [((2, 2), (25, 4), (9, 26)), ((9, 26), (25, 4), (2, 2))])
def test_the_area_of_a_triangle_does_not_depend_on_its_sense(corners):
    (ax, ay), (bx, by), (cx, cy) = corners
    area = abs((bx - ax) * (cy - ay) - (cx - ax) * (by - ay)) / 2
    assert shapes._fill(*loop(*corners)).sum() == pytest.approx(area, rel=0.01)


def test_a_loop_the_other_way_round_is_a_hole():
    outer, inner = loop((4, 4), (24, 4), (24, 24), (4, 24)), loop((10, 10), (10, 18), (18, 18), (18, 10))
    starts, ends = (np.concatenate([a, b], axis=1) for a, b in zip(outer, inner, strict=True))
    coverage = shapes._fill(starts, ends)[0]
    assert coverage.sum() == pytest.approx(20 * 20 - 8 * 8)
    assert coverage[14, 14] == 0


@pytest.mark.parametrize("kind", outlines.KINDS, ids=lambda kind: kind.name)
def test_an_outline_visits_its_corners_and_closes_its_loops(kind):
    matrix, following = shapes._polygon(kind)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-6)
    assert sorted(following.tolist()) == list(range(len(matrix)))  # each vertex follows exactly one
    vertices = matrix @ kind.poses[0].astype(np.float32)
    gaps = np.linalg.norm(vertices[:, None] - kind.poses[0][None], axis=2).min(axis=0)
    assert gaps.max() < 1e-6
    loops, seen = 0, set()
    for first in range(len(matrix)):
        loops += first not in seen
        while first not in seen:
            seen.add(first)
            first = int(following[first])
    assert loops == len(kind.loops)


@pytest.mark.parametrize(
    "kind", [kind for kind in outlines.KINDS if len(kind.loops) > 1], ids=lambda kind: kind.name
)
def test_holes_run_against_their_outlines(kind):
    for pose in kind.poses:
        parts = np.split(pose, np.cumsum(kind.loops)[:-1])
        areas = []
        for part in parts:
            x, y = part.T
            areas.append(0.5 * float(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))))
        assert all(areas[0] * area < 0 for area in areas[1:])


def test_the_clothes_are_in_the_published_order_of_labels():
    names = [kind.name for kind in outlines.KINDS[:10]]
    published = "t-shirt trouser pullover dress coat sandal shirt sneaker bag"  # Xiao, Rasul and Vollgraf 2017
    assert names == [*published.split(), "ankle boot"]


def test_no_shapes_are_refused():
    with pytest.raises(InvalidInput, match="count"):
        shapes.draw(0, seed=1)
