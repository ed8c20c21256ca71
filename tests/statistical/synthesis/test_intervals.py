"""The 95% intervals of a fidelity report hold for cells that were merged, too.

False alarms: the share of RUNS in which the interval holds the truth is allowed Z = 4.9 standard errors
below 95%, which is below 1e-6. One and the same noise for all buckets must fail.
"""

from __future__ import annotations

import math

import numpy as np

from sfumato.randomness import public_generator
from sfumato.synthesis import CellColumn
from sfumato.synthesis.cells import Buckets, merged

RUNS, Z, SIGMA = 2000, 4.9, 10.0
COLUMN = CellColumn(name="c", type="integer", values=tuple(range(43)))
TRUE = np.array([400.0, 400.0, 400.0, *[0.0] * 41])  # forty values that nobody has, and missing values


def held(equal: bool) -> float:
    """How often the interval of the bucket of rare values holds what is truly in it, which is nobody."""
    draw, right = public_generator(4), 0
    for _ in range(RUNS):
        noisy = TRUE + SIGMA * draw.standard_normal(len(TRUE))
        bucket: Buckets = merged(COLUMN, noisy, SIGMA)
        place = int(np.argmax(np.bincount(bucket.place)))
        mean = bucket.mean_spread(SIGMA)
        half = 1.96 * (mean if equal else bucket.spread(mean)[place])
        right += abs(bucket.counts(noisy)[place]) <= half
    return right / RUNS


def test_intervals_hold_as_often_as_they_say():
    # A value above three deviations leaves the bucket, which takes a little off the top of its sum.
    assert held(equal=False) > 0.95 - Z * math.sqrt(0.95 * 0.05 / RUNS)


def test_one_noise_for_all_buckets_is_found_out():
    assert held(equal=True) < 0.95 - Z * math.sqrt(0.95 * 0.05 / RUNS)
