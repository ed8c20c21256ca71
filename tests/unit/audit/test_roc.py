"""ROC, area and rates against counts by hand and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.audit import Roc, at_false_positive_rate, auc, draw_roc, operating_point
from sfumato.audit.roc import greatest_true_positive_rates
from sfumato.randomness import public_generator


def test_curve_by_hand():
    curve = Roc.of(present=[3.0, 2.0, 1.0], absent=[2.0, 0.0])
    assert curve.false_positive_rates.tolist() == pytest.approx([0, 0, 0.5, 0.5, 1])
    assert curve.true_positive_rates.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    assert curve.best_accuracy() == pytest.approx(0.75)


def test_area_counts_pairs():
    draw = public_generator(1)
    present, absent = draw.integers(0, 6, 40), draw.integers(0, 5, 30)
    pairs = np.mean([(p > a) + 0.5 * (p == a) for p in present for a in absent])
    assert auc(present, absent).value == pytest.approx(pairs)


def test_area_interval_covers():
    """Normal scores one apart have area Φ(1/√2); 95% intervals miss more than 30 of 200 with chance < 1e-6."""
    draw, truth = public_generator(2), stats.norm.cdf(1 / math.sqrt(2))
    missed = 0
    for _ in range(200):
        low, high = auc(draw.normal(1, 1, 100), draw.normal(0, 1, 80)).interval
        missed += not low <= truth <= high
    assert missed <= 30


def test_rates_at_a_threshold():
    point = operating_point([1, 2, 3, 4], [0, 0, 0, 3], 2.5)
    assert point.true_positive_rate.value == point.recall.value == 0.5
    assert point.false_positive_rate.value == 0.25
    assert point.precision.value == pytest.approx(2 / 3)
    assert point.precision.interval.lower < 2 / 3 < point.precision.interval.upper


def test_nobody_accused_has_no_precision():
    point = operating_point([1, 2], [0, 0], 5)
    assert math.isnan(point.precision.value)
    assert point.precision.interval == (0, 1)


def test_low_false_positive_rate():
    """Normal scores three apart: TPR at .1% FPR is Φ(3 − 3.09) = .464; five deviations are within .2."""
    draw = public_generator(3)
    point = at_false_positive_rate(draw.normal(3, 1, 5000), draw.normal(0, 1, 40000), 1e-3)
    assert point.true_positive_rate.value == pytest.approx(stats.norm.cdf(3 - stats.norm.isf(1e-3)), abs=0.2)
    assert point.false_positive_rate.value < 4e-3


def test_most_that_dp_leaves():
    rates = np.array([0.0, 0.01, 0.5, 1.0])
    most = greatest_true_positive_rates(rates, math.log(3), 0.0)
    assert most.tolist() == pytest.approx([0, 0.03, 1 - 0.5 / 3, 1])


def test_figure_is_drawn(tmp_path):
    draw = public_generator(4)
    curve = Roc.of(draw.normal(1, 1, 200), draw.normal(0, 1, 200))
    path = draw_roc({"plain": curve}, tmp_path / "roc.png", limits={"plain": 2.0})
    assert path.read_bytes().startswith(b"\x89PNG")
