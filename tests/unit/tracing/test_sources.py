"""What a positive test says of the days before it, against listing every course of an infection."""

from itertools import pairwise, product

import numpy as np
import pytest

from sfumato.tracing.disease import Disease, TestKit
from sfumato.tracing.sources import _QUIET, found_positive

DISEASE = Disease(window=3, onset=0.4, recovery=0.2, transmission=0.05, background=1e-3)


def chances(disease, kit, exposed, days):
    """P(positive test after yesterday) and P(infectious on each day, positive), by listing all courses."""
    g, h = disease.onset, disease.recovery
    start = dict(zip("SEIR", disease.start(), strict=True))
    infected = [1 - (1 - disease.background) * np.exp(-each) for each in exposed]
    total, by_day = 0.0, np.zeros(days)
    for course in product("SEIR", repeat=len(exposed) + 1):
        weight = start[course[0]]
        for day, (now, then) in enumerate(pairwise(course)):
            step = {"SS": 1 - infected[day], "SE": infected[day], "EE": 1 - g, "EI": g, "II": 1 - h, "IR": h}
            weight *= step.get(now + then, float(now + then == "RR"))
        positive = 1 - kit.false_negative_rate if course[-2] == "I" else kit.false_positive_rate
        total += weight * positive
        by_day += weight * positive * (np.array(course[-days - 1 : -1]) == "I")
    return total, by_day


def test_days_before_a_positive_test_are_weighed_as_listing_all_courses_does():
    kit, days = TestKit(), DISEASE.window
    found = found_positive(DISEASE, kit)
    quiet = [_QUIET] * (2 * days)  # a window before the window
    total, by_day = chances(DISEASE, kit, quiet, days)
    assert found.infectious == pytest.approx(by_day / total)
    for day in range(days):
        struck = [*quiet]
        struck[days + day] = 50.0
        assert found.infected[day] == pytest.approx(chances(DISEASE, kit, struck, days)[0] / total - 1)


def test_whoever_was_infected_long_ago_or_just_now_is_a_less_likely_case():
    infected = found_positive(Disease(), TestKit()).infected
    assert infected[-1] == pytest.approx(0, abs=1e-12)  # today is after the test
    assert infected[-2] == pytest.approx(0, abs=1e-6)  # nobody is infectious on the day after
    assert 0 < infected[0] < infected.max()
