"""Whole runs with correlated noise are not accused; each way of breaking them is found. False alarms: 1e-6."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato.accounting import Relation
from sfumato.audit.runs import correlated
from sfumato.mechanisms import Banded, LambdaCGD
from sfumato.mechanisms import correlated as drawing
from sfumato.training import TrainingPlan
from sfumato.training.sampling import FixedOrder, Sample

PLAN = TrainingPlan(
    sample_rate=0.25,
    expected_batch=100,
    steps=12,
    noise_multiplier=1.5,
    sampling="cyclic",
    relation=Relation.ZERO_OUT,
    noise=Banded(bands=3),
)
PLANS = [PLAN, replace(PLAN, noise=LambdaCGD(cancelled=0.8))]


@pytest.mark.parametrize("plan", PLANS)
def test_intact_runs_are_not_accused_and_nearly_all_of_the_price_is_proved(plan):
    verdict = correlated.run(plan)
    assert not verdict.refuted
    assert verdict.lower_bound > 0.7 * verdict.claimed_epsilon
    assert correlated.stale_draws(plan) is None
    assert correlated.out_of_turn(plan) is None


@pytest.mark.keeps_out(
    "Correlated noise priced for one participation where a unit has several, or without its own echoes"
)
@pytest.mark.parametrize("plan", PLANS)
def test_the_price_of_a_single_participation_is_refuted(plan, monkeypatch):
    intact = TrainingPlan._event_of_passes
    monkeypatch.setattr(TrainingPlan, "_event_of_passes", lambda self, passes: intact(self, min(passes, 1)))
    assert correlated.run(plan).refuted


def test_the_price_of_independent_noise_is_refuted(monkeypatch):
    """σ is that of the draws, which a unit's echoes are heard through; as if C were the identity."""
    monkeypatch.setattr("sfumato.training.plan.pass_norms", lambda noise, **plan: (1.0, 1.0, 1.0))
    assert correlated.run(PLANS[1]).refuted


def test_draws_that_are_used_twice_are_found(monkeypatch):
    """Every step's noise from one key: each takes back a share of itself."""
    intact = drawing.keyed_normal
    monkeypatch.setattr(drawing, "keyed_normal", lambda key, size: intact(bytes(32), size))
    assert "repeated noise" in correlated.stale_draws(PLANS[1])


def test_noise_that_is_taken_back_twice_is_found(monkeypatch):
    """Two steps' memory where the price knows one: the draws behind what is released are no longer fresh."""
    intact = drawing.BandedNoise._remember

    def broken(self, noise, last):
        intact(self, 2 * noise, last)

    monkeypatch.setattr(drawing.BandedNoise, "_remember", broken)
    assert "repeated noise" in correlated.stale_draws(PLAN)


@pytest.mark.keeps_out("An order of batches that is chosen later, or that one person's name changes for others")
def test_an_order_that_is_chosen_later_is_found(monkeypatch):
    def broken(self, step):
        units = np.random.default_rng(step).permutation(self.block.size)[:10]
        return Sample(np.sort(units), np.zeros(10))

    monkeypatch.setattr(FixedOrder, "sample", broken)
    assert "out of their turn" in correlated.out_of_turn(PLAN)
