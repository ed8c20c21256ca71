"""The grid, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidInput
from sfumato.mechanisms import GridGaussian, add_to_grid, from_grid, to_grid, vector_grid
from sfumato.randomness import public_generator

GRID = 2.0**-10
reals = st.floats(-(2.0**50), 2.0**50)  # 2⁶⁰ steps


def exactly(value: float) -> int:
    return math.floor(Fraction(value) / Fraction(GRID) + Fraction(1, 2))


@settings(deadline=None)
@given(reals)
def test_rounding_is_exact(value: float) -> None:
    assert int(to_grid(value, GRID)) == exactly(value)


@pytest.mark.parametrize(
    "steps", [0.5, -0.5, 1.5, 2.5, 0.49999999999999994, -0.49999999999999994, 2.0**52 + 0.5]
)
def test_halves_go_up(steps: float) -> None:
    # 0.49999999999999994 + 0.5 is 1.0 in doubles, and numpy.rint sends 0.5 and 1.5 two steps apart.
    assert int(to_grid(steps * GRID, GRID)) == exactly(steps * GRID)


@settings(deadline=None)
@given(reals, reals)
def test_rounding_moves_neighbours_no_further_apart_than_whole_steps(one: float, other: float) -> None:
    apart = abs(int(to_grid(one, GRID)) - int(to_grid(other, GRID)))
    assert apart <= math.ceil(abs(Fraction(one) - Fraction(other)) / Fraction(GRID))


@settings(deadline=None)
@given(st.integers(-(2**53), 2**53))
def test_there_and_back(steps: int) -> None:
    assert int(to_grid(from_grid(np.array([steps]), GRID), GRID)[0]) == steps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 32_768, 40_001])
def test_sums_add_up_in_blocks(dtype: type[np.floating], size: int) -> None:
    values = public_generator(0).standard_normal(size).astype(dtype)
    sums = np.arange(size)
    add_to_grid(sums, values, GRID)
    np.testing.assert_array_equal(sums, np.arange(size) + [exactly(float(value)) for value in values])


def test_matrices_keep_their_shape() -> None:
    values = np.arange(6.0).reshape(2, 3)
    assert to_grid(values, 0.5).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert to_grid(values.T, 0.5).tolist() == [[0, 6], [2, 8], [4, 10]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**52, -(2.0**52), 1e308])
def test_what_does_not_fit_is_refused_and_not_shown(bad: float) -> None:
    sums = np.zeros(3, dtype=np.int64)
    with pytest.raises(InvalidInput, match="clip them") as refusal:
        add_to_grid(sums, np.array([1.0, bad, 2.0]), GRID)
    assert repr(bad) not in str(refusal.value)
    assert not sums.any()


@pytest.mark.parametrize(
    "sums", [np.zeros(2), np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int32), np.zeros(4, dtype=int)[::2]]
)
def test_sums_of_another_kind_are_refused(sums: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="int64"):
        add_to_grid(sums, np.ones(2), GRID)


@pytest.mark.parametrize("grid", [0.3, 0.0, -0.5, math.nan, math.inf, 2.0**-200, 2.0**130])
def test_a_grid_is_a_power_of_two(grid: float) -> None:
    for use in (lambda: to_grid(1.0, grid), lambda: from_grid(np.array([1]), grid)):
        with pytest.raises(InvalidInput, match="grid"):
            use()


@settings(deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(1, 10**9))
def test_the_grid_of_a_vector(clip_norm: float, dimension: int) -> None:
    grid = vector_grid(clip_norm, dimension)
    assert math.frexp(grid)[0] == 0.5
    share = grid * math.sqrt(dimension) / clip_norm
    assert 2.0**-11 * (1 - 1e-12) < share <= 2.0**-10 * (1 + 1e-12)


@settings(deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 100), st.integers(0, 2**32))
def test_the_declared_sensitivity_covers_rounding(dimension: int, clip_norm: float, seed: int) -> None:
    mechanism = GridGaussian(clip_norm=clip_norm, dimension=dimension, noise_multiplier=1.0, float_error=1e-12)
    generator = public_generator(seed)
    others, one = generator.standard_normal((2, dimension)) * 100 * clip_norm
    one *= clip_norm / np.linalg.norm(one)
    moved = to_grid(others + one, mechanism.grid) - to_grid(others, mechanism.grid)
    assert np.linalg.norm(moved.astype(float)) * mechanism.grid <= mechanism.sensitivity
    assert mechanism.sensitivity <= clip_norm * (1 + 2.0**-10 + 1e-11)


def test_wrapping_sums_come_back() -> None:
    """An overflow is undone by what undoes the sum: whole numbers modulo 2⁶⁴ lose no privacy."""
    sums = np.full(1, 2**62, dtype=np.int64)
    for value in (2.0**61, 2.0**61, 2.0**61, -(2.0**61), -(2.0**61), -(2.0**61)):
        add_to_grid(sums, np.array([value]), 1.0)
    assert sums[0] == 2**62
