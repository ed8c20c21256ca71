import math
from dataclasses import replace

import pytest

from sfumato import accounting
from sfumato.accounting import GaussianEvent, Relation
from sfumato.errors import InvalidInput
from sfumato.training import AdaptiveClipping, TrainingPlan

PLAN = TrainingPlan(sample_rate=0.01, expected_batch=100, steps=500, noise_multiplier=1.2, clip_norm=1.0)


def test_the_price_is_that_of_its_steps():
    steps = accounting.repeat(accounting.poisson_sampled(0.01, GaussianEvent(1.2)), 500)
    assert PLAN.epsilon(1e-5) == accounting.epsilon(steps, 1e-5)
    assert PLAN.epsilon(1e-5, steps=0) == 0
    assert PLAN.epsilon(1e-5, steps=250) < PLAN.epsilon(1e-5)


@pytest.mark.keeps_out("Shuffled batches accounted as Poisson")
@pytest.mark.parametrize(("relation", "expected"), [("zero-out", 14.1), ("replace-one", 35.6)])
def test_shuffled_batches_are_priced_without_amplification(relation, expected):
    """σ=1.2, ten passes in shuffled batches of 64: the ε that a course report printed as .79."""
    plan = TrainingPlan(
        sample_rate=64 / 60000,
        expected_batch=64,
        steps=round(10 * 60000 / 64),
        noise_multiplier=1.2,
        sampling="shuffle",
        relation=relation,
    )
    assert plan.epsilon(1e-5) == pytest.approx(expected, abs=0.05)
    poisson = replace(plan, sampling="poisson", relation=Relation.ADD_REMOVE)
    assert poisson.epsilon(1e-5) == pytest.approx(0.363, abs=2e-3)


def test_shuffling_is_refused_under_add_remove():
    with pytest.raises(InvalidInput, match="shifts all later batches"):
        replace(PLAN, sampling="shuffle")


def test_noise_phases_are_priced_exactly():
    plan = replace(PLAN, noise_phases=((0.2, 2.0), (0.8, 0.5)))
    assert [plan.noise_at(step) for step in (0, 99, 100, 499)] == [2.4, 2.4, 0.6, 0.6]
    by_hand = accounting.compose(
        accounting.repeat(accounting.poisson_sampled(0.01, GaussianEvent(2.4)), 100),
        accounting.repeat(accounting.poisson_sampled(0.01, GaussianEvent(0.6)), 400),
    )
    assert plan.epsilon(1e-5) == pytest.approx(accounting.epsilon(by_hand, 1e-5))
    with pytest.raises(InvalidInput, match="used up"):
        plan.noise_at(500)


def test_adaptive_clipping_is_charged():
    """A count with noise σ_b on a sensitivity of ½ beside the gradient: z⁻² = σ⁻² + (2σ_b)⁻²."""
    plan = replace(PLAN, adaptive=AdaptiveClipping(count_noise=5.0))
    together = (1.2**-2 + 10.0**-2) ** -0.5
    assert plan.epsilon(1e-5) == pytest.approx(replace(PLAN, noise_multiplier=together).epsilon(1e-5))
    assert plan.epsilon(1e-5) > PLAN.epsilon(1e-5)


def test_replacing_a_record_moves_the_sum_twice():
    full = replace(PLAN, sample_rate=1.0, steps=1)
    doubled = replace(full, relation=Relation.REPLACE_ONE)
    assert doubled.epsilon(1e-5) == pytest.approx(accounting.epsilon(GaussianEvent(0.6), 1e-5))


@pytest.mark.parametrize("epsilon", [0.5, 3])
def test_calibrated_plans_fit(epsilon):
    plan = TrainingPlan.calibrated(
        epsilon=epsilon, delta=1e-5, public_size=10000, expected_batch=200, epochs=3, clip_norm=0.1
    )
    assert plan.sample_rate == 0.02
    assert plan.steps == 150
    assert 0.99 * epsilon <= plan.epsilon(1e-5) <= epsilon


@pytest.mark.parametrize(
    "change",
    [
        {"sample_rate": 0},
        {"sample_rate": 1.2},
        {"noise_multiplier": 0},
        {"noise_multiplier": math.nan},
        {"clip_norm": 0},
        {"steps": -1},
        {"steps": 1.5},
        {"expected_batch": 0},
        {"clipping": "soft"},
        {"sampling": "bootstrap"},
        {"average_decay": 1.0},
        {"noise_phases": ((0.5, 1.0),)},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(change):
    with pytest.raises(InvalidInput):
        replace(PLAN, **change)


def test_a_misspelt_option_is_refused():
    with pytest.raises(InvalidInput, match="clip_nrom"):
        TrainingPlan.calibrated(
            epsilon=1, delta=1e-5, public_size=100, expected_batch=10, steps=5, clip_nrom=1.0
        )


def test_plans_survive_json():
    plan = replace(PLAN, adaptive=AdaptiveClipping(), noise_phases=((0.5, 1.0), (0.5, 2.0)))
    assert TrainingPlan.from_json(plan.to_json()) == plan
