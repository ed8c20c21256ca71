"""`sfumato data check` as its users call it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from sfumato.cli import data
from sfumato.errors import InvalidInput, SfumatoError

TEXT = b'person,age,city\np1,34,Delft\n"p2,35,Delft\np3,thirty,Delft\np4,36\np5,37,Paris\np6,38,\xcele\n'
POLICY = (
    '[table]\nsource = "people.csv"\n[unit]\ncolumn = "person"\n[budget]\nepsilon = 1.0\n'
    '[columns.age]\ntype = "integer"\nlower = 0\nupper = 120\n'
    '[columns.city]\ntype = "text"\ncategories = ["Delft", "Paris"]\n'
)


def run(*words: object) -> str:
    app = typer.Typer()
    data.register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    if isinstance(result.exception, SfumatoError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def people(tmp_path: Path) -> Path:
    (tmp_path / "people.csv").write_bytes(TEXT)
    return tmp_path / "people.csv"


def test_what_is_wrong_and_where(people: Path) -> None:
    found = json.loads(run("check", people, "--json"))
    assert (found["rows"], found["dropped"], found["copies"]) == (4, 2, [])
    assert sorted(problem["first"] for problem in found["problems"]) == [[3], [5], [7]]
    assert "--policy" in run("check", people)


def test_with_its_policy_values_are_looked_at_and_a_copy_is_made(people: Path) -> None:
    people.with_suffix(".toml").write_text(POLICY)  # found by its name
    found = json.loads(run("check", people, "--json"))
    where = {problem["what"].split(":")[0]: problem["first"] for problem in found["problems"]}
    assert where["age"] == [4]
    assert where["city"] == [7]
    (copy,) = found["copies"]
    assert pd.read_parquet(copy)["person"].tolist() == ["p1", "p3", "p5", "p6"]
    assert "line 3" in run("check", people)


def test_parquet_and_what_cannot_be_checked(people: Path) -> None:
    pd.DataFrame({"age": [1, 2]}).to_parquet(people.with_suffix(".parquet"))
    found = json.loads(run("check", people.with_suffix(".parquet"), "--json"))
    assert (found["rows"], found["problems"]) == (2, [])
    with pytest.raises(InvalidInput, match=r"\.csv"):
        run("check", people.with_suffix(".xlsx"))


def test_a_data_set_is_fetched_by_its_name_alone() -> None:
    assert json.loads(run("digits", "--json"))["classes"] == 10
