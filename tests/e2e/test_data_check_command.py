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


def sentinels(found: dict) -> dict[str, int]:
    """Values that were named, with their counts."""
    return {
        one["what"].split(", which")[0]: one["lines"] for one in found["problems"] if "many rows" in one["what"]
    }


@pytest.mark.keeps_out("A 999 among ages that counts as the upper bound, unnoticed")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_values_outside_what_is_declared_that_many_rows_share_are_named(tmp_path: Path, ending: str) -> None:
    """999, -1, 1900-01-01 and n/a stand for something else; 200 different ages beyond the bounds do not."""
    rows = 400
    table = pd.DataFrame(
        {
            "person": [f"p{row}" for row in range(rows)],
            "age": [999] * 40 + [-1] * 30 + [20 + row % 80 for row in range(rows - 70)],
            "income": [float(row) * 1000.5 for row in range(rows)],
            "born": ["1900-01-01"] * 25 + ["1980-02-03"] * (rows - 25),
            "city": ["n/a"] * 12 + ["Delft"] * (rows - 12),
            "job": ["\x1b[2Junknown"] * 6 + ["Unknown"] * 9 + ["nurse"] * (rows - 15),
        }
    )
    place = tmp_path / f"people.{ending}"
    if ending == "csv":
        table.to_csv(place, index=False)
    else:
        table.assign(born=pd.to_datetime(table["born"]).dt.date).to_parquet(place)
    (tmp_path / "people.toml").write_text(
        POLICY.replace("people.csv", place.name)
        + '[columns.income]\ntype = "real"\nlower = 0\nupper = 200000\n[columns.job]\ntype = "text"\n'
        + '[columns.born]\ntype = "date"\nlower = 1920-01-01\nupper = 2020-01-01\n'
    )
    found = json.loads(run("check", place, "--json"))
    assert sentinels(found) == {
        "age: 999": 40,
        "age: -1": 30,
        "born: 1900-01-01": 25,
        'city: "n/a"': 12,
        'job: "Unknown"': 9,
    }
    counts = {one["what"]: one["lines"] for one in found["problems"]}
    assert counts["age: outside 0 to 120, counted as the nearer bound"] == 70
    assert (
        counts["income: outside 0 to 200000, counted as the nearer bound"] == 200
    )  # above 200,000: 200 to 399
    assert "\x1b" not in run("check", place)


def test_a_sentinel_that_the_policy_calls_missing_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("person,age,city\n" + "p,999,Delft\n" * 50)
    (tmp_path / "people.toml").write_text(POLICY.replace("[unit]", 'missing = ["", "999"]\n[unit]'))
    found = json.loads(run("check", tmp_path / "people.csv", "--json"))
    assert found["problems"] == []
