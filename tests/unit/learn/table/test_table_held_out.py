"""Accuracy on private rows of a table that were kept out: parted by coins, paid for, and about unseen rows."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from sfumato.accounting import Budget
from sfumato.datasets import Chosen
from sfumato.datasets.dataset import SEEDED_CHOICE
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.learn import HoldOut
from sfumato.learn.table import TableTraining, held_out
from sfumato.learn.table.evaluation import measure
from sfumato.learn.table.linear import Rows
from sfumato.learn.table.model import Unlearned
from sfumato.ledger import Certificate, Ledger
from sfumato.policy import Unit
from sfumato.randomness import OWN_NOISE, SecretStream


def ready(tables, target="ill", *, model="linear", share=0.5, epsilon=1.0, **more):
    return TableTraining.prepare(
        tables.policy(**more),
        target=target,
        epsilon=20,
        model=model,
        hold_out=HoldOut(share=share, epsilon=epsilon),
    )


@pytest.mark.parametrize(
    ("model", "target"), [("linear", "ill"), ("linear", "stage"), ("boosted", "ill"), ("mlp", "stage")]
)
def test_accuracy_on_rows_kept_out_is_that_on_others_like_them(tables, tmp_path, model, target):
    run = ready(tables, target, model=model).train(data=tables.people(), out=tmp_path / "run")
    others = measure(run.model, pa.Table.from_pandas(tables.people(4000, seed=1)))["test_accuracy"]
    found = run.held_out
    assert found.low <= found.accuracy <= found.high
    assert found.accuracy == pytest.approx(others, abs=0.05)  # 2,000 rows: standard error about .01
    written = json.loads((tmp_path / "run" / "release" / "hold_out.json").read_text())
    assert written["accuracy"] == found.accuracy
    Certificate.from_json(written["certificate"]).verify()


def test_rows_kept_out_are_not_learned_from(tables, monkeypatch):
    """Every row is in one of the two, and the model is made of the others alone."""
    seen = {}
    fit = TableTraining._split

    def split(self, source, sampler):
        seen["kept"], units, seen["held"] = fit(self, source, sampler)
        return seen["kept"], units, seen["held"]

    monkeypatch.setattr(TableTraining, "_split", split)
    ready(tables, share=0.25).train(data=tables.people(), sampler=SecretStream(test_seed=1))
    kept, held = len(seen["kept"].target), len(seen["held"].target)
    assert kept + held == 4000
    assert 800 < held < 1200


class Own(SecretStream):
    """A stream with code of somebody else's."""

    def integers(self, *arguments):
        return super().integers(*arguments)


def test_the_accuracy_tells_of_the_coins_and_the_noise():
    rows = Rows(cells=np.zeros((4, 1), dtype=np.int64), target=np.zeros(4))
    model = SimpleNamespace(scorer=Unlearned(outputs=1))
    terms = {"unit": "record", "epsilon": 1.0, "delta": 1e-5, "ledger": None}
    seeded = held_out.accuracy(model, rows, **terms, sampler=SecretStream(), chosen=Chosen(private=False))
    assert not seeded.certificate.private
    assert SEEDED_CHOICE in seeded.certificate.caveats
    own = held_out.accuracy(model, rows, **terms, sampler=Own(), chosen=Chosen())
    assert OWN_NOISE in own.certificate.caveats


def test_coins_depend_on_no_row():
    rows = Rows(cells=np.arange(40).reshape(20, 2), target=np.arange(20.0))
    other = replace(rows, cells=rows.cells + 7, target=rows.target * 0)
    coins = [held_out.parted(one, 0.5, SecretStream(test_seed=3))[2] for one in (rows, other)]
    assert np.array_equal(*coins)
    kept, held, which = held_out.parted(rows, 0.5, SecretStream(test_seed=3))
    assert np.array_equal(np.flatnonzero(which), held.target)
    assert sorted([*kept.target, *held.target]) == list(range(20))


def test_the_plan_is_for_the_rows_that_are_left(tables):
    assert ready(tables, share=0.25).plan.public_size == 3000
    network = ready(tables, share=0.5, model="mlp").plan
    assert network.expected_batch / network.sample_rate == pytest.approx(2000)


def test_both_are_charged_and_neither_if_there_is_no_room_for_both(tables, tmp_path):
    wanted = ready(tables, epsilon=0.5)
    assert wanted.epsilon < wanted.epsilon_with_hold_out <= wanted.epsilon + 0.5
    with Ledger.open(tmp_path / "small.db", Budget(epsilon=20.1, delta=1e-6)) as small:
        with pytest.raises(BudgetExceeded):
            wanted.train(data=tables.people(), ledger=small)
        assert small.epsilon_spent == 0
    with Ledger.open(tmp_path / "large.db", Budget(epsilon=50, delta=1e-6)) as large:
        run = wanted.train(data=tables.people(), ledger=large)
        assert [charge.purpose for charge in large.charges()] == [
            "linear model of ill from table people",
            "accuracy on records kept out",
        ]
        large.verify(certificate=run.held_out.certificate)


def test_people_with_one_row_each_can_be_kept_out(tables):
    wanted = ready(
        tables,
        model="mlp",
        unit=Unit(column="person", rows=1),
        budget=Budget(epsilon=100, delta=1e-6, unit="person"),
    )
    run = wanted.train(data=tables.people().assign(person=range(4000)))
    assert run.held_out.certificate.unit == "person"


def test_what_right_answers_do_not_describe_is_refused(tables):
    with pytest.raises(InvalidInput, match="a number"):
        ready(tables, "cost")
    with pytest.raises(InvalidInput, match="got up to 3"):
        ready(
            tables,
            unit=Unit(column="person", rows=3),
            budget=Budget(epsilon=100, delta=1e-6, unit="person"),
        )
