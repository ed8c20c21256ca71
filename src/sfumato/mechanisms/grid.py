"""Whole numbers on a power-of-two grid: the ground on which noise is added.

Floating-point noise leaks its input through which doubles can come out (Mironov 2012, "On significance of
the least significant bits for differential privacy"). Here a value is first rounded to a grid
fixed in advance, the noise is a whole number, and their sum is exact: the output lies on the same grid
for all data. Multiplying by a power of two is exact, so going to the grid rounds once, coming back at
most once, and that is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LIMIT = 2**62  # grid steps; leaves room for the noise below the 2⁶³ of an int64
_LARGEST_EXPONENT = 120  # of a grid, either way: its values then fit a float32
_BLOCK = 1 << 15  # values at a time: 256 KiB of doubles, inside a core's cache


def power_of_two_below(value: float) -> float:
    """Return the largest power of two that is at most `value`.

    >>> power_of_two_below(0.3), power_of_two_below(0.25)
    (0.25, 0.25)
    """
    return math.ldexp(1.0, math.frexp(_validate.positive("value", value))[1] - 1)


def check_grid(grid: float) -> float:
    """Return the grid, if it is a power of two within reach of a float32."""
    mantissa, exponent = math.frexp(_validate.positive("grid", grid))
    if mantissa != 0.5 or abs(exponent) > _LARGEST_EXPONENT:
        raise InvalidInput(
            f"expected grid to be a power of two between 2**-{_LARGEST_EXPONENT} and 2**{_LARGEST_EXPONENT},"
            f" got grid={grid!r}; take one from vector_grid, or rescale the values"
        )
    return grid


def vector_grid(clip_norm: float, dimension: int) -> float:
    """Return the grid for vectors of norm at most C: the largest power of two with grid·√d ≤ 2⁻¹⁰·C.

    Args:
        clip_norm: C, the bound of the vectors.
        dimension: The number of coordinates.

    >>> vector_grid(1.0, 1 << 20) == 2.0**-20
    True
    """
    clip_norm = _validate.positive("clip_norm", clip_norm)
    dimension = _validate.integer("dimension", dimension, least=1)
    return check_grid(power_of_two_below(clip_norm * 2.0**-10 / math.sqrt(dimension)))


def to_grid(values: npt.ArrayLike, grid: float) -> Integers:
    """⌊values / grid + ½⌋, exactly.

    *Guarantees*: |to_grid(x) − to_grid(y)| ≤ ⌈|x − y| / grid⌉ (halves always go up, so a shift by whole grid
    steps stays one). NaN, infinities and values beyond 2⁶² steps are refused; the message shows no value.

    Returns:
        Whole grid steps, of the same shape.

    Raises:
        InvalidInput: If a value is NaN, infinite or too large.

    >>> to_grid([0.26, 0.25, -0.25], 0.5).tolist()
    [1, 1, 0]
    """
    array = np.asarray(values)
    whole = np.zeros(array.shape, dtype=np.int64)
    add_to_grid(whole, array, grid)
    return whole


def add_to_grid(sums: Integers, values: npt.NDArray[Any], grid: float) -> None:
    """sums += to_grid(values, grid), in place and without large temporaries.

    An int64 that overflows wraps around, which is post-processing too: it spoils the answer, not its privacy.

    Args:
        sums: Whole grid steps, changed in place.

    Raises:
        InvalidInput: If a value is NaN or infinite.

    >>> sums = np.zeros(2, np.int64)
    >>> add_to_grid(sums, np.array([1.0, -0.5]), 0.25)
    >>> sums.tolist()
    [4, -2]
    """
    check_grid(grid)
    check_values(values, grid)
    if sums.shape != values.shape or sums.dtype != np.int64 or not sums.flags.c_contiguous:
        raise InvalidInput(
            f"expected sums to be a contiguous int64 array of shape {values.shape},"
            f" got {sums.dtype} of shape {sums.shape}; make it with numpy.zeros(shape, dtype=numpy.int64)"
        )
    flat_sums, flat_values = sums.reshape(-1), values.reshape(-1)
    buffer = np.empty(min(_BLOCK, flat_sums.size))
    for start in range(0, flat_sums.size, _BLOCK):
        block = flat_sums[start : start + _BLOCK]
        block += _round_half_up(flat_values[start : start + _BLOCK], grid, buffer[: block.size])


def from_grid(whole: Integers, grid: float) -> Floats:
    """whole · grid, as doubles: exact below 2⁵³ steps, rounded once above.

    Returns:
        The values.

    >>> from_grid(to_grid([1.0, -2.5], 0.25), 0.25).tolist()
    [1.0, -2.5]
    """
    return whole.astype(np.float64) * check_grid(grid)


def scalar_grid(sensitivity: float, spread: float) -> float:
    """Return the grid for a few values: `spread` grid steps of rounding stay below 2⁻²⁰ of the sensitivity."""
    return check_grid(power_of_two_below(sensitivity * 2.0**-20 / spread))


def sensitivity_on_grid(sensitivity: float, grid: float, spread: float) -> float:
    """Return the sensitivity once both neighbours are rounded: Δ + spread·grid.

    `spread` is the norm of (1, …, 1): d in L1, √d in L2, 1 in L∞. With one value whole steps stay whole:
    ⌈Δ/grid⌉·grid.
    """
    if spread == 1.0:
        return math.ceil(sensitivity / grid) * grid
    return sensitivity + spread * grid


def check_noise(name: str, noise: float, sensitivity: float, grid: float) -> float:
    """Refuse noise so small that it hides nothing, or so large that whole numbers overflow."""
    _validate.positive(name, noise)
    least, most = sensitivity * 2.0**-12, grid * 2.0**52
    if not least <= noise <= most:
        raise InvalidInput(
            f"expected {name} between {least:g} and {most:g} for sensitivity={sensitivity!r},"
            f" got {name}={noise!r}; noise is in the units of the sensitivity"
        )
    return noise


@overload
def add_noise(values: float, grid: float, dimension: int, draw: Callable[[int], Integers]) -> float: ...
@overload
def add_noise(
    values: npt.NDArray[Any], grid: float, dimension: int, draw: Callable[[int], Integers]
) -> Floats: ...
def add_noise(
    values: float | npt.NDArray[Any], grid: float, dimension: int, draw: Callable[[int], Integers]
) -> float | Floats:
    """values + grid·draw(dimension) on the grid; everything is checked before `draw` is called."""
    array = np.asarray(values)
    check_dimension(array, dimension)
    whole = to_grid(array, grid)
    noisy = from_grid(whole + draw(dimension).reshape(whole.shape), grid)
    return float(noisy) if noisy.ndim == 0 else noisy


def check_dimension(array: npt.NDArray[Any], dimension: int) -> None:
    if array.size != dimension:
        raise InvalidInput(
            f"expected as many values as dimension={dimension}, got {array.size};"
            " the number of values is public and part of the mechanism"
        )


def check_whole_numbers(name: str, values: npt.ArrayLike) -> Integers:
    """Return the values as int64, if they are integers that leave room for noise; errors show none of them."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or not _within(array, LIMIT):
        raise InvalidInput(
            f"expected {name} to be whole numbers below 2**62 in size, got {array.dtype} or larger ones;"
            " round and clip them to declared bounds first"
        )
    return array.astype(np.int64, copy=False)


def check_values(values: npt.NDArray[Any], grid: float, *, steps: int = LIMIT) -> None:
    """Refuse values that are not finite or lie beyond so many grid steps; the message shows no value."""
    if values.dtype.kind not in "fiu":
        raise InvalidInput(f"expected values to be real numbers, got values of type {values.dtype}")
    if not _within(values, steps * grid):
        raise InvalidInput(
            f"expected values to be finite and below {steps * grid:g} in size, got some that are not;"
            " clip them to declared bounds first"
        )


def _within(values: npt.NDArray[Any], limit: float) -> bool:
    # Written so that NaN, which compares as false with everything, is outside.
    flat = values.reshape(-1)
    blocks = (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
    return all(bool(-limit < block.min() and block.max() < limit) for block in blocks)


def _round_half_up(values: npt.NDArray[Any], grid: float, buffer: Floats) -> Integers:
    # ⌊t + ½⌋ = ⌊(⌊2t⌋ + 1) / 2⌋: in this form no step rounds, where t + ½ in doubles would.
    np.multiply(values, 2.0 / grid, out=buffer, dtype=np.float64)
    np.floor(buffer, out=buffer)
    whole = buffer.astype(np.int64)
    whole += 1
    whole >>= 1
    return whole
