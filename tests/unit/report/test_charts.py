"""Where things land on a chart, and what the curves say between measurements."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from sfumato.report.charts import PHONE, WIDE, Axis, Chart, percent_ticks, round_ticks
from sfumato.report.headline import Headline
from sfumato.report.measured import Curve
from sfumato.report.releases import ReleaseRow
from sfumato.runs import SweepRun


def chart():
    return Chart(WIDE, Axis(low=1, high=100, log=True), Axis(low=0, high=1))


def test_the_ends_of_the_axes_are_the_edges_of_the_room():
    drawn = chart()
    assert drawn.at(1, 0) == (WIDE.left, WIDE.height - WIDE.bottom)
    assert drawn.at(100, 1) == (WIDE.width - WIDE.right, WIDE.top)


def test_a_log_axis_puts_the_geometric_mean_in_the_middle():
    assert Axis(low=1, high=100, log=True).share(10) == pytest.approx(0.5)
    assert Axis(low=0, high=4).share(1) == 0.25


def test_what_lies_outside_is_moved_to_the_edge():
    axis = Axis(low=0.5, high=8, log=True)
    assert axis.share(1e-9) == 0
    assert axis.share(1e9) == 1


def test_the_drawing_is_well_formed_and_its_words_are_escaped():
    drawn = chart()
    drawn.text((10, 0.5), "a < b & c", "ink")
    drawn.dot((10, 0.5), "ink", label='"quoted"')
    drawn.error_bar(10, 0.2, 0.4, "accent")
    drawn.area([(1, 0.2), (10, 0.4)], "soft")
    drawn.box((1, 0), (10, 0.3), "accent")
    root = ET.fromstring(drawn.svg('says "this"'))
    assert root.attrib["aria-label"] == 'says "this"'
    assert [text.text for text in root.iter("text")][-1] == "a < b & c"
    assert 'class="chart narrow"' in Chart(PHONE, drawn.x, drawn.y).svg("")


def test_ticks_are_round_and_within():
    assert percent_ticks(0.85, 1.0) == [(0.85, "85%"), (0.9, "90%"), (0.95, "95%"), (1.0, "100%")]
    for high in (0.013, 0.9, 1, 7, 12, 480):
        ticks = round_ticks(high)
        assert 3 <= len(ticks) <= 7
        assert ticks[-1][0] <= high * (1 + 1e-9)


def measured(*points):
    runs = [SweepRun(epsilon=e, target_epsilon=e, test_accuracy=a) for e, a in points]
    return Curve.of("ours", runs)


def test_between_measurements_the_curve_is_straight_in_the_logarithm():
    curve = measured((1, 0.9), (4, 0.96))
    assert curve.at(2) == pytest.approx(0.93)
    assert curve.at(1) == 0.9
    assert curve.at(4) == 0.96


def test_below_the_first_measurement_nothing_is_claimed():
    curve = measured((1, 0.9), (4, 0.96))
    assert curve.at(0.5) is None
    assert not curve.reaches(0.5)
    assert curve.at(100) == curve.at(None) == 0.96
    assert not curve.reaches(100)


def test_repetitions_are_averaged_and_their_spread_is_kept():
    (point,) = measured((1, 0.9), (1, 0.94), (1, 0.92)).points
    assert (point.mean, point.low, point.high, point.repetitions) == (pytest.approx(0.92), 0.9, 0.94, 3)


def release(epsilon, accuracy):
    return ReleaseRow(name="", epsilon=epsilon, delta=1e-5, accuracy=accuracy, trusted="")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(None, 0.989), (1.0, 0.985)], "Privacy cost you 0.4 points"),
        ([(None, 0.99), (1.0, 0.98)], "Privacy cost you 1 point"),
        ([(None, 0.98), (1.0, 0.985)], "Privacy cost you nothing"),
        ([(None, 0.989), (8.0, 0.988), (1.0, 0.985)], "Privacy cost you 0.4 points"),  # the stricter counts
        ([(None, 0.989), (8.0, 0.98)], "Privacy cost you 0.9 points"),
        ([(1.0, 0.985)], "Right 98.5% of the time"),
        ([(1.0, None)], "What was released"),
        ([], "What the runs found"),
    ],
)
def test_the_headline(rows, text):
    assert Headline.of([release(epsilon, accuracy) for epsilon, accuracy in rows]).text == text


def test_a_release_is_held_against_its_own_method():
    def row(method, epsilon, accuracy):
        return replace(release(epsilon, accuracy), method=method)

    rows = [row("network", None, 0.97), row("network", 1.0, 0.95), row("recipe", None, 0.992)]
    assert Headline.of([*rows, row("recipe", 1.0, 0.985)]).text == "Privacy cost you 0.7 points"


def test_the_lede_names_the_price():
    lede = Headline.of([release(None, 0.989), release(math.nextafter(1, 0), 0.985)]).lede.replace("\u00a0", " ")
    assert "ε = 1.00 at δ = 10⁻⁵" in lede
    assert "98.9%" in lede
