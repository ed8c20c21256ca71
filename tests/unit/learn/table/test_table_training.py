"""From a policy to a released model, on every engine."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import duckdb
import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfumato import PrivateClassifier
from sfumato.accounting import Budget
from sfumato.datasets import Chosen
from sfumato.datasets.dataset import SEEDED_CHOICE
from sfumato.errors import (
    BudgetExceeded,
    DataCorrupted,
    DataUnavailable,
    InvalidInput,
    LedgerError,
    RelationMismatch,
)
from sfumato.learn import HoldOut
from sfumato.learn.table import PrivateRegressor, TableTraining, load_table, run
from sfumato.learn.table.additive import Rows
from sfumato.learn.table.encoding import Source, within_bound
from sfumato.learn.table.model import Unlearned, measure
from sfumato.ledger import Certificate, Ledger
from sfumato.policy import Unit
from sfumato.randomness import OWN_NOISE, SecretStream, public_generator


def trained(tables, target, *, epsilon=20, model="linear", rows=4000, **more):
    ready = TableTraining.prepare(tables.policy(size=rows), target=target, epsilon=epsilon, model=model)
    return ready.train(data=tables.people(rows), **more)


@pytest.fixture
def test_rows(tables, tmp_path):
    tables.people(2000, seed=1).to_csv(tmp_path / "test.csv", index=False)
    return tmp_path / "test.csv"


def test_two_classes_are_learned(tables, test_rows):
    run = trained(tables, "ill", test=test_rows)
    assert run.measured["test_accuracy"] > 0.85  # the truth itself is flipped by noise in about one of ten
    assert run.measured["test_auc"] > 0.93
    assert run.epsilon <= 20


def test_three_classes_are_learned(tables, test_rows):
    run = trained(tables, "stage", test=test_rows)
    assert run.measured.keys() == {"test_accuracy"}
    assert run.measured["test_accuracy"] > 0.7  # the commonest class has less than half


@pytest.mark.parametrize("model", ["linear", "boosted"])
def test_a_number_is_learned(tables, test_rows, model):
    run = trained(tables, "cost", test=test_rows, model=model)
    assert run.measured["test_r2"] > 0.85
    predicted = run.model.predict(pa.Table.from_pandas(tables.people(50)))
    assert ((predicted >= 0) & (predicted <= 10)).all()


def test_only_pairs_of_columns_learn_an_exclusive_or(tables, test_rows):
    columns = {name: tables.columns[name] for name in ("age", "income", "city", "member", "either")}
    alone, pairs = (
        TableTraining.prepare(tables.policy(columns=columns), target="either", epsilon=20, model=model)
        .train(data=tables.people(), test=test_rows)
        .measured["test_accuracy"]
        for model in ("linear", "boosted")
    )
    assert alone < 0.6
    assert pairs > 0.8


def test_a_network_learns_from_a_table(tables, test_rows):
    run = trained(tables, "ill", model="mlp", rows=800, test=test_rows, out=test_rows.parent / "run")
    assert run.measured["test_accuracy"] > 0.7
    assert run.epsilon <= 20
    asked = pa.Table.from_pandas(tables.people(50, seed=2))
    assert np.array_equal(load_table(test_rows.parent / "run").predict(asked), run.model.predict(asked))


def stored(tables, kind, folder):
    frame = tables.people(500)
    place = folder / f"people.{kind}"
    if kind == "csv":
        frame.to_csv(place, index=False)
    elif kind == "parquet":
        frame.to_parquet(place)
    else:
        with duckdb.connect(str(place)) as database:
            database.execute("CREATE TABLE people AS SELECT * FROM frame")
    return tables.policy(source=str(place), size=500)


def seeded(policy):
    ready = TableTraining.prepare(policy, target="ill", epsilon=5, model="linear")
    run = ready.train(sampler=SecretStream(test_seed=1))
    return run.model.scorer.weights


@pytest.mark.parametrize("kind", ["csv", "parquet", "duckdb"])
def test_every_kind_of_file_gives_the_same_model(tables, tmp_path, kind):
    in_memory = TableTraining.prepare(tables.policy(size=500), target="ill", epsilon=5)
    expected = in_memory.train(data=tables.people(500), sampler=SecretStream(test_seed=1)).model.scorer.weights
    assert np.array_equal(seeded(stored(tables, kind, tmp_path)), expected)


def test_postgresql_gives_the_same_model(tables, postgres_url):
    pytest.importorskip("psycopg", reason="pip install 'sfumato[postgres]'")
    ibis.connect(postgres_url).create_table("people", tables.people(500), overwrite=True)
    in_memory = TableTraining.prepare(tables.policy(size=500), target="ill", epsilon=5)
    expected = in_memory.train(data=tables.people(500), sampler=SecretStream(test_seed=1)).model.scorer.weights
    assert np.array_equal(seeded(tables.policy(source=postgres_url, size=500)), expected)


def test_the_ledger_pays_before_a_row_is_read(tables, tmp_path, monkeypatch):
    ready = TableTraining.prepare(tables.policy(size=300), target="ill", epsilon=1)
    spent = []
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1.5, delta=1e-6)) as ledger:
        read = Source.read
        monkeypatch.setattr(Source, "read", lambda self: spent.append(ledger.epsilon_spent) or read(self))
        run = ready.train(ledger=ledger, data=tables.people(300))
        assert spent == [pytest.approx(run.epsilon)]
        assert run.certificate.verify().pld == pytest.approx(run.epsilon, rel=1e-3)
        with pytest.raises(BudgetExceeded):
            ready.train(ledger=ledger, data=tables.people(300))
        assert len(spent) == 1


def test_seeded_noise_is_not_private(tables, tmp_path):
    ready = TableTraining.prepare(tables.policy(size=300), target="ill", epsilon=1)
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=3, delta=1e-6)) as ledger:
        run = ready.train(ledger=ledger, data=tables.people(300), sampler=SecretStream(test_seed=0))
        assert not run.certificate.private
        assert not ledger.private


@pytest.mark.parametrize(
    ("model", "target"), [("linear", "ill"), ("boosted", "stage"), ("boosted", "cost"), ("mlp", "cost")]
)
def test_a_model_comes_back_from_its_folder(tables, tmp_path, model, target):
    run = trained(tables, target, model=model, rows=200, out=tmp_path / "run")
    asked = pa.Table.from_pandas(tables.people(50, seed=2))
    back = load_table(tmp_path / "run")
    assert np.array_equal(back.predict(asked), run.model.predict(asked))
    assert Certificate.read(tmp_path / "run" / "release" / "certificate.json").verify().pld <= 20
    with pytest.raises(InvalidInput, match="without a finished run"):
        trained(tables, target, model=model, rows=200, out=tmp_path / "run")


def test_a_damaged_model_is_refused(tables, tmp_path):
    trained(tables, "ill", rows=200, out=tmp_path / "run")
    place = tmp_path / "run" / "release" / "model.safetensors"
    whole = place.read_bytes()
    for damaged in (b"", whole[:-9], whole.replace(b"table model 1", b"table model 9"), b"{}" * 40):
        place.write_bytes(damaged)
        with pytest.raises(DataCorrupted, match="to be a model of a table"):
            load_table(tmp_path / "run")
    with pytest.raises(DataUnavailable):
        load_table(tmp_path / "nowhere")


@pytest.mark.keeps_out("A model whose bounds, categories or size are read off the table")
def test_what_the_policy_lacks_is_refused_before_anything_is_spent(tables):
    with pytest.raises(InvalidInput, match=r"public_size in the policy's \[table\]"):
        TableTraining.prepare(tables.policy(size=None), target="ill", epsilon=1)
    without_delta = tables.policy(budget=Budget(epsilon=1))
    with pytest.raises(InvalidInput, match=r"delta > 0 in the policy's \[budget\]"):
        TableTraining.prepare(without_delta, target="ill", epsilon=1)
    with pytest.raises(InvalidInput, match="linear, boosted, mlp"):
        TableTraining.prepare(tables.policy(), target="ill", epsilon=1, model="forest")


def test_at_most_so_many_rows_of_a_person_count_and_none_of_nobody():
    people = pa.chunked_array([["ann", "bob", "ann", None, "ann", "bob"]])
    kept = within_bound(people, 2, SecretStream())
    assert sorted(np.array(people.to_pylist(), dtype=object)[kept]) == ["ann", "ann", "bob", "bob"]
    assert within_bound(people.slice(0, 0), 2, SecretStream()).tolist() == []


def test_several_rows_a_person_cost_noise_in_proportion(tables):
    frame = tables.people(400).assign(person=np.arange(400) % 80)
    unit = Unit(column="person", rows=5)
    policy = tables.policy(size=400, unit=unit, budget=Budget(epsilon=9, delta=1e-6, unit="person"))
    ready = TableTraining.prepare(policy, target="ill", epsilon=1)
    assert ready.plan.rows_per_unit == 5
    run = ready.train(data=frame)
    assert (run.certificate.unit, run.certificate.plan["rows_per_unit"]) == ("person", 5)
    network = TableTraining.prepare(policy, target="ill", epsilon=1, model="mlp")
    assert (network.plan.rows_per_unit, network.plan.unit) == (5, "person")


def test_rows_without_a_known_target_count_nowhere(tables):
    frame = tables.people(300)
    more = tables.people(50, seed=3).assign(ill=None)
    both = pd.concat([frame, more], ignore_index=True)
    both["ill"] = both["ill"].astype("boolean")
    ready = TableTraining.prepare(tables.policy(size=300), target="ill", epsilon=5)
    runs = [ready.train(data=data, sampler=SecretStream(test_seed=4)) for data in (frame, both)]
    assert np.array_equal(runs[0].model.scorer.weights, runs[1].model.scorer.weights)


def test_the_result_says_what_was_left_out_and_nothing_of_the_rows(tables, tmp_path):
    policy = tables.policy(size=200, columns=tables.undeclared)
    ready = TableTraining.prepare(policy, target="ill", epsilon=5, leave_out=["note", "weight"])
    run = ready.train(data=tables.people(200), out=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "release" / "result.json").read_text())
    assert result["left_out"] == ["note", "weight"]
    assert "left out on purpose: note, weight" in run.certificate.caveats
    assert set(result) >= {"kind", "format", "epsilon", "delta", "left_out"}
    assert result["test_accuracy"] is None


def test_an_empty_table_gives_a_model_of_noise(tables):
    empty = tables.people(1).iloc[:0]
    ready = TableTraining.prepare(tables.policy(size=100), target="ill", epsilon=1, model="boosted")
    run = ready.train(data=empty)
    assert run.model.predict_proba(pa.Table.from_pandas(tables.people(5))).shape == (5, 2)


@pytest.mark.keeps_out("A model whose bounds, categories or size are read off the table")
def test_plans_do_not_depend_on_the_rows(tables):
    ready = TableTraining.prepare(tables.policy(size=300), target="ill", epsilon=1)
    plans = [ready.train(data=tables.people(rows)).plan for rows in (10, 300)]
    assert plans[0] == plans[1] == replace(plans[0])


def test_a_ledger_of_other_data_or_people_is_refused_before_anything_is_spent(tables, tmp_path):
    ready = TableTraining.prepare(tables.policy(size=300, dataset="people-2026"), target="ill", epsilon=1)
    budget = Budget(epsilon=3, delta=1e-6)
    with (
        Ledger.create(tmp_path / "other.db", budget, dataset="visits-2026") as ledger,
        pytest.raises(LedgerError, match="visits-2026"),
    ):
        ready.train(ledger=ledger, data=tables.people(300))
    with (
        Ledger.create(tmp_path / "unit.db", replace(budget, unit="visit"), dataset="people-2026") as ledger,
        pytest.raises(RelationMismatch),
    ):
        ready.train(ledger=ledger, data=tables.people(300))


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
    seeded = run.accuracy_on(model, rows, **terms, sampler=SecretStream(), chosen=Chosen(private=False))
    assert not seeded.certificate.private
    assert SEEDED_CHOICE in seeded.certificate.caveats
    own = run.accuracy_on(model, rows, **terms, sampler=Own(), chosen=Chosen())
    assert OWN_NOISE in own.certificate.caveats


def test_coins_depend_on_no_row():
    rows = Rows(cells=np.arange(40).reshape(20, 2), target=np.arange(20.0))
    other = replace(rows, cells=rows.cells + 7, target=rows.target * 0)
    coins = [run.parted(one, 0.5, SecretStream(test_seed=3))[2] for one in (rows, other)]
    assert np.array_equal(*coins)
    kept, held, which = run.parted(rows, 0.5, SecretStream(test_seed=3))
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


DRAW = public_generator(0)
X = DRAW.uniform([0, -50], [1, 50], (2000, 2))
Y = X[:, 0] - X[:, 1] / 50
KNOWN = {"bounds": ([0, -50], [1, 50]), "target_bounds": (-1, 2), "public_size": 2000}


def test_a_number_is_learned_and_charged(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=6, delta=1e-5)) as ledger:
        model = PrivateRegressor(epsilon=5, ledger=ledger, **KNOWN).fit(X, Y)
        assert ledger.epsilon_spent == pytest.approx(model.epsilon_)
    assert model.score(X, Y) > 0.85
    assert model.predict([[np.nan, 9e9]]).shape == (1,)


def test_nothing_is_read_off_the_data():
    """One person far beyond the bounds is clipped, whoever they are."""
    model = PrivateRegressor(epsilon=1, **KNOWN).fit(np.vstack([X, [1e30, -1e30]]), np.append(Y, 1e30))
    assert ((model.predict(X) >= -1) & (model.predict(X) <= 2)).all()


def test_bounds_that_do_not_fit_the_columns_are_refused():
    with pytest.raises(InvalidInput, match="one a column"):
        PrivateRegressor(**(KNOWN | {"bounds": ([0, 0, 0], [1, 1, 1])})).fit(X, Y)


def test_a_classifier_takes_bounds_of_each_column():
    model = PrivateClassifier(classes=(0, 1), public_size=8, bounds=([0, -50], [1, 50]))
    model.bounds_ = model.bounds
    assert model._scaled(np.array([[0, 50], [0.5, 0], [7, -99]])).tolist() == [[-1, 1], [0, 0], [1, -1]]
