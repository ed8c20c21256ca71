"""`sfumato query` as its users call it."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from sfumato.cli import query
from sfumato.errors import BudgetExceeded, InvalidInput, SfumatoError
from sfumato.learn.table import TableTraining
from sfumato.ledger import Certificate, Ledger
from sfumato.query import QueryRefused, load_policy
from sfumato.randomness import SecretStream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = pd.DataFrame({"age": [20, 30, 40, 50] * 250, "city": ["Delft", "Utrecht"] * 500})
    data["ill"] = data.age > 40
    data.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(
        '[table]\nsource = "people.csv"\n[budget]\nepsilon = 1.0\ndelta = 1e-6\n'
        '[columns.age]\ntype = "integer"\nlower = 0\nupper = 100\n'
        '[columns.city]\ntype = "text"\ncategories = ["Delft", "Utrecht"]\n'
    )
    return tmp_path


def run(*words: object, text: str = "") -> str:
    app = typer.Typer()
    query.register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["query", *map(str, words)], input=text)
    if isinstance(result.exception, SfumatoError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_query_prints_one_json_object(folder: Path) -> None:
    sql = "SELECT city, COUNT(*) AS people, AVG(age) AS age FROM people GROUP BY city"
    found = json.loads(run(folder / "people.toml", sql, "--epsilon", 0.5, "--json"))
    assert found["columns"] == ["city", "people", "age"]
    assert [row[0] for row in found["rows"]] == ["Delft", "Utrecht"]
    # 500 each; noise of scale 4 on two numbers reaches 120 with probability e⁻³⁰.
    assert all(abs(row[1] - 500) < 120 for row in found["rows"])
    assert found["intervals"][0][0] is None
    assert found["intervals"][0][1][0] <= found["rows"][0][1] <= found["intervals"][0][1][1]
    assert found["epsilon_spent"] == pytest.approx(0.5, abs=1e-3)
    assert found["epsilon_left"] == pytest.approx(0.5, abs=1e-3)


def test_options_may_come_first(folder: Path) -> None:
    found = json.loads(run("--epsilon", 0.1, "--json", folder / "people.toml", "SELECT COUNT(*) FROM people"))
    assert found["columns"] == ["count(*)"]


def test_a_dry_run_spends_nothing(folder: Path) -> None:
    words = (folder / "people.toml", "SELECT COUNT(*) FROM people", "--epsilon", 0.1, "--dry-run")
    found = json.loads(run(*words, "--json"))
    assert found["expected_errors"][0]["half_width"] == 30  # ⌈10·ln 20⌉, less the middle of a whole number
    assert (found["epsilon_spent"], found["dry_run"]) == (0, True)
    assert "Nothing was spent" in run(*words)


@pytest.mark.parametrize("how", ["--dry-run", "--try"])
def test_a_dry_run_is_refused_where_the_question_would_be(folder: Path, how: str) -> None:
    if how == "--try":
        text = (folder / "people.toml").read_text()
        (folder / "people.toml").write_text(text + '[unit]\ncolumn = "ill"\nrows = 4\n')
    words = (folder / "people.toml", "SELECT COUNT(*) FROM people", "--epsilon")
    with pytest.raises(BudgetExceeded):
        run(*words, 1.5, how)
    run(*words, 0.8)
    run(*words, 0.1, how)
    with pytest.raises(BudgetExceeded):
        run(*words, 0.3, how)


def test_a_table_for_people(folder: Path) -> None:
    shown = run(folder / "people.toml", "SELECT city, COUNT(*) FROM people GROUP BY city", "--epsilon", 0.3)
    assert "Delft" in shown
    assert "95%" in shown


def test_refusals_keep_their_reasons(folder: Path) -> None:
    with pytest.raises(QueryRefused, match="SELECT COUNT"):
        run(folder / "people.toml", "SELECT * FROM people", "--epsilon", 0.1)
    with pytest.raises(InvalidInput, match="--epsilon"):
        run(folder / "people.toml", "SELECT COUNT(*) FROM people")
    with pytest.raises(BudgetExceeded):
        run(folder / "people.toml", "SELECT COUNT(*) FROM people", "--epsilon", 5)


def test_a_conversation_goes_on_after_a_refusal(folder: Path) -> None:
    text = "SELECT * FROM people\n\\epsilon 0.25\nSELECT COUNT(*) AS n FROM people;\n\\left\n\\quit\nSELECT 1\n"
    shown = run(folder / "people.toml", text=text)
    assert "ε 0.25 for this answer" in shown
    assert "Spent 0.25, left 0.75: ε = 1 in all." in shown


def test_init_drafts_and_does_not_overwrite(folder: Path) -> None:
    found = json.loads(run("init", folder / "people.csv", "--out", folder / "draft.toml", "--json"))
    assert Path(found["policy"]).exists()
    assert any("columns.age" in blank for blank in found["fill_in"])
    with pytest.raises(InvalidInput, match="--out"):
        run("init", folder / "people.csv", "--out", folder / "draft.toml")


def test_a_draft_says_who_needs_the_size(folder: Path) -> None:
    """As the reference of the policy does; `train` refuses a policy without it."""
    run("init", folder / "people.csv", "--out", folder / "draft.toml")
    (said,) = [line for line in (folder / "draft.toml").read_text().splitlines() if "public_size" in line]
    assert "train needs it" in said
    with pytest.raises(InvalidInput, match="public_size"):
        TableTraining.prepare(load_policy(folder / "people.toml"), target="city", epsilon=0.5)


@pytest.mark.parametrize("first", ["id;age;city", "id|name", "name"])
def test_a_file_of_one_column_may_be_one_of_several(folder: Path, first: str) -> None:
    (folder / "rows.csv").write_text(f"{first}\nDelft\nUtrecht\n")
    with pytest.raises(InvalidInput, match=r"read as one column.*--delimiter"):
        run("init", folder / "rows.csv")
    (folder / "rows.csv").write_text("id,a;b\n1,Delft\n")
    with pytest.raises(InvalidInput, match=r"(?s)^(?!.*--delimiter)"):
        run("init", folder / "rows.csv")


def test_risk_is_measured(folder: Path) -> None:
    words = ("risk", folder / "people.csv", "--quasi", "age,city", "--sensitive", "ill")
    found = json.loads(run(*words, "--json"))
    assert (found["rows"], found["unique"], found["k"], found["l"]) == (1000, 0, 250, 1)
    assert found["attack"]["certain_one"] == 1.0  # age says who is ill, in whatever groups
    assert "unique in the quasi-identifiers" in run(*words)


def test_help_shows_an_example() -> None:
    assert "sfumato query people.toml" in run("ask", "--help").replace("\n", " ")


def test_an_answer_goes_to_files_with_its_certificate(folder: Path) -> None:
    sql = "SELECT city, COUNT(*) AS people FROM people GROUP BY city"
    places = ("--out", folder / "a.csv", "--certificate", folder / "a.certificate.json")
    run(folder / "people.toml", sql, "--epsilon", 0.5, *places)
    assert list(pd.read_csv(folder / "a.csv").columns) == ["city", "people", "people_low", "people_high"]
    claim = Certificate.read(folder / "a.certificate.json")
    assert claim.verify().pld == pytest.approx(0.5, abs=1e-3)
    for bad in (places, ("--out", folder / "a.docx"), ("--certificate", folder / "none" / "a.json")):
        with pytest.raises(InvalidInput):
            run(folder / "people.toml", sql, "--epsilon", 0.1, *bad)
    with Ledger.open(folder / "people.ledger.db") as ledger:
        assert len(ledger.charges()) == 1


def test_an_answer_is_given_again_for_nothing(folder: Path) -> None:
    text = (folder / "people.toml").read_text()
    (folder / "people.toml").write_text(text.replace("[table]\n", '[table]\nversion = "May"\n'))
    words = (folder / "people.toml", "SELECT COUNT(*) FROM people", "--epsilon", 0.5, "--json")
    first, second = json.loads(run(*words)), json.loads(run(*words, "--again"))
    assert (first["again"], second["again"]) == (False, True)
    assert first["rows"] == second["rows"]
    assert second["epsilon_left"] == pytest.approx(0.5, abs=1e-3)


def test_a_file_without_names_is_drafted_by_numbers(folder: Path) -> None:
    (folder / "rows.csv").write_text("30;Delft\n40;Utrecht\n")
    with pytest.raises(InvalidInput, match="--no-header"):
        run("init", folder / "rows.csv", "--delimiter", ";")
    run("init", folder / "rows.csv", "--delimiter", ";", "--no-header")
    rules = load_policy(folder / "rows.toml")
    assert (list(rules.columns), rules.header, rules.delimiter) == (["c1", "c2"], False, ";")
    found = json.loads(run(folder / "rows.toml", "SELECT COUNT(c1) FROM rows", "--epsilon", 0.9, "--json"))
    assert abs(found["rows"][0][0] - 2) < 40


def test_a_table_of_a_duckdb_file_is_asked(folder: Path) -> None:
    with duckdb.connect(str(folder / "town.duckdb")) as connection:
        connection.execute("CREATE TABLE people AS SELECT i % 100 AS age FROM range(1000) r(i)")
    run("init", folder / "town.duckdb", "--table", "people", "--out", folder / "town.toml")
    found = json.loads(run(folder / "town.toml", "SELECT COUNT(*) FROM people", "--epsilon", 0.5, "--json"))
    assert abs(found["rows"][0][0] - 1000) < 60


def test_a_year_is_no_amount(folder: Path) -> None:
    """A key is printed as it is: 2024 and not 2,024; counts have their commas."""
    days = pd.DataFrame({"day": ["2023-05-01"] * 4000 + ["2024-05-01"] * 4000})
    days.to_csv(folder / "days.csv", index=False)
    (folder / "days.toml").write_text(
        '[table]\nsource = "days.csv"\n[budget]\nepsilon = 100.0\n'
        '[columns.day]\ntype = "date"\nlower = 2023-01-01\nupper = 2024-12-31\n'
    )
    sql = "SELECT EXTRACT(year FROM day) AS year, COUNT(*) AS n FROM days GROUP BY year"
    found = run(folder / "days.toml", sql, "--epsilon", 50)
    assert "2023 " in found
    assert "2024 " in found
    assert "4,000" in found


@pytest.fixture
def visits(folder: Path) -> Path:
    data = pd.DataFrame({"person": range(1000), "days": [1, 2, 3, 900] * 250})
    data.to_csv(folder / "visits.csv", index=False)
    (folder / "visits.toml").write_text(
        '[table]\nsource = "visits.csv"\n[unit]\ncolumn = "person"\nrows = 4\n[budget]\nepsilon = 3.0\n'
        '[columns.days]\ntype = "integer"\n'
    )
    return folder / "visits.toml"


def test_bounds_are_bought_and_can_be_pasted(visits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Seeded: once in a thousand tables an empty cell shows.
    monkeypatch.setattr("sfumato.query.table.SecretStream", lambda: SecretStream(test_seed=1))
    shown = run("bounds", visits, "days", "--epsilon", 1.0)
    # Four values, in cells of 250 and 500 rows, with noise of scale 4.
    assert '[columns.days]\ntype = "integer"\nlower = 0\nupper = 1024\n' in shown
    found = json.loads(run("bounds", visits, "days", "--epsilon", 1.0, "--json"))
    assert (found["lower"], found["upper"], found["found"]) == (0.0, 1024.0, True)
    assert found["epsilon_spent"] == pytest.approx(2.0)
    with pytest.raises(BudgetExceeded):
        run("bounds", visits, "days", "--epsilon", 1.5)


def test_trying_shows_fewer_rows_and_spends_nothing(visits: Path) -> None:
    words = (visits, "SELECT COUNT(*) FROM visits", "--epsilon", 1.0, "--try")
    found = json.loads(run(*words, "--json"))
    assert [(item["rows"], item["left_out"]) for item in found["tries"]] == [
        (1, 0.75), (2, 0.5), (3, 0.25), (4, 0.0),
    ]  # fmt: skip
    assert found["epsilon_spent"] == 0
    assert "best" in run(*words)
    assert "left out" in run(visits, "--epsilon", 1.0, text="\\try SELECT COUNT(*) FROM visits\n")


def test_weights_are_read_and_checked(folder: Path) -> None:
    sql = "SELECT AVG(age) AS age, COUNT_IF(city = 'Delft') AS delft FROM people"
    words = (folder / "people.toml", sql, "--epsilon", 1.0, "--dry-run", "--json")
    even, uneven = (json.loads(run(*words, "--split", split)) for split in ("1,1", "9,1"))
    ages = [item["expected_errors"][0]["half_width"] for item in (even, uneven)]
    assert ages[1] / ages[0] == pytest.approx(0.5 / 0.9)
    for wrong in ("1", "1,2,3", "a,b", "1,-1", ""):
        with pytest.raises(InvalidInput, match="split"):
            run(*words, "--split", wrong)
    with pytest.raises(InvalidInput, match="laplace"):
        run(*words, "--noise", "none")


def test_what_spends_nothing_makes_no_ledger(folder: Path) -> None:
    """A draft that is tried out settles no budget: the policy can be filled in afterwards."""
    (folder / "people.toml").unlink()
    run("init", folder / "people.csv")
    words = (folder / "people.toml", "SELECT COUNT(*) FROM people", "--epsilon", 0.1)
    assert "left 1." in run(*words, "--dry-run")
    run(folder / "people.toml", text="\\left\n\\try SELECT COUNT(*) FROM people\nSELECT AVG(age) FROM people\n")
    with pytest.raises(QueryRefused):
        run(folder / "people.toml", "SELECT AVG(age) FROM people", "--epsilon", 0.1)
    with pytest.raises(BudgetExceeded):
        run(folder / "people.toml", "SELECT COUNT(*) FROM people", "--epsilon", 7)
    assert not (folder / "people.ledger.db").exists()
    text = (folder / "people.toml").read_text()
    (folder / "people.toml").write_text(text.replace("epsilon = 1.0", "epsilon = 4.0"))
    run(*words)
    with Ledger.open(folder / "people.ledger.db") as ledger:
        assert (ledger.budget.epsilon, len(ledger.charges())) == (4.0, 1)
