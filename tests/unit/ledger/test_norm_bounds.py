"""A sampled sum under replace-one is charged with a bound of its contributions, and not without one.

Ledgers and certificates that training wrote before the bound was stated keep their price and go on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sfumato import Budget, Ledger, Relation, TrainingPlan
from sfumato.accounting import (
    ClippedGaussianEvent,
    GaussianEvent,
    best_of,
    compose,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.cli.plans import check_plan
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.ledger import Certificate, Head

# Made by the version before: a training of 200 sampled steps, and another that was interrupted after 50.
DATA = Path(__file__).parent / "data"
HEAD = Head(sequence=3, hash="59f88a644b10728161d94cc2a5a16ce867e0c46ec331fdbcfd332f8f24feeb87")
PLAN = TrainingPlan(
    sample_rate=0.01, expected_batch=100, steps=200, noise_multiplier=1.5, relation=Relation.REPLACE_ONE
)
TERMS = {"relation": Relation.REPLACE_ONE, "unit": "record"}
UNBOUNDED = poisson_sampled(0.5, GaussianEvent(1.0))


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return Path(shutil.copy(DATA / "sampled-replace-one.db", tmp_path / "earlier.db"))


@pytest.mark.parametrize(
    "event",
    [UNBOUNDED, repeat(UNBOUNDED, 9), compose(pure(0.1), UNBOUNDED), best_of(UNBOUNDED, 2.0)],
    ids=["alone", "repeated", "composed", "selected"],
)
def test_a_sensitivity_alone_is_not_charged(tmp_path: Path, event: object) -> None:
    budget = Budget(epsilon=50, delta=1e-5, relation=Relation.REPLACE_ONE)
    with Ledger.create(tmp_path / "book.db", budget) as ledger:
        for spend in (ledger.charge, ledger.reserve):
            with pytest.raises(NotPrivate, match="ClippedGaussianEvent"):
                spend(event, purpose="a sampled sum of values in [0, 1]", **TERMS)
        with pytest.raises(NotPrivate, match="ClippedGaussianEvent"):
            ledger.check(event, **TERMS)
        with pytest.raises(NotPrivate, match="ClippedGaussianEvent"):
            ledger.prepay("plan", event, purpose="sums", **TERMS)
        assert ledger.epsilon_spent == 0
    with pytest.raises(NotPrivate, match="ClippedGaussianEvent"):
        Certificate.of(event, purpose="a sum", delta=1e-5, relation=Relation.REPLACE_ONE)


def test_with_its_bound_it_is_charged_and_certified(tmp_path: Path) -> None:
    budget = Budget(epsilon=50, delta=1e-5, relation=Relation.REPLACE_ONE)
    with Ledger.create(tmp_path / "book.db", budget) as ledger:
        event = poisson_sampled(0.5, ClippedGaussianEvent(0.5))
        certificate = ledger.certificate(ledger.charge(event, purpose="values in [0, 1]", **TERMS))
        assert certificate.verify().pld > 3.53  # the truth for the values 0 and 1
        assert Certificate.from_json(certificate.to_json()).event == event
        ledger.verify(certificate=certificate)


def test_what_training_wrote_before_keeps_its_price(earlier: Path) -> None:
    certificate = Certificate.read(DATA / "sampled-replace-one.json")
    assert certificate.verify().pld == pytest.approx(0.6967203558693787, rel=1e-4)
    assert check_plan(certificate)
    assert PLAN.epsilon(1e-5) == pytest.approx(0.6967203558693787, rel=1e-4)
    with Ledger.open(earlier) as ledger:
        ledger.verify(certificate=certificate, head=HEAD)
        assert ledger.epsilon_spent == pytest.approx(1.4787944161188786, rel=1e-6)
        ledger.charge(pure(0.1), purpose="a later count", **TERMS)
        ledger.verify(head=HEAD)


@pytest.mark.parametrize("ran", [None, 120])
def test_a_run_that_was_interrupted_before_goes_on(earlier: Path, ran: int | None) -> None:
    with Ledger.open(earlier) as ledger:
        taken = ledger.reservation(ledger.open_reservations()[0].head)
        taken.mark(PLAN.event(120), steps=120, digest="1" * 64)
        with pytest.raises(InvalidInput, match="reserved steps"):
            taken.settle(repeat(poisson_sampled(0.01, ClippedGaussianEvent(1.5)), 120))
        before = ledger.epsilon_spent
        charge = taken.settle(None if ran is None else PLAN.event(ran))
        assert charge.event == PLAN.event(ran)
        assert ledger.epsilon_spent <= before * (1 + 1e-9)
        ledger.verify(head=HEAD)
        ledger.certificate(charge, plan=PLAN.to_json()).verify()
