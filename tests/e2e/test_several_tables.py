"""Commands on a policy of several tables: which table is meant, and how many rows of a person in it count."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidInput
from sfumato.policy import load_policy
from sfumato.randomness import public_generator

POLICY = """
[unit]
column = "person"
rows = 4

[budget]
epsilon = 30.0
delta = 1e-6

[tables.people]
source = "people.csv"
unit = "id"
rows = 1
public_size = 2000

[tables.people.columns.age]
type = "integer"
lower = 0
upper = 99

[tables.people.columns.ill]
type = "boolean"

[tables.visits]
source = "visits.csv"
rows = 3
public_size = 5000

[tables.visits.columns.cost]
type = "real"
lower = 0
upper = 1000

[tables.visits.columns.urgent]
type = "boolean"

[tables.visits.columns.age]
type = "integer"
lower = 0
upper = 99

[synthesis]
impossible = [{cost = {upper = 300}, urgent = true}, {age = {upper = 15}, ill = true}]
"""


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    draw = public_generator(3)
    age = draw.integers(20, 60, 2000)
    people = pd.DataFrame({"id": np.arange(2000), "age": age, "ill": age > 40})
    people.to_csv(tmp_path / "people.csv", index=False)
    cost = draw.uniform(100, 700, 5000)
    visits = pd.DataFrame(
        {"person": draw.integers(0, 2000, 5000), "cost": cost, "urgent": cost > 400, "age": 3}
    )
    visits.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "clinic.toml").write_text(POLICY)
    return tmp_path / "clinic.toml"


def test_one_table_has_its_own_rows_and_the_budget_of_all(clinic: Path) -> None:
    every = load_policy(clinic)
    visits = every.one_table("VISITS")
    assert (visits.table, visits.unit.column, visits.unit.rows, visits.public_size) == (
        "visits",
        "person",
        3,
        5000,
    )
    assert (every.one_table().table, every.one_table().unit.rows) == ("people", 1)
    assert every.one_table(having=["cost"]).table == "visits"
    assert (visits.budget, visits.ledger) == (every.budget, every.ledger)
    assert [set(each) for each in visits.synthesis["impossible"]] == [{"cost", "urgent"}]
    with pytest.raises(InvalidInput, match="people, visits"):
        every.one_table("wards")
    with pytest.raises(InvalidInput, match="--table"):
        every.one_table(having=["age"])
    with pytest.raises(InvalidInput, match=r"people has age, ill; visits has cost, urgent, age$"):
        every.one_table(having=["agee"])
    with pytest.raises(InvalidInput, match="all of them"):
        every.one_table(having=["ill", "cost"])


def test_bounds_are_found_in_any_table(clinic: Path, sfumato) -> None:
    words = ("--epsilon", "1", "--json")
    for column in (["cost"], ["visits.cost"], ["cost", "--table", "visits"]):
        found = json.loads(sfumato("query", "bounds", clinic, *column, *words)[1])
        assert (found["table"], found["upper"]) == ("visits", 1024.0)
    assert "[tables.visits.columns.cost]" in sfumato("query", "bounds", clinic, "cost", "--epsilon", "1")[1]
    code, _, said = sfumato("query", "bounds", clinic, "age", "--epsilon", "1")
    assert (code, "people and in visits" in said) == (2, True)


def test_bounds_hide_as_many_rows_as_the_table_lets_count(clinic: Path, sfumato) -> None:
    """Noise for three visits, not for one row of people nor for the four of a join."""
    from sfumato.query.magnitudes import magnitudes, table_and_column

    for name, rows in (("cost", 3), ("people.age", 1)):
        policy, column = table_and_column(name, load_policy(clinic))
        assert magnitudes(column, policy).sensitivity(policy.unit) == rows


def test_a_model_is_trained_on_the_table_that_has_the_target(clinic: Path, sfumato, tmp_path: Path) -> None:
    words = ("--epsilon", "2", "--json")
    priced = json.loads(sfumato("train", clinic, "--target", "urgent", "--dry-run", *words)[1])
    assert priced["table"] == "visits"
    assert priced["epsilon_left_after"] < priced["epsilon_left"]
    said = sfumato("train", clinic, "--target", "urgent", "--dry-run", "--epsilon", "2")[1]
    assert "It fits. Nothing was spent" in said
    out = tmp_path / "model"
    found = json.loads(sfumato("train", clinic, "--target", "urgent", "--out", out, *words)[1])
    assert found["table"] == "visits"
    assert found["epsilon_left"] == pytest.approx(priced["epsilon_left_after"])
    plan = json.loads((out / "release" / "plan.json").read_text())
    assert (plan["rows_per_unit"], plan["public_size"]) == (3, 5000)
    for target, offered in (("cost", False), ("ill", True)):  # a number of several visits, a class of one row
        said = sfumato("train", clinic, "--target", target, "--epsilon", "0.05", "--out", tmp_path / target)[1]
        assert "not measured; give public rows as --test-data" in said
        assert ("--hold-out" in said) == offered
    code, _, said = sfumato("train", clinic, "--table", "people", "--target", "cost", *words)
    assert (code, "tables.people.columns.cost" in said) == (2, True)
    code, _, said = sfumato(
        "train", clinic, "--target", "ill", "--test-data", clinic.with_name("visits.csv"), *words
    )
    assert (code, "own table" in said) == (2, True)  # private rows of another table are no public ones


def test_a_synthetic_table_is_of_the_named_one(clinic: Path, sfumato) -> None:
    pytest.importorskip("mbi")
    out = clinic.with_name("s.csv")
    words = ("--rows", "300", "--epsilon", "5", "--out", out, "--json")
    code, text, said = sfumato("synthesize", clinic, "--table", "visits", *words)
    assert code == 0, said
    assert "visits is drawn" in said
    assert json.loads(text)["table"] == "visits"
    made = pd.read_csv(out)
    assert list(made) == ["cost", "urgent", "age"]
    certificate = json.loads(clinic.with_name("s.certificate.json").read_text())
    assert certificate["plan"]["rows"] == 3


def test_a_file_is_checked_against_its_own_table(clinic: Path, sfumato) -> None:
    check = ("data", "check", clinic.with_name("visits.csv"), "--policy", clinic, "--json")
    found = json.loads(sfumato(*check)[1])
    assert (found["table"], found["problems"]) == ("visits", [])
    copy = clinic.with_name("copy.csv")
    copy.write_bytes(clinic.with_name("visits.csv").read_bytes())
    code, _, said = sfumato("data", "check", copy, "--policy", clinic)
    assert (code, "--table" in said) == (2, True)
    named = json.loads(sfumato("data", "check", copy, "--policy", clinic, "--table", "visits", "--json")[1])
    assert named["table"] == "visits"
