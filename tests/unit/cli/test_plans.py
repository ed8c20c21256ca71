"""The plan in a certificate is compared with its events, for every kind of release that has one."""

import json
from dataclasses import asdict, replace

import pytest

from sfumato.accounting import LaplaceEvent, Relation
from sfumato.cli.verify import check_plan
from sfumato.errors import NotVerified
from sfumato.learn.tuning import Tuning, selection_event
from sfumato.ledger import Certificate
from sfumato.local import ReportPlan
from sfumato.pate import VotePlan
from sfumato.training import TrainingPlan

TRAINING = TrainingPlan(sample_rate=0.1, expected_batch=10, steps=5, noise_multiplier=2.0)
VOTES = VotePlan(mechanism="gnmax", teachers=100, queries=50, sigma=40)
REPORTS = ReportPlan(classes=10, dimension=40, epsilon=2.0)
TRIALS = {"trial": TRAINING.to_json(), "tuning": asdict(Tuning()), "recipe": {}}


def certificate(event, plan, **terms):
    made = Certificate.of(event, purpose="a release", **{"delta": 1e-5, **terms}, plan=plan)
    return Certificate.from_json(json.loads(json.dumps(made.to_json())))


GOOD = {
    "training": lambda: certificate(TRAINING.event(), TRAINING.to_json()),
    "stopped": lambda: certificate(TRAINING.event(2), TRAINING.to_json(), planned=TRAINING.event()),
    "votes": lambda: certificate(VOTES.event(), {"votes": VOTES.to_json(), "prior": "0" * 64}),
    "trials": lambda: certificate(selection_event(TRAINING, Tuning().mean_trials), TRIALS),
    "reports": lambda: certificate(
        REPORTS.event(),
        {**REPORTS.to_json(), "view": "dct"},
        relation=Relation.REPLACE_ONE,
        unit="person",
        delta=0,
    ),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_plan_that_made_the_events(kind):
    assert check_plan(GOOD[kind]())


@pytest.mark.parametrize("kind", GOOD)
def test_dearer_events_than_the_plan_makes(kind):
    with pytest.raises(NotVerified, match="got others"):
        check_plan(_dearer(GOOD[kind]()))


def _dearer(good):
    """The same plan beside a release of ε = 10."""
    other = Certificate.of(
        LaplaceEvent(0.1), purpose="a release", delta=good.delta, relation=good.relation, unit=good.unit
    )
    return replace(good, event=other.event, prices=other.prices)


@pytest.mark.parametrize("kind", [kind for kind in GOOD if kind != "votes"])
def test_a_plan_for_another_unit(kind):
    with pytest.raises(NotVerified, match="unit"):
        check_plan(replace(GOOD[kind](), unit="household"))


def test_no_plan_is_not_compared():
    assert not check_plan(certificate(LaplaceEvent(2.0), {}))


def test_a_stopped_run_that_is_called_a_shorter_plan():
    with pytest.raises(NotVerified, match="not of one run"):
        check_plan(certificate(TRAINING.event(2), TRAINING.to_json()))
