"""Numbers reported one by one: exact noise, so that δ is 0 as the certificate says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.local import LaplaceVector
from sfumato.randomness import SecretStream

DRAWS = 60_000
FALSE_ALARM = 1e-6


class Tape(SecretStream):
    """Whole numbers chosen by the test in the place of noise; no draw in doubles may be asked for."""

    def __init__(self, draws):
        super().__init__()
        self.draws = draws

    def discrete_laplace(self, scale, size):
        return np.asarray(self.draws[:size], dtype=np.int64)

    def laplace(self, size):
        raise AssertionError("noise in doubles cannot reach every whole number with the right chance")


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0, 100.0), (-3.1, 7.7), (1e9, 1e9 + 1.0)])
def test_both_neighbours_can_give_every_report(bounds):
    """A report of one end is a report of the other end with noise moved by S steps at most: a ratio of e^ε."""
    low, high = bounds
    vector = LaplaceVector(dimension=1, epsilon=1.0, lower=low, upper=high)
    noise = np.arange(-5, 6) * (vector.span // 3) + 1
    one = vector.release(np.full((11, 1), low), Tape(noise))
    other = vector.release(np.full((11, 1), high), Tape(noise - vector.span))
    assert (one == other).all()
    # Worst log ratio over all reports: max_z (|z − S| − |z|)/scale = S/scale.
    assert vector.span / vector.scale_in_steps <= 1.0
    assert vector.span / vector.scale_in_steps > 1.0 - 1e-12
    assert vector.span * vector.grid <= (high - low) * (1 + 2.0**-19)


def test_no_value_within_the_bounds_moves_further_than_the_span():
    vector = LaplaceVector(dimension=1, epsilon=1.0, lower=-3.1, upper=7.7)
    inside = np.concatenate([np.linspace(-3.1, 7.7, 10_001), np.nextafter([-3.1, 7.7], [0, 0])])
    steps = vector.release(inside[:, None], Tape(np.zeros(inside.size)))[:, 0] / vector.grid
    assert steps.max() - steps.min() == vector.span


def test_reports_far_in_the_tail_are_as_likely_as_they_should_be():
    """Of |noise| / scale, exponential: counts beyond 1, 2, …, 8 scales, each within its binomial range."""
    vector = LaplaceVector(dimension=1, epsilon=2.0)
    noise = vector.release(np.full((DRAWS, 1), 0.5), SecretStream())[:, 0] - 0.5
    for far in range(1, 9):
        least, most = stats.binom.ppf(
            [FALSE_ALARM / 16, 1 - FALSE_ALARM / 16], DRAWS, math.exp(-far)
        )  # two sides, eight counts
        assert least <= np.count_nonzero(np.abs(noise) > far * vector.scale) <= most
