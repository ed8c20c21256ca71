"""The aggregator of teachers' votes, attacked on its worst votes, intact and broken; and the command."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sfumato import accounting
from sfumato.audit import gdp_epsilon_bound
from sfumato.audit.runs import randomiser as randomiser_audit
from sfumato.cli import audit as command
from sfumato.mechanisms import NoisyMax
from sfumato.pate import VotePlan

DELTA = 1e-5
GNMAX = VotePlan(mechanism="gnmax", teachers=100, queries=2000, classes=3, sigma=2.0)
CONFIDENT = VotePlan(
    mechanism="confident",
    teachers=100,
    queries=2000,
    answers=2000,
    classes=3,
    sigma=2.0,
    sigma_threshold=2.0,
    threshold=21,
)


def claimed(plan):
    return accounting.epsilon(accounting.compose(plan.test_event(), plan.answer_event()), DELTA)


def proved(plan):
    def bound(errors, alpha):
        return gdp_epsilon_bound(errors, delta=DELTA, alpha=alpha)

    return randomiser_audit.teachers_vote(plan).bound(bound, 1e-6)


@pytest.mark.parametrize("plan", [GNMAX, CONFIDENT], ids=["gnmax", "confident"])
def test_teachers_keep_their_price(plan):
    """Two leaders and a difference of 2 votes, noise of 2√2: 69% of guesses right, far from luck at 2,000."""
    assert 0 < proved(plan) < claimed(plan)


def test_half_the_noise_is_found(monkeypatch):
    """The votes are drawn with half of the σ that is priced."""
    intact = NoisyMax.release_each

    def broken(self, rows, sampler):
        return intact(self, 2 * np.asarray(rows), sampler)

    monkeypatch.setattr(NoisyMax, "release_each", broken)
    assert proved(GNMAX) > claimed(GNMAX)


def test_command(monkeypatch):
    app = typer.Typer()
    command.register(app)
    chosen = {name: randomiser_audit.RANDOMISERS[name] for name in ("coins", "vectors")}
    monkeypatch.setattr(randomiser_audit, "RANDOMISERS", chosen)
    result = CliRunner().invoke(app, ["audit", "randomisers", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer.keys() == chosen.keys()
    assert answer["coins"]["lower_bound"] > 0.9
    monkeypatch.setattr(randomiser_audit, "unit_sphere_sensitivity", lambda: 1.0)
    assert CliRunner().invoke(app, ["audit", "randomisers"]).exit_code == 1
