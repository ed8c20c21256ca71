"""Scores → what is still to be learned of each row, in whole numbers.

One unit is 2⁻¹⁶. Scores come in whole numbers and residuals leave in whole numbers; logarithms and exponentials
are looked up in public tables, since a vectorised `exp` may round a row's value by the row's place in memory,
that is, by who else is there. What remains (sums, products, quotients, square roots) IEEE 754 rounds in one
way.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BITS = 16
ONE = 1 << BITS
_STEP = 8  # bits of a score that the tables pass over
_REACH = 16 << (BITS - _STEP)  # scores beyond ±16 count as ±16


def residuals(scores: Integers, target: Floats, *, classes: int | None) -> Integers:
    """(rows, outputs) of target − prediction, each row by itself and each at most 1 in size.

    `scores` are (rows, outputs) in 2⁻¹⁶; `target` is the number of a class, or a number within ±1.
    """
    if classes is None:
        wanted = np.rint(target * ONE).astype(np.int64)[:, None]
        return np.clip(wanted - scores, -ONE, ONE)
    if classes == 2:
        return (target[:, None] * ONE).astype(np.int64) - _sigmoid()[_steps(scores) + _REACH]
    wanted = (target[:, None] == np.arange(classes)) * ONE
    return wanted - (ONE * shares(scores)).astype(np.int64)


def shares(scores: Integers) -> Floats:
    """Softmax, added up class by class."""
    weights = _exponential()[_steps(scores - scores.max(axis=1, keepdims=True)) + _REACH]
    total = weights[:, 0].copy()
    for place in range(1, weights.shape[1]):
        total += weights[:, place]
    return weights / total[:, None]


def clipped(found: Integers, limit: Floats | float) -> Integers:
    """Each row scaled down to an L2 norm of at most `limit` (in units of 1), never up.

    The product is rounded toward zero, and the limit taken as smaller by 2⁻⁴⁰ of it, which is more than the
    roundings of norm, quotient and product together.
    """
    squares = np.zeros(len(found))
    for place in range(found.shape[1]):
        squares += found[:, place].astype(np.float64) ** 2  # exact: below 2⁵³
    norms = np.sqrt(squares)
    factor = np.minimum(1.0, (1 - 2.0**-40) * ONE * limit / np.maximum(norms, 1.0))
    return np.trunc(found * factor[:, None]).astype(np.int64)


def _steps(scores: Integers) -> Integers:
    return np.clip(scores >> _STEP, -_REACH, _REACH)


@lru_cache(maxsize=1)
def _sigmoid() -> Integers:
    scores = np.arange(-_REACH, _REACH + 1) / (1 << (BITS - _STEP))
    return np.rint(ONE / (1 + np.exp(-scores))).astype(np.int64)


@lru_cache(maxsize=1)
def _exponential() -> Floats:
    return np.exp(np.minimum(np.arange(-_REACH, _REACH + 1), 0) / (1 << (BITS - _STEP)))
