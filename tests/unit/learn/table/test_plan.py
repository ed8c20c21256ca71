"""Plans are priced as one Gaussian release, and never above the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sfumato.accounting import GaussianEvent, epsilon
from sfumato.errors import InvalidInput
from sfumato.learn.table import TablePlan


@pytest.mark.parametrize("visits", [0, 30])
@pytest.mark.parametrize("budget", [0.3, 3.0])
def test_all_of_the_budget_is_used_and_no_more(visits, budget):
    plan = TablePlan.calibrated(epsilon=budget, delta=1e-6, public_size=1000, columns=4, visits=visits)
    assert 0.995 * budget <= plan.epsilon(1e-6) <= budget
    precision = plan.counts_noise**-2 + plan.steps * plan.step_noise**-2 + visits * plan.pair_noise**-2
    assert epsilon(GaussianEvent(precision**-0.5), 1e-6) == pytest.approx(plan.epsilon(1e-6), rel=2e-3)


def test_less_noise_in_any_release_costs_more():
    plan = TablePlan.calibrated(epsilon=1, delta=1e-6, public_size=1000, columns=4, visits=10)
    for name in ("counts_noise", "step_noise", "pair_noise"):
        assert replace(plan, **{name: getattr(plan, name) * 0.7}).epsilon(1e-6) > 1.01


def test_a_plan_comes_back_from_json_and_refuses_nonsense():
    plan = TablePlan.calibrated(epsilon=1, delta=1e-6, public_size=1000, columns=4)
    assert TablePlan.from_json(plan.to_json()) == plan
    for change in ({"steps": 0}, {"step_noise": 0.0}, {"model": "forest"}, {"public_size": 0}):
        with pytest.raises(InvalidInput):
            replace(plan, **change)
