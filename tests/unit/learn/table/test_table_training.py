"""From a policy to a released model, on every engine."""

from __future__ import annotations

import json
from dataclasses import replace

import duckdb
import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfumato.accounting import Budget
from sfumato.errors import (
    BudgetExceeded,
    DataCorrupted,
    DataUnavailable,
    InvalidInput,
    LedgerError,
    RelationMismatch,
)
from sfumato.learn.table import TableTraining, load_table
from sfumato.learn.table.reading import Source, within_bound
from sfumato.ledger import Certificate, Ledger
from sfumato.policy import Unit
from sfumato.randomness import SecretStream


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
