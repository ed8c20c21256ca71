"""What a plan costs, and that it is all that is spent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfumato import accounting
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate
from sfumato.synthesis import SynthesisPlan
from sfumato.synthesis.plan import RELATION, default_picks


def plan(**changes) -> SynthesisPlan:
    wanted = {"epsilon": 1.0, "delta": 1e-6, "columns": 13, "picks": (12, 6, 6), "rows": 1} | changes
    return SynthesisPlan.calibrated(**wanted)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_price_is_what_was_asked_for(epsilon, rows):
    found = plan(epsilon=epsilon, rows=rows)
    assert 0.99 * epsilon <= found.epsilon(1e-6) <= epsilon


def test_a_price_that_was_computed_by_hand():
    """Without choices a plan is Gaussian: k of σ at Δ are one of σ/(Δ√k), and σ/Δ = 4.530877 is ε = .92739."""
    single = SynthesisPlan(
        columns=9, picks=(), single_sigma=3 * 2 * 4.530877, joint_sigma=1.0, choice_scale=1.0, rows=2
    )
    assert single.epsilon(1e-6) == pytest.approx(0.92739, rel=1e-3)


def test_each_choice_and_measurement_is_in_the_event():
    found = plan()
    atoms = accounting.event_to_json(found.event())["events"]
    assert [(part["count"], part["event"]["kind"]) for part in atoms] == [
        (13, "gaussian"),
        (24, "gaussian"),
        (24, "exponential-mechanism"),
    ]
    # An exponential mechanism that moves each score by Δ costs 2Δ/scale.
    assert atoms[2]["event"]["epsilon"] == pytest.approx(2 / found.choice_scale, rel=1e-5)


def test_noise_grows_with_the_rows_of_a_person():
    assert plan(rows=10).joint_sigma == pytest.approx(10 * plan().joint_sigma, rel=0.01)


def test_a_smaller_scale_costs_more():
    found = plan()
    for name in ("single_sigma", "joint_sigma", "choice_scale"):
        assert replace(found, **{name: getattr(found, name) * 0.7}).epsilon(1e-6) > found.epsilon(1e-6)


def test_a_certificate_of_the_plan_verifies():
    found = plan()
    certificate = Certificate.of(found.event(), purpose="synthetic table", delta=1e-6, relation=RELATION)
    assert certificate.verify().pld == pytest.approx(found.epsilon(1e-6), rel=1e-3)


@pytest.mark.parametrize("delta", [0, 0.0])
def test_delta_is_needed(delta):
    with pytest.raises(InvalidInput, match="delta > 0"):
        plan(delta=delta)


@pytest.mark.parametrize(
    ("columns", "candidates", "fixed", "picks"),
    [
        (1, 0, 0, ()),
        (2, 1, 0, (1,)),
        (2, 0, 1, ()),
        (3, 3, 0, (2, 1)),
        (3, 1, 2, (1,)),
        (13, 78, 0, (12, 6, 6)),
        (13, 66, 12, (12, 6)),
        (13, 2, 0, (2,)),
    ],
)
def test_no_more_choices_than_candidates(columns, candidates, fixed, picks):
    assert default_picks(columns, candidates, fixed) == picks
