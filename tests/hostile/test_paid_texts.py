"""Texts of whatever characters: refused before anything is charged, or read again with the release."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sfumato
from sfumato.accounting import Budget, Relation, pure
from sfumato.display import visible, visible_json
from sfumato.errors import InvalidInput
from sfumato.learn.table import TableTraining
from sfumato.ledger import Certificate, Ledger, Unrecorded
from sfumato.policy import Column, Policy, Unit
from sfumato.query import Table

TRICKS = (
    "free\u00a0text",
    "per\u200bson",
    "a\nb",
    "\x1b[2J",
    "p\u202eerson",
    "\ufeffperson",
    "soft\u00adhyphen",
    "tag\U000e0041",
    "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627",  # a Persian word, which needs a joiner
    "thin\u2009blank",
)
texts = st.text(
    st.characters() | st.sampled_from("\u00a0\u200b\u200d\n\x1b\u202e\u00ad\U000e0041"), max_size=12
)
TERMS = {"relation": Relation.ADD_REMOVE}


def read_again(certificate: Certificate, folder) -> Certificate:
    certificate.write(folder / "c.json")
    return Certificate.read(folder / "c.json")


@pytest.mark.keeps_out("A release that was paid for and that no command reads, for a character in a name")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(purpose=texts, unit=texts, dataset=texts | st.none(), caveats=st.lists(texts, max_size=2))
def test_what_is_charged_can_be_read(tmp_path_factory, purpose, unit, dataset, caveats):
    folder = tmp_path_factory.mktemp("texts")
    try:
        ledger = Ledger.create(folder / "l.db", Budget(epsilon=1, unit=unit), dataset=dataset)
    except InvalidInput:
        assert not (folder / "l.db").exists()
        return
    with ledger:
        try:
            made = ledger.pay_for(pure(0.5), purpose=purpose, unit=unit, caveats=caveats, **TERMS)
        except InvalidInput:
            assert not ledger.charges()
        else:
            assert read_again(made, folder) == made
        ledger.verify()


@pytest.mark.parametrize("trick", TRICKS)
def test_a_unit_is_refused_or_its_ledger_can_be_read(tmp_path, trick):
    try:
        budget = Budget(epsilon=1, unit=trick)
    except InvalidInput:
        assert visible(trick) != trick
        return
    with Ledger.create(tmp_path / "l.db", budget) as ledger:
        made = ledger.pay_for(pure(0.5), purpose=trick, unit=trick, **TERMS)
        ledger.verify()
    assert read_again(made, tmp_path).unit == trick


@pytest.mark.parametrize("pays", ["ledger", "unrecorded"])
@pytest.mark.parametrize(
    "terms",
    [{"caveats": "one sentence"}, {"caveats": [""]}, {"caveats": [3]}, {"plan": {"a": float("nan")}}],
    ids=str,
)
def test_what_no_certificate_can_state_is_not_charged(tmp_path, pays, terms):
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=1)) as ledger:
        book = ledger if pays == "ledger" else Unrecorded(delta=0)
        with pytest.raises(InvalidInput, match=r"caveats|plan"):
            book.pay_for(pure(0.5), purpose="x", unit="record", **TERMS, **terms)
        assert not ledger.charges()


def test_a_caveat_of_two_lines_is_stated_on_one(tmp_path):
    rows = torch.rand(20, 2), torch.zeros(20, dtype=torch.long)
    terms = {"epsilon": 1, "public_size": 20, "expected_batch": 10, "epochs": 1}
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=2, delta=1e-5)) as ledger:
        for caveats in ("a sentence", ("",)):
            with pytest.raises(InvalidInput, match="caveats"):
                sfumato.train(torch.nn.Linear(2, 2), rows, ledger=ledger, caveats=caveats, **terms)
        assert not ledger.charges()
        sfumato.train(
            torch.nn.Linear(2, 2), rows, ledger=ledger, out=tmp_path / "r", caveats=("one\ntwo",), **terms
        )
    found = Certificate.read(tmp_path / "r" / "release" / "certificate.json")
    assert "one\\x0atwo" in found.caveats


def table(trick: str) -> tuple[Policy, pd.DataFrame]:
    columns = {
        "age": Column(name="age", type="integer", lower=0, upper=100),
        trick: Column(name=trick, type="text"),
        "ill": Column(name="ill", type="text", categories=("yes", "no")),
    }
    budget = Budget(epsilon=10, delta=1e-6)
    policy = Policy(table="people", source="people.csv", columns=columns, budget=budget, public_size=60)
    rng = np.random.default_rng(0)
    data = {"age": rng.integers(0, 100, 60), trick: ["x"] * 60, "ill": rng.choice(["yes", "no"], 60)}
    return policy, pd.DataFrame(data)


@pytest.mark.keeps_out("A release that was paid for and that no command reads, for a character in a name")
@pytest.mark.parametrize(("model", "trick"), [*(("linear", trick) for trick in TRICKS), ("mlp", TRICKS[0])])
def test_a_table_with_such_a_column_is_released_whole(tmp_path, model, trick):
    policy, data = table(trick)
    with Ledger.create(tmp_path / "l.db", policy.budget) as ledger:
        ready = TableTraining.prepare(policy, target="ill", epsilon=1, model=model, leave_out=[trick])
        ready.train(ledger=ledger, out=tmp_path / "run", data=data)
        ledger.verify()
    found = Certificate.read(tmp_path / "run" / "release" / "certificate.json")
    assert f"left out on purpose: {visible(trick)}" in found.caveats
    assert len(sfumato.load(tmp_path / "run").predict(data)) == 60


def test_an_answer_about_such_a_column_is_certified(tmp_path):
    policy, data = table("free\u00a0text")
    budget = replace(policy.budget, unit="person")
    unit = Unit(column="free\u00a0text", rows=2)
    policy = replace(policy, columns={"age": policy.columns["age"]}, unit=unit, budget=budget)
    with Ledger.create(tmp_path / "l.db", budget) as ledger:
        asked = Table(policy, ledger, data=data)
        answer = asked.ask("SELECT COUNT(*) AS n FROM people", epsilon=0.5)
        made = asked.certificate(answer)
    assert read_again(made, tmp_path) == made


@pytest.mark.parametrize("trick", TRICKS)
def test_hidden_characters_survive_json_and_are_seen(trick):
    assert json.loads(visible_json(json.dumps({"a": trick}, ensure_ascii=False))) == {"a": trick}
    assert visible(visible(trick)) == visible(trick)
