"""A release that is made of parts says of itself all that its parts say of themselves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Budget, GaussianEvent
from sfumato.audit.runs import one_run
from sfumato.caveats import Code
from sfumato.datasets import Chosen, Dataset
from sfumato.datasets.dataset import SEEDED_CHOICE
from sfumato.learn import Canaries, Classifier, features, tuning
from sfumato.learn.table import TableTraining
from sfumato.ledger import Certificate, Ledger, PrivateKey
from sfumato.ledger.signing import VARIABLE
from sfumato.policy import Column, Policy
from sfumato.randomness import OWN_NOISE, SecretStream
from sfumato.training.data import chosen_by
from sfumato_lab.images import ImageRequest, StyleSettings, learn_sampler

SMALL = {"extractors": ("scattering",), "drawn": 60, "directions": 8, "steps": 2}
HEAD_ONLY = replace(features.THINGS, **SMALL)
MEASURES = replace(features.CLOTHES, **SMALL)
IDEAL = "the float64 normal sampler is taken as ideal"


class Quiet(SecretStream):
    """A sampler of the user's own: it adds hardly any noise."""

    def rounded_normal(self, scale, size):
        return np.ones(size, dtype=np.int64)


def rows(chosen) -> Dataset:
    generator = np.random.default_rng(0)
    return Dataset(
        inputs=generator.random((40, 1, 28, 28)).astype(np.float32),
        targets=np.arange(40) % 3,
        name="toy",
        visibility="private",
        public_size=40,
        classes=3,
        chosen=chosen,
    )


def classifier(recipe, sampler, ledger, chosen):
    ready = Classifier.prepare(rows(chosen), epsilon=1, recipe=recipe)
    return ready.train(sampler=sampler, ledger=ledger).certificate


def images(recipe, sampler, ledger, chosen):
    settings = StyleSettings(drawings=200, directions=4)
    request = ImageRequest.of(rows(chosen), images=5, epsilon=1, recipe=recipe, settings=settings)
    return learn_sampler(request, rows(chosen), ledger=ledger, sampler=sampler).certificate


def tuned(recipe, sampler, ledger, chosen):
    found = tuning.run(rows(chosen), None, epsilon=1, recipe=recipe, sampler=sampler, ledger=ledger)
    return found.certificate


MADE = {"classifier": classifier, "images": images, "tuned": tuned}
EACH = [
    pytest.param(MADE[name], recipe, id=f"{name}-{kind}")
    for name, kind, recipe in (
        ("classifier", "head only", HEAD_ONLY),
        ("classifier", "measures first", MEASURES),
        ("images", "head only", HEAD_ONLY),
        ("images", "measures first", MEASURES),
        ("tuned", "head only", HEAD_ONLY),
    )
]


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=2, delta=1e-5)) as found:
        yield found


@pytest.mark.keeps_out("Caveats of a part that the certificate of the whole leaves out")
@pytest.mark.parametrize(("make", "recipe"), EACH)
def test_own_noise_and_seeded_coins_are_stated(make, recipe, ledger):
    found = make(recipe, Quiet(), ledger, Chosen(private=False))
    assert {OWN_NOISE, IDEAL, SEEDED_CHOICE} <= set(found.caveats)
    assert [found.private, *(charge.private for charge in ledger.charges())] == [False, False]
    assert Code.UNRECORDED() not in found.caveats
    assert len(set(found.caveats)) == len(found.caveats)
    found.verify()


@pytest.mark.parametrize(("make", "recipe"), EACH)
def test_nothing_is_stated_that_is_not_so(make, recipe, ledger):
    found = make(recipe, SecretStream(), ledger, Chosen())
    assert not {OWN_NOISE, Code.UNRECORDED(), SEEDED_CHOICE} & set(found.caveats)
    assert found.private
    assert IDEAL in found.caveats


@pytest.mark.parametrize("model", ["linear", "boosted", "mlp"])
def test_tables_state_own_noise(model):
    columns = {
        "age": Column(name="age", type="integer", lower=0, upper=100),
        "size": Column(name="size", type="integer", lower=0, upper=100),
        "ill": Column(name="ill", type="text", categories=("yes", "no")),
    }
    budget = Budget(epsilon=10, delta=1e-6)
    policy = Policy(table="people", source="people.csv", columns=columns, budget=budget, public_size=60)
    data = pd.DataFrame({"age": range(60), "size": range(60), "ill": ["yes", "no"] * 30})
    ready = TableTraining.prepare(policy, target="ill", epsilon=1, model=model)
    assert OWN_NOISE in ready.train(data=data, sampler=Quiet()).certificate.caveats


def test_canaries_among_rows_do_not_hide_who_chose_these(monkeypatch, tmp_path):
    """They go among plain tensors, which do not know."""

    def audited(part, rows, training, **more):
        return training(part, rows.tensors(), None, None)

    monkeypatch.setattr(one_run, "audited", audited)
    ready = SimpleNamespace(canaries=Canaries(count=1), plan=None)
    chosen = Chosen(private=False)
    found = Classifier._learn(ready, None, rows(chosen), lambda model, data, **more: data, None, tmp_path)
    assert chosen_by(found) == chosen


def test_what_is_added_to_a_certificate_is_signed_too(tmp_path, monkeypatch):
    PrivateKey.create(tmp_path / "key")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "key"))
    whole = Certificate.of(GaussianEvent(4.0), purpose="a model", delta=1e-5)
    more = whole.with_caveats(["one more"])
    assert more.signer == whole.signer is not None
    assert more.signature != whole.signature
    assert more.caveats == (*whole.caveats, "one more")
