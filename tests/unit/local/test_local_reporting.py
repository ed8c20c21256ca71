"""One report a person; what a shuffler adds; which imports a client needs."""

import math
import subprocess
import sys

import numpy as np
import pytest

from sfumato.accounting import GaussianEvent, pure
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.local import (
    AlreadyReported,
    LabelledDirection,
    Reporter,
    ReportPlan,
    shuffled_epsilon,
    shuffled_in_words,
)
from sfumato.randomness import SecretStream


def test_a_second_report_is_refused_also_after_a_restart(tmp_path):
    first = Reporter(tmp_path / "mine.db").report("ann", lambda: {"answer": 1}, event=pure(1.0))
    again = Reporter(tmp_path / "mine.db")
    with pytest.raises(AlreadyReported, match="one report per person"):
        again.report("ann", lambda: {"answer": 0}, event=pure(1.0))
    assert again.again("ann") == first
    assert again.report("bob", lambda: {"answer": 0}, event=pure(1.0)).id != first.id


def test_a_crash_while_randomising_costs_the_report(tmp_path):
    reporter = Reporter(tmp_path / "mine.db")

    def crash():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reporter.report("ann", crash, event=pure(1.0))
    with pytest.raises(AlreadyReported):
        reporter.report("ann", lambda: {"answer": 1}, event=pure(1.0))
    assert reporter.again("ann") is None


def test_bad_input_leaves_no_mark_and_sends_nothing(tmp_path):
    reporter, plan = Reporter(tmp_path / "mine.db"), ReportPlan(classes=10, dimension=3, epsilon=4.0)
    vector = np.array([[3.0, 0.0, 0.0]])

    def randomise():
        raise AssertionError("randomised what was refused")

    with pytest.raises(InvalidInput):
        reporter.report("ann", randomise, event=plan.event(), check=lambda: plan.check(np.array([1]), vector))
    good = vector / 3

    def report():
        labels, points = plan.randomise(np.array([1]), good, SecretStream())
        return {"label": int(labels[0]), "point": points[0].tolist()}

    sent = reporter.report("ann", report, event=plan.event(), check=lambda: plan.check(np.array([1]), good))
    assert len(sent.content["point"]) == 3


def test_an_event_without_a_price_is_not_reported(tmp_path):
    from dp_accounting import dp_event

    with pytest.raises(NotPrivate):
        Reporter(tmp_path / "mine.db").report("ann", dict, event=dp_event.UnsupportedDpEvent())


def test_amplification_within_the_theorem_only():
    # Feldman, McMillan & Talwar 2021, theorem 3.1, written out for ε₀ = 2, n = 60,000, δ = 1e-5.
    hidden = 8 * math.sqrt(math.e**2 * math.log(4e5)) / math.sqrt(60_000) + 8 * math.e**2 / 60_000
    by_hand = math.log(1 + (math.e**2 - 1) / (math.e**2 + 1) * hidden)
    assert shuffled_epsilon(pure(2.0), people=60_000, delta=1e-5) == pytest.approx(by_hand)
    edge = math.log(60_000 / (16 * math.log(2e5)))
    assert shuffled_epsilon(pure(edge - 1e-9), people=60_000, delta=1e-5) is not None
    assert shuffled_epsilon(pure(edge + 1e-9), people=60_000, delta=1e-5) is None
    assert shuffled_in_words(pure(8.0), people=60_000, delta=1e-5) == "no amplification"
    assert shuffled_in_words(GaussianEvent(9.0), people=60_000, delta=1e-5) == "no amplification"


def test_a_client_needs_no_torch():
    code = (
        "import sys, numpy as np\n"
        "from sfumato.local import ReportPlan, GaussianVector\n"
        "from sfumato.randomness import SecretStream\n"
        "ReportPlan(classes=10, dimension=40, epsilon=8.0).randomise([3], np.eye(40)[:1], SecretStream())\n"
        "noise = GaussianVector.calibrated(dimension=784, epsilon=8, delta=1e-5)\n"
        "noise.release(np.eye(784)[:1], SecretStream())\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_joint_randomiser_of_a_plan_costs_what_was_asked():
    plan = ReportPlan(classes=10, dimension=40, epsilon=8.0)
    assert plan.price == 8
    assert isinstance(plan.labelled_direction, LabelledDirection)
    with pytest.raises(InvalidInput, match="delta"):
        ReportPlan(classes=10, dimension=40, epsilon=8.0, randomiser="gaussian")
    assert ReportPlan.from_json(plan.to_json()) == plan
