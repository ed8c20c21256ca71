"""SQL over several holders' tables."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sfumato.cli.app import app
from sfumato.errors import InvalidInput, Refused, SfumatoError
from sfumato.holders import TableStudy
from sfumato.holders.rounds import Lost
from sfumato.ledger import Ledger
from sfumato.query import Table, parse_query
from sfumato.query.apart import Apart
from sfumato.query.reading import QueryRefused

NAMES = ("delft", "leiden", "utrecht", "gouda")
POLICY = """
[table]
name = "people"
source = "{name}.csv"
[unit]
column = "person"
rows = 2
groups = 2
[budget]
epsilon = {epsilon}
delta = 1e-6
[columns.age]
type = "integer"
lower = 0
upper = 120
[columns.income]
type = "real"
lower = 0
upper = 100000
[columns.city]
type = "text"
categories = ["A", "B"]
[columns.street]
type = "text"
"""
STUDY = """
[study]
kind = "query"
name = "four towns"
dropped = 1
colluding = 0
holders_per_unit = {m}
[holders]
"""


def rows(seed, count=2000):
    chance = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "person": np.arange(count) // 2,
            "age": chance.integers(18, 90, count),
            "income": chance.uniform(10_000, 60_000, count),
            "city": chance.choice(["A", "B"], count),
            "street": "x",
        }
    )


@pytest.fixture
def towns(tmp_path):
    for seed, name in enumerate(NAMES):
        rows(seed).to_csv(tmp_path / f"{name}.csv", index=False)
        poor = name == "gouda"
        (tmp_path / f"{name}.toml").write_text(POLICY.format(name=name, epsilon=2.0 if poor else 60.0))
    (tmp_path / "study.toml").write_text(
        STUDY.format(m=1) + "".join(f'{name} = "{name}.toml"\n' for name in NAMES)
    )
    return tmp_path


def spent(folder, name):
    with Ledger.open(folder / f"{name}.ledger.db") as ledger:
        return ledger.epsilon_spent


def test_answers_are_those_of_all_tables_together(towns):
    """Every value within its own interval three times over; each holder pays from its own ledger."""
    study = TableStudy.read(towns / "study.toml")
    sql = "SELECT city, COUNT(*) AS n, AVG(age) AS age, SUM(income) AS income FROM people GROUP BY city"
    found = study.ask(sql, epsilon=1.5)
    whole = pd.concat([rows(seed) for seed in range(4)])
    for row, intervals in zip(found.answer.rows, found.answer.intervals, strict=True):
        own = whole[whole.city == row[0]]
        for value, interval, exact in zip(
            row[1:], intervals[1:], (len(own), own.age.mean(), own.income.sum()), strict=True
        ):
            assert abs(value - exact) < 3.5 * (interval[1] - interval[0]) / 2
            assert interval[0] < value < interval[1]
    assert found.holders == 4
    assert 1.45 < found.against["holder"] <= 1.5
    assert all(1.4 < spent(towns, name) <= 1.5 for name in NAMES)


def test_quantiles_and_spreads(towns):
    study = TableStudy.read(towns / "study.toml")
    found = study.ask("SELECT MEDIAN(age) AS m, STDDEV(age) AS s FROM people", epsilon=40.0)
    ages = pd.concat([rows(seed) for seed in range(4)]).age
    (median, deviation), (interval, _) = found.answer.rows[0], found.answer.intervals[0]
    assert found.holders == 3  # gouda cannot pay, and stays out
    assert not (towns / "gouda.ledger.db").exists()
    assert abs(median - ages.median()) <= 3
    assert interval[0] <= median <= interval[1]
    assert abs(deviation - ages.std()) < 2


def test_what_several_holders_cannot_answer_is_refused_for_nothing(towns):
    study = TableStudy.read(towns / "study.toml")
    for sql in (
        "SELECT street, COUNT(*) FROM people GROUP BY street",
        "SELECT COUNT(DISTINCT street) FROM people",
        "SELECT MAX(age) FROM people",
    ):
        with pytest.raises(QueryRefused):
            study.ask(sql, epsilon=1.0)
    with pytest.raises(InvalidInput, match="nothing was charged"):  # two of four cannot pay so much
        TableStudy.read(towns / "study.toml").ask("SELECT COUNT(*) FROM people", epsilon=70.0)
    assert not list(towns.glob("*.ledger.db")) or all(spent(towns, name) == 0 for name in NAMES)


def test_too_many_lost_holders_stay_charged(towns):
    study = TableStudy.read(towns / "study.toml")
    with pytest.raises(Refused, match="stays charged"):
        study.ask(
            "SELECT COUNT(*) FROM people", epsilon=1.0, losses=lambda number: {1: Lost.INPUT, 2: Lost.INPUT}
        )
    assert spent(towns, "leiden") > 0.9


@pytest.mark.keeps_out("A person with several holders priced as if with one")
def test_a_person_with_two_holders_costs_twice_the_noise(towns):
    sql, widths = "SELECT COUNT(*) FROM people", []
    for m in (1, 2):
        (towns / "study.toml").write_text(
            STUDY.format(m=m) + "".join(f'{name} = "{name}.toml"\n' for name in NAMES)
        )
        low, high = TableStudy.read(towns / "study.toml").ask(sql, epsilon=0.5).answer.intervals[0][0]
        widths.append(high - low)
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.02)


def test_holders_that_declare_other_tables_are_refused(towns):
    text = (towns / "delft.toml").read_text().replace("upper = 120", "upper = 150")
    (towns / "delft.toml").write_text(text)
    with pytest.raises(InvalidInput, match="same table"):
        TableStudy.read(towns / "study.toml")


@pytest.mark.parametrize("wrong", ["[study]\nkind = 'query'", "kind =", STUDY.format(m=0), "[other]\nx = 1"])
def test_files_that_are_no_study(towns, wrong):
    (towns / "study.toml").write_text(wrong)
    with pytest.raises((SfumatoError, TypeError)):
        TableStudy.read(towns / "study.toml")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT city, COUNT(*), AVG(age), SUM(income), STDDEV(income) FROM people GROUP BY city",
        "SELECT MEDIAN(age), COUNT(*) FROM people WHERE income > 20000",
    ],
)
def test_one_person_moves_the_numbers_by_no_more_than_is_priced(towns, sql):
    """Exact numbers with and without a person, at one holder: the L2 distance of each array."""
    policy = TableStudy.read(towns / "study.toml").policies["delft"]
    whole = rows(0, 200)
    for person in (0, 7, 42):
        found = []
        for data in (whole, whole[whole.person != person]):
            apart = Apart(Table(policy, None, data=data), parse_query(sql, policy), 1.0)
            found.append(apart.exact(apart.compiled()))
        for one, other, terms in zip(*found, apart.numbers(), strict=True):
            assert one.shape == other.shape == terms.shape
            assert np.linalg.norm((one - other).ravel()) <= terms.sensitivity * (1 + 1e-12)


def test_the_command(towns):
    def asked(*words):
        return CliRunner().invoke(app, ["query", str(towns / "study.toml"), *map(str, words)])

    done = asked("SELECT COUNT(*) FROM people", "--epsilon", 1, "--json", "--out", towns / "a.csv")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert set(answer["against"]) == {"recipient", "holder", "coordinator", "coalition"}
    assert abs(answer["rows"][0][0] - 8000) < 500
    assert Path(towns / "a.csv").exists()
    assert asked("SELECT COUNT(*) FROM people", "--epsilon", 1, "--dry-run").exit_code != 0
    assert asked("SELECT COUNT(*) FROM people").exit_code != 0
    assert "ε against" in asked("SELECT COUNT(*) FROM people", "--epsilon", 0.1).stdout
