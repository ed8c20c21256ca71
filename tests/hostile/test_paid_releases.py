"""A release that was paid for: whole when its certificate is there, and certified for whom it was priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file

import sfumato
from sfumato import pate
from sfumato.accounting import Budget, Relation, pure
from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded
from sfumato.learn import DIGITS, Canaries, Classifier
from sfumato.ledger import Ledger, Unrecorded
from sfumato.released import MODEL
from sfumato.training import run as training_run
from sfumato_lab.drawings import strokes

QUICK = replace(DIGITS, drawn=60, directions=8, steps=2, sample_rate=0.5)


def drawn(count, seed, visibility="private", unit="record"):
    images, labels = strokes.draw(count, seed=seed)
    return Dataset(
        inputs=(images[:, np.newaxis] / 255).astype(np.float32),
        targets=labels,
        name="strokes",
        visibility=visibility,
        classes=10,
        public_size=count,
        unit=unit,
    )


@pytest.mark.keeps_out("A finished run whose model is only a part of it, or still holds the canaries")
@pytest.mark.parametrize("canaries", [None, Canaries(count=20)], ids=["alone", "with canaries"])
def test_a_run_that_dies_after_its_certificate_has_released_all_of_its_model(tmp_path, monkeypatch, canaries):
    """Written afterwards, the whole would be missing: a head without features, or the canaries beside it."""

    def died(path):
        raise KeyboardInterrupt

    ready = Classifier.prepare(drawn(60, seed=1), epsilon=8, recipe=QUICK, canaries=canaries)
    monkeypatch.setattr(training_run, "remove_checkpoint", died)
    with pytest.raises(KeyboardInterrupt):
        ready.train(out=tmp_path)
    released = load_file(tmp_path / "release" / MODEL)
    assert released.keys() == ready.network.state_dict().keys()
    assert sfumato.load(tmp_path).predict(drawn(5, seed=2)).shape == (5,)


@pytest.mark.keeps_out("A certificate without a ledger that names a record where a person was priced")
def test_votes_without_a_ledger_are_certified_for_the_unit_they_were_priced_for():
    """All of a person's rows went to one teacher: a certificate for a record would promise something else."""
    plan = pate.VotePlan(mechanism="gnmax", teachers=5, queries=4, sigma=3.0)
    settings = pate.PateSettings(
        plan=plan, adaptation=pate.Adaptation(prior="strokes", steps=0, drawings=50), folds=2
    )
    private, public = drawn(60, seed=1, unit="person"), drawn(20, seed=2, visibility="public")
    found = pate.run(private, public, settings, unit_ids=np.arange(60) // 2)
    assert (found.certificate.unit, found.certificate.relation) == ("person", Relation.ADD_REMOVE)


@pytest.mark.parametrize("missing", ["purpose", "relation", "unit"])
def test_nobody_pays_without_saying_for_what_and_whom(tmp_path, missing):
    terms = {"purpose": "a count", "relation": Relation.ADD_REMOVE, "unit": "record"}
    del terms[missing]
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1)) as ledger:
        for book in (ledger, Unrecorded(delta=0)):
            with pytest.raises(TypeError, match=missing):
                book.pay_for(pure(0.1), **terms)
        assert ledger.epsilon_spent == 0


def test_a_certificate_comes_after_the_charge_or_not_at_all(tmp_path):
    terms = {
        "purpose": "a count",
        "relation": Relation.ADD_REMOVE,
        "unit": "record",
        "plan": {"query": "count"},
    }
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1)) as ledger:
        certificate = ledger.pay_for(pure(0.75), **terms, private=False)
        (charge,) = ledger.charges()
        assert certificate.head == charge.head
        assert (certificate.private, charge.private) == (False, False)
        assert dict(certificate.plan) == {"query": "count"}
        with pytest.raises(BudgetExceeded):
            ledger.pay_for(pure(0.5), **terms)
        assert len(ledger.charges()) == 1
    alone = Unrecorded(delta=0).pay_for(pure(0.5), **terms)
    assert alone.head is None
    assert any(caveat.startswith("not entered in a ledger") for caveat in alone.caveats)
