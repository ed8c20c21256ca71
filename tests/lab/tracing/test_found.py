"""What a positive result says of the days before it, against listing every course of an infection."""

from itertools import pairwise, product

import numpy as np
import pytest

from sfumato_lab.tracing.disease import Disease, TestKit
from sfumato_lab.tracing.found import _QUIET, infectious_before

DISEASE = Disease(window=3, onset=0.4, recovery=0.2, transmission=0.05, background=1e-3)


def chances(disease, kit, exposed, days, tests):
    """P(so many positive tests after yesterday), and P(infectious on each day, so tested), by listing all."""
    g, h = disease.onset, disease.recovery
    start = dict(zip("SEIR", disease.start(), strict=True))
    infected = [1 - (1 - disease.background) * np.exp(-each) for each in exposed]
    total, by_day = 0.0, np.zeros(days)
    for course in product("SEIR", repeat=len(exposed) + 1):
        weight = start[course[0]]
        for day, (now, then) in enumerate(pairwise(course)):
            step = {"SS": 1 - infected[day], "SE": infected[day], "EE": 1 - g, "EI": g, "II": 1 - h, "IR": h}
            weight *= step.get(now + then, float(now + then == "RR"))
        positive = (1 - kit.false_negative_rate if course[-2] == "I" else kit.false_positive_rate) ** tests
        total += weight * positive
        by_day += weight * positive * (np.array(course[-days - 1 : -1]) == "I")
    return total, by_day


@pytest.mark.parametrize(("confirm", "tests"), [(False, 1), (True, 2)])
def test_days_before_a_positive_result_are_weighed_as_listing_all_courses_does(confirm, tests):
    kit, days = TestKit(confirm=confirm), DISEASE.window
    quiet = [_QUIET] * (2 * days)  # a window before the window
    total, by_day = chances(DISEASE, kit, quiet, days, tests)
    assert infectious_before(DISEASE, kit) == pytest.approx(by_day / total)


def test_two_positive_tests_are_all_but_sure():
    kits = [TestKit(confirm=confirm) for confirm in (False, True)]
    when_tested = [infectious_before(Disease(background=1e-5), kit)[-1] for kit in kits]
    assert when_tested[0] < 0.9 < 0.99 < when_tested[1]
