"""A policy says everything in public, and nothing it does not understand."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sfumato.errors import InvalidInput
from sfumato.query import draft_policy, load_policy, policy_from_dict

GOOD: dict[str, Any] = {
    "table": {"source": "people.csv"},
    "unit": {"column": "person", "rows": 3},
    "budget": {"epsilon": 1.0},
    "columns": {"age": {"type": "integer", "lower": 0, "upper": 120}},
}


def test_a_policy_is_read_and_files_are_beside_it(tmp_path: Path) -> None:
    text = (
        '[table]\nsource = "data/people.csv"\n[budget]\nepsilon = 2\ndelta = 1e-6\nledger = "l.db"\n'
        '[columns.city]\ntype = "text"\ncategories = ["a", "b"]\n'
    )
    (tmp_path / "p.toml").write_text(text)
    policy = load_policy(tmp_path / "p.toml")
    assert policy.source == str(tmp_path / "data/people.csv")
    assert policy.ledger == str(tmp_path / "l.db")
    assert policy.table == "people"
    assert (policy.budget.epsilon, policy.budget.delta, policy.budget.unit) == (2.0, 1e-6, "record")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": {}}, "tables"),
        ({"table": {"source": "x.csv", "colour": 1}}, "colour"),
        ({"table": {}}, "table.source"),
        ({"budget": {}}, "budget.epsilon"),
        ({"columns": {}}, "at least one column"),
        ({"unit": {"rows": 3}}, "unit.column"),
        ({"unit": {"column": "person", "rows": 0}}, "unit.rows"),
        ({"unit": {"column": "age"}}, "not to be among the columns"),
        ({"columns": {"age": {"type": "number"}}}, "integer, real"),
        ({"columns": {"age": {"lower": 0, "upper": 1}}}, "columns.age.type"),
        ({"columns": {"age": {"type": "integer", "lower": 0}}}, "both lower and upper"),
        ({"columns": {"age": {"type": "integer", "lower": 5, "upper": 5}}}, "lower <"),
        ({"columns": {"age": {"type": "integer", "lower": 0.5, "upper": 5}}}, "whole bounds"),
        ({"columns": {"age": {"type": "real", "lower": 0, "upper": float("inf")}}}, "finite"),
        ({"columns": {"age": {"type": "real", "lower": 0, "upper": 1e300}}}, "2\\*\\*52"),
        ({"columns": {"age": {"type": "text", "lower": 0, "upper": 5}}}, "only numbers"),
        ({"columns": {"age": {"type": "text", "categories": ["a", "a"]}}}, "different values"),
        ({"columns": {"age": {"type": "text", "categories": [1]}}}, "different values"),
        ({"columns": {"age": {"type": "real", "categories": [1.5]}}}, "no categories"),
    ],
)
def test_a_wrong_policy_is_refused_with_the_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        policy_from_dict(GOOD | change)


@pytest.mark.keeps_out("Categories or bounds read off the data")
def test_a_draft_holds_no_value_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "my people.csv"
    pd.DataFrame({"person": [1], "age": [4711], "name": ["Jan Kees"], "ill": [True]}).to_csv(path, index=False)
    draft = draft_policy(path)
    assert "4711" not in draft.text
    assert "Jan Kees" not in draft.text
    assert any("columns.age" in blank and "public" in blank for blank in draft.blanks)
    data = tomllib.loads(draft.text)
    assert data["unit"]["column"] == "person"
    assert {name: column["type"] for name, column in data["columns"].items()} == {
        "age": "integer",
        "name": "text",
        "ill": "boolean",
    }
    (tmp_path / "p.toml").write_text(draft.text)
    assert load_policy(tmp_path / "p.toml").columns["age"].bounds is None


@pytest.mark.parametrize("name", ["PatientID", "patient_id", "Patient No", "ID", "user"])
def test_a_draft_does_not_ask_for_values_of_what_tells_people_apart(tmp_path: Path, name: str) -> None:
    path = tmp_path / "people.csv"
    path.write_text(f"{name},age,ward\n" + "p1,30,heart\n" * 20)
    draft = draft_policy(path)
    assert tomllib.loads(draft.text)["unit"]["column"] == name
    assert not any(f"columns.{name}]" in blank for blank in draft.blanks)
    assert name not in tomllib.loads(draft.text)["columns"]


def test_a_column_that_may_tell_people_apart_is_not_asked_for_categories(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("badge,ward,day\n" + "p1,heart,2024-01-31\n" * 20)
    draft = draft_policy(path)
    assert '# Delete this section if [unit] column is "badge".' in draft.text
    assert [blank for blank in draft.blanks if "categories" in blank] == [
        blank for blank in draft.blanks if "columns.ward" in blank
    ]
    assert any("columns.day] lower and upper" in blank for blank in draft.blanks)
    filled = draft.text.replace("# lower = 2000", "lower = 2000").replace("# upper = 2029", "upper = 2029")
    (tmp_path / "p.toml").write_text(filled)
    assert load_policy(tmp_path / "p.toml").columns["day"].days is not None


@pytest.mark.keeps_out("A draft of a policy whose types one row decides")
def test_no_single_row_decides_the_type_of_a_drafted_column(tmp_path: Path) -> None:
    """A person with an odd value would otherwise turn a column of numbers into one of texts."""
    path = tmp_path / "people.csv"
    header, rows = "person,age,day,ill", ["p,30,2024-01-31,yes"] * 50
    drafts = set()
    for odd in ([], ["p,many,soon,perhaps"], ["p,,,"], ["p,1.5,2024-01-31 09:00,1"]):
        path.write_text("\n".join([header, *rows[:25], *odd, *rows[25:]]) + "\n")
        drafts.add(draft_policy(path).text)
    (text,) = drafts
    assert text.count("# a guess: ") == 3
    assert {name: column["type"] for name, column in tomllib.loads(text)["columns"].items()} == {
        "age": "integer",
        "day": "date",
        "ill": "boolean",
    }
