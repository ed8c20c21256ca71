"""A sampled sum under replace-one is charged and certified with a bound of its contributions only."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato import Budget, Ledger, Relation
from sfumato.accounting import (
    ClippedGaussianEvent,
    GaussianEvent,
    best_of,
    compose,
    event_to_json,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.errors import NotPrivate
from sfumato.ledger import Certificate

TERMS = {"relation": Relation.REPLACE_ONE, "unit": "record"}
UNBOUNDED = poisson_sampled(0.5, GaussianEvent(1.0))


@pytest.mark.keeps_out("Sampled sums of values in [0, Δ] under replace-one priced as if each were at most Δ/2")
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


@pytest.mark.keeps_out(
    "A certificate of a sampled sum under replace-one, priced by a norm bound that it does not state"
)
def test_a_certificate_that_was_rewritten_without_its_bound_is_refused() -> None:
    event = poisson_sampled(0.5, ClippedGaussianEvent(1.0))
    data = Certificate.of(event, purpose="sums", delta=1e-5, relation=Relation.REPLACE_ONE).to_json()
    with pytest.raises(NotPrivate, match="ClippedGaussianEvent"):
        Certificate.from_json({**data, "event": event_to_json(UNBOUNDED)}).verify()
