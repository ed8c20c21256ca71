"""What an answer says of itself, where it can be written, and when it is given again."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from sfumato.errors import InvalidInput
from sfumato.ledger import Head, Ledger
from sfumato.query import Answer, KeptAnswers, Policy, Table, count, policy_from_dict
from sfumato.query.answer import name_of
from sfumato.query.magic import load_ipython_extension
from sfumato.randomness import OWN_NOISE, SecretStream

SQL = "SELECT city, COUNT(*) AS n FROM people GROUP BY city"
PEOPLE = pd.DataFrame({"person": range(100), "age": [30, 40] * 50, "city": ["Delft", "Utrecht"] * 50})


def policy(**table: Any) -> Policy:
    unit = {"column": "person", "rows": table.pop("rows", 5), "groups": 2}
    return policy_from_dict(
        {
            "table": {"name": "people", "source": "people.csv", "version": "1", **table},
            "unit": unit,
            "budget": {"epsilon": 100.0, "delta": 1e-6},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 100},
                "city": {"type": "text", "categories": ["Delft", "Utrecht"]},
            },
        }
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "people.db", budget=policy().budget)


def table(folder: Path, ledger: Ledger, rules: Policy | None = None) -> Table:
    return Table(rules or policy(), ledger, data=PEOPLE, kept=KeptAnswers(folder / "kept"))


def answer(**changes: Any) -> Answer:
    facts = {
        "columns": ("city", "n", "n_low"),
        "rows": (("Delft", 10, 2.5), ("<script>alert(1)</script>", 20, 3.5)),
        "intervals": ((None, (8.0, 12.0), (2.0, 3.0)), (None, (18.0, 22.0), (3.0, 4.0))),
        "epsilon": 0.1,
        "delta": 0.0,
        "epsilon_spent": 0.1,
        "epsilon_left": 0.9,
    }
    return Answer(**(facts | changes))


def test_an_answer_says_that_rows_may_be_left_out(tmp_path: Path, ledger: Ledger) -> None:
    """From the policy alone: here nobody has more than one row."""
    found = table(tmp_path, ledger).ask(SQL, epsilon=1.0)
    assert found.notes == (
        "Each person counts with at most 5 rows, in at most 2 groups; further rows are left out.",
        "Rows whose city is missing or not among its categories are in no group.",
    )
    whole = table(tmp_path, ledger, policy(rows=1)).ask("SELECT COUNT(*) FROM people", epsilon=1.0)
    assert whole.notes == ("Each person counts with at most 1 row; further rows are left out.",)


ALL_ROWS = "Each person counts with one row, made of all its rows."


@pytest.mark.keeps_out("A limit of rows that is said of a query without one")
@pytest.mark.parametrize(
    ("sql", "notes"),
    [
        (
            "SELECT AVG(n) FROM (SELECT person, COUNT(*) AS n, MAX(age) AS age FROM people GROUP BY person)",
            (ALL_ROWS, "n beyond 0 to 5 counts as the nearer end."),
        ),
        ("SELECT AVG(age) FROM (SELECT person, MAX(age) AS age FROM people GROUP BY person)", (ALL_ROWS,)),
        ("SELECT COUNT(*) FROM (SELECT person FROM people GROUP BY person)", (ALL_ROWS,)),
        (
            "SELECT COUNT(*) FROM (SELECT person, LEAST(GREATEST(SUM(age), -4e15), 4e15) AS n FROM people "
            "GROUP BY person) WHERE n > 3",  # a range so wide is no bound
            (ALL_ROWS,),
        ),
        (
            "SELECT COUNT(DISTINCT person) FROM people",
            ("Each person counts once, whatever its number of rows.",),
        ),
        (
            "SELECT COUNT(DISTINCT person), COUNT(*) FROM people",
            ("Each person counts with at most 5 rows; further rows are left out.",),
        ),
    ],
)
def test_a_limit_of_rows_is_said_where_there_is_one(
    tmp_path: Path, ledger: Ledger, sql: str, notes: tuple[str, ...]
) -> None:
    assert table(tmp_path, ledger).ask(sql, epsilon=0.1).notes == notes


def test_intervals_are_columns_of_their_own() -> None:
    found = answer().to_pandas()
    assert list(found.columns) == ["city", "n", "n_low_", "n_high", "n_low", "n_low_low", "n_low_high"]
    assert found["n_low_"].tolist() == [8.0, 18.0]
    assert found["n_high"].tolist() == [12.0, 22.0]
    assert answer().to_arrow().column("n").to_pylist() == [10, 20]
    assert list(answer(rows=(), intervals=()).to_pandas().columns) == ["city", "n", "n_low"]


def test_a_notebook_shows_values_and_runs_none() -> None:
    shown = answer(notes=("<b>",), columns=("<i>", "n", "m"))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert "<td>12</td>" in shown


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_an_answer_is_written_as_the_ending_says(ending: str, tmp_path: Path) -> None:
    place = tmp_path / f"answer.{ending}"
    answer().write(place)
    if ending == "json":
        assert Answer.from_json(json.loads(place.read_text())) == answer()
    else:
        found = pd.read_csv(place) if ending == "csv" else pq.read_table(place).to_pandas()
        pd.testing.assert_frame_equal(found, answer().to_pandas(), check_dtype=False)
    with pytest.raises(InvalidInput, match="new file"):
        answer().write(place)
    with pytest.raises(InvalidInput, match=r"\.csv"):
        answer().write(tmp_path / "answer.xlsx")


def test_the_same_words_cost_nothing_again(tmp_path: Path, ledger: Ledger) -> None:
    people = table(tmp_path, ledger)
    first = people.ask(SQL, epsilon=1.0)
    spent = ledger.epsilon_spent
    second = people.ask(
        "select city,\n count( * ) as n -- how many\nfrom people group by city;", epsilon=1.0, again=True
    )
    assert (second.rows, second.intervals, second.again) == (first.rows, first.intervals, True)
    assert ledger.epsilon_spent == spent
    fresh = people.ask(SQL, epsilon=1.0)  # without again it is another answer, at the same price
    assert ledger.epsilon_spent > spent
    assert people.ask(SQL, epsilon=1.0, again=True).rows == fresh.rows


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "version": ({"version": "2"}, {}),
    "policy": ({"rows": 6}, {}),
    "source": ({"source": "other.csv"}, {}),
    "epsilon": ({}, {"epsilon": 1.5}),
    "delta": ({}, {"delta": 1e-9}),
    "words": ({}, {"query": SQL + " ORDER BY n"}),
}


@pytest.mark.keeps_out("An answer found again by the data's digest, or given again after the data changed")
@pytest.mark.parametrize(("declared", "asked"), CHANGES.values(), ids=CHANGES)
def test_anything_else_is_charged_anew(
    declared: dict[str, Any], asked: dict[str, Any], tmp_path: Path, ledger: Ledger
) -> None:
    question = {"query": SQL, "epsilon": 1.0}
    table(tmp_path, ledger).ask(**question)
    spent = ledger.epsilon_spent
    found = table(tmp_path, ledger, policy(**declared)).ask(**(question | asked), again=True)
    assert not found.again
    assert ledger.epsilon_spent > spent


def test_the_folder_from_which_it_is_asked_makes_no_difference(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    here, there = (policy(source=source) for source in ("people.csv", str(tmp_path / "people.csv")))
    assert name_of(SQL, here, epsilon=1, delta=None) == name_of(SQL, there, epsilon=1.0, delta=None)


def test_without_a_version_nothing_is_kept(tmp_path: Path, ledger: Ledger) -> None:
    rules = policy_from_dict(
        {
            "table": {"name": "people", "source": "people.csv"},
            "unit": {"column": "person"},
            "budget": {"epsilon": 100.0, "delta": 1e-6},
            "columns": {"age": {"type": "integer"}},
        }
    )
    people = table(tmp_path, ledger, rules)
    people.ask("SELECT COUNT(*) FROM people", epsilon=1.0)
    spent = ledger.epsilon_spent
    with pytest.raises(InvalidInput, match="version"):
        people.ask("SELECT COUNT(*) FROM people", epsilon=1.0, again=True)
    assert ledger.epsilon_spent == spent
    assert not (tmp_path / "kept").exists()


def test_kept_answers_are_their_owners_and_never_seeded(tmp_path: Path, ledger: Ledger) -> None:
    seeded = Table(
        policy(),
        ledger,
        data=PEOPLE,
        kept=KeptAnswers(tmp_path / "kept"),
        sampler=SecretStream(test_seed=1),
    )
    seeded.ask(SQL, epsilon=1.0)
    assert not (tmp_path / "kept").exists()
    table(tmp_path, ledger).ask(SQL, epsilon=1.0)
    (kept,) = (tmp_path / "kept").iterdir()
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with pytest.raises(InvalidInput, match="kept"):
        table(tmp_path, ledger).ask(_query(), epsilon=1.0, again=True)


def _query() -> Any:
    from sfumato.query import select

    return select(policy(), count(), by=["city"])


def test_an_answer_survives_a_folder_that_cannot_be_written(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "kept").write_text("a file in the way")
    assert len(table(tmp_path, ledger).ask(SQL, epsilon=1.0).rows) == 2


def test_each_answer_has_a_certificate(tmp_path: Path, ledger: Ledger) -> None:
    people = table(tmp_path, ledger)
    people.ask("SELECT COUNT(*) FROM people", epsilon=0.25)
    found = people.ask(SQL, epsilon=0.5)
    assert found.entry is not None
    certificate = people.certificate(people.ask(SQL, epsilon=0.5, again=True))
    assert certificate.head == found.entry
    assert certificate.verify().pld == pytest.approx(0.5, rel=0.02)
    assert certificate.plan["unit"]["rows"] == 5
    assert found.notes[0] in certificate.caveats
    ledger.verify(certificate=certificate)
    with pytest.raises(InvalidInput, match="the ledger that it was asked under"):
        people.certificate(answer(entry=Head(sequence=found.entry.sequence, hash="ab" * 32)))


class Shell:
    """As much of IPython as a cell magic needs."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[str, Any] = {}

    def register_magic_function(self, function: Any, *, magic_kind: str, magic_name: str) -> None:
        assert magic_kind == "cell"
        self.magics[magic_name] = function


def test_a_notebook_asks_in_a_cell(tmp_path: Path) -> None:
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    place = tmp_path / "people.toml"
    place.write_text(
        '[table]\nsource = "people.csv"\nversion = "1"\n[unit]\ncolumn = "person"\n[budget]\nepsilon = 1.0\n'
        '[columns.age]\ntype = "integer"\nlower = 0\nupper = 100\n'
    )
    shell = Shell()
    load_ipython_extension(shell)
    ask, sql = shell.magics["sfumato"], "SELECT AVG(age) AS age FROM people\n"
    assert ask(f"{place} --epsilon 0.5 --dry-run", sql)[0].column == "age"
    found = ask(f"'{place}' --epsilon 0.5 --into found", sql)
    assert shell.user_ns["found"] is found
    assert "age_low" in found._repr_html_()
    assert ask(f"{place} --epsilon 0.5 --again", sql).rows == found.rows
    with Ledger.open(tmp_path / "people.ledger.db") as ledger:
        assert [charge.purpose for charge in ledger.charges()] == ["query: SELECT AVG(age) AS age FROM people"]
    assert found.epsilon_left == pytest.approx(0.5)
    with pytest.raises(InvalidInput, match="--epsilon"):
        ask(str(place), sql)


class Own(SecretStream):
    """A stream with code of somebody else's."""

    def integers(self, *arguments: Any) -> Any:
        return super().integers(*arguments)


@pytest.mark.parametrize(("sampler", "expected"), [(None, False), (SecretStream(), False), (Own(), True)])
def test_a_sampler_of_ones_own_is_named(ledger: Ledger, sampler: SecretStream | None, expected: bool) -> None:
    people = Table(policy(), ledger, data=PEOPLE, sampler=sampler)
    asked = people.ask(SQL, epsilon=1.0)
    assert (OWN_NOISE in asked.notes) == expected
    assert (OWN_NOISE in people.certificate(asked).caveats) == expected
