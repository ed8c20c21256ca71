"""Answers: charged first, shaped by the policy alone, and never stopped by a row."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import epsilon
from sfumato.errors import BudgetExceeded, DataError, InvalidInput, TooMuchNoise
from sfumato.ledger import Ledger
from sfumato.query import (
    Policy,
    QueryRefused,
    Table,
    count,
    load_policy,
    mean,
    median,
    parse_query,
    policy_from_dict,
)
from sfumato.query.engines import Engine, open_engine
from sfumato.randomness import SecretStream

COLUMNS = {
    "age": {"type": "integer", "lower": 0, "upper": 100},
    "income": {"type": "real", "lower": 0, "upper": 1000},
    "city": {"type": "text", "categories": ["Delft", "Utrecht", "Nowhere"]},
    "town": {"type": "text"},
    "born": {"type": "date"},
    "smoker": {"type": "boolean"},
}


def policy(source: str = "people.csv", *, epsilon: float = 1e6, delta: float = 1e-5, **unit: Any) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "people", "source": source},
            "unit": unit,
            "budget": {"epsilon": epsilon, "delta": delta},
            "columns": COLUMNS,
        }
    )


def people(rows: int = 400) -> pd.DataFrame:
    i = np.arange(rows)
    return pd.DataFrame(
        {
            "person": i,
            "age": i % 101,
            "income": i * 2.5 % 1000,
            "city": np.where(i % 4 == 0, "Delft", "Utrecht"),
            "town": np.where(i == 0, "only one lives here", np.where(i % 2 == 0, "x", "y")),
            "born": pd.to_datetime("2000-01-01") + pd.to_timedelta(i, unit="D"),
            "smoker": i % 3 == 0,
        }
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger.db", budget=policy().budget)


@pytest.fixture
def pure_ledger(tmp_path: Path) -> Ledger:
    """Adds ε to ε, which is quick whatever the ε."""
    return Ledger.open(tmp_path / "pure.db", budget=policy(delta=0.0).budget)


# With so much ε there is next to no noise, so that answers can be compared with pandas.
PLENTY = 2000.0


def test_answers_agree_with_pandas_when_noise_vanishes(pure_ledger: Ledger) -> None:
    data = people()
    sql = (
        "SELECT city, COUNT(*) n, SUM(income) s, AVG(age) a, STDDEV(age) d, MEDIAN(age) m FROM people "
        "WHERE NOT smoker AND born >= '2000-02-01' AND town LIKE 'x%' GROUP BY city ORDER BY n DESC LIMIT 2"
    )
    answer = Table(policy(), pure_ledger, data=data).ask(sql, epsilon=PLENTY)
    kept = data[~data.smoker & (data.born >= "2000-02-01") & (data.town == "x")]
    assert answer.columns == ("city", "n", "s", "a", "d", "m")
    for row, interval in zip(answer.rows, answer.intervals, strict=True):
        group = kept[kept.city == row[0]]
        assert row[1] == len(group)
        assert row[2] == pytest.approx(group.income.sum(), abs=60)
        assert row[3] == pytest.approx(group.age.mean(), abs=0.1)
        assert row[4] == pytest.approx(group.age.std(), abs=0.2)
        assert row[5] == group.age.median()
        assert interval[0] is None
        assert all(low <= high for low, high in interval[1:])  # type: ignore[misc]
    assert answer.rows[0][1] > answer.rows[1][1]


def test_every_public_group_is_in_the_answer(ledger: Ledger) -> None:
    answer = Table(policy(), ledger, data=people()[:0]).ask(
        "SELECT city, smoker, AVG(age) FROM people GROUP BY city, smoker", epsilon=1.0
    )
    keys = [row[:2] for row in answer.rows]
    assert keys == [(city, smoker) for city in COLUMNS["city"]["categories"] for smoker in (False, True)]
    # Nothing is known of an empty group, unless its noisy count is surely positive: 2.5 in 100 times. That all
    # but one of six and more are has a chance below 1e-7.
    assert len(keys) >= 6
    assert sum(interval[2] == (0.0, 100.0) for interval in answer.intervals) >= 2


def test_private_keys_are_shown_only_when_many_have_them(ledger: Ledger) -> None:
    table = Table(policy(), ledger, data=people(), sampler=SecretStream(test_seed=1))  # δ is 1e-8 here
    answer = table.ask("SELECT town, COUNT(*) FROM people GROUP BY town", epsilon=1.0)
    assert [row[0] for row in answer.rows] == ["x", "y"]
    assert answer.delta == 1e-5 / 1000


@pytest.mark.keeps_out("More groups than memory holds, where groups are not declared")
def test_private_keys_that_are_not_shown_are_not_held(ledger: Ledger) -> None:
    """Of 25,000 keys that one person each has, and one that many have, the rows of one leave the engine."""
    rows = people(400)
    rows["town"] = "many"
    single = pd.concat([people(400)] * 63).reset_index(drop=True)[:25_000]
    single["town"] = [f"of one {place}" for place in range(len(single))]
    table = Table(policy(), ledger, data=pd.concat([rows, single]))
    sql = "SELECT town, COUNT(*), MEDIAN(age) FROM people GROUP BY town"
    ready = table.ready(table.plan(sql, epsilon=1.0, delta=1e-9))
    assert max(map(len, table._connected().batches(ready.compiled.sums))) == 10_000
    exact = table.read(ready, table._charge(ready.planned.price, "query: keys"))
    assert exact.groups == [("many",)]
    assert [row["key0"] for row in exact.sums] == ["many"]
    assert {row["key0"] for _, found in exact.cells for row in found} == {"many"}


def test_private_keys_need_a_delta(tmp_path: Path) -> None:
    rule = policy(delta=0.0)
    table = Table(rule, Ledger.open(tmp_path / "pure.db", budget=rule.budget), data=people())
    with pytest.raises(QueryRefused, match="categories"):
        table.ask("SELECT town, COUNT(*) FROM people GROUP BY town", epsilon=1.0)


def test_python_asks_the_same_as_sql(pure_ledger: Ledger) -> None:
    table = Table(policy(), pure_ledger, data=people())
    built = table.select(count(), mean("age"), median("age"), by=["city"], where="age >= 18", epsilon=PLENTY)
    asked = table.ask(
        "SELECT city, COUNT(*), AVG(age), MEDIAN(age) FROM people WHERE age >= 18 GROUP BY city", epsilon=PLENTY
    )
    for one, other in zip(built.rows, asked.rows, strict=True):
        assert one[:2] == other[:2]
        assert one[2:] == pytest.approx(other[2:], abs=0.1) or one[0] == "Nowhere"
    with pytest.raises(QueryRefused, match="no column height"):
        table.select(mean("height"), epsilon=1.0)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*), AVG(age), SUM(income), MEDIAN(age) FROM people",
        "SELECT city, STDDEV(income), COUNT(DISTINCT person) FROM people GROUP BY city",
        "SELECT town, QUANTILE(income, 0.9) FROM people GROUP BY town",
    ],
)
def test_the_event_costs_what_was_asked(sql: str) -> None:
    """The charge is the ε asked for, never more, and no less than what doubles lose."""
    rule = policy(column="person", rows=3, groups=2)
    cost = Table(rule, None).plan(parse_query(sql, rule), epsilon=0.7).price
    if cost.delta:
        assert epsilon(cost.event(), 1e-5) <= 0.7
    else:
        assert 0.7 * (1 - 1e-9) <= epsilon(cost.event(), 0.0) <= 0.7 * (1 + 1e-12)


class _Broken(Engine):
    """An engine that fails as engines do: with a private row in its message."""

    def fetch(self, text: str) -> list[dict[str, Any]]:
        class Connection:
            @property
            def con(self) -> Any:
                raise ValueError("could not cast 'Jan Kees, 97' to integer")

        return Engine("duckdb", Connection(), self.raw).fetch(text)


@pytest.mark.keeps_out("Errors that depend on private data")
def test_charged_before_the_data_is_touched_and_errors_tell_nothing(ledger: Ledger) -> None:
    good = open_engine(policy(), data=people())
    table = Table(policy(), ledger, engine=_Broken(good.name, good.connection, good.raw))
    with pytest.raises(DataError) as error:
        table.ask("SELECT COUNT(*) FROM people", epsilon=0.5)
    assert "Jan Kees" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__context__ is None
    assert ledger.epsilon_spent == pytest.approx(0.5, rel=1e-3)


def test_a_refused_charge_leaves_the_data_alone(tmp_path: Path) -> None:
    rule = policy(epsilon=1.0)
    good = open_engine(rule, data=people())
    table = Table(
        rule,
        Ledger.open(tmp_path / "small.db", budget=rule.budget),
        engine=_Broken(good.name, good.connection, good.raw),
    )
    with pytest.raises(BudgetExceeded) as refusal:
        table.ask("SELECT COUNT(*) FROM people", epsilon=1.5)
    assert refusal.value.epsilon_spent == 0


def test_a_dry_run_spends_and_reads_nothing(ledger: Ledger) -> None:
    expected = Table(policy(), ledger).dry_run("SELECT COUNT(*), SUM(income) FROM people", epsilon=0.4)
    # ln 20 = 2.996: half widths of Laplace noise of scale 1/0.2 for the count and 1000/0.2 for the sum.
    assert expected[0].half_width in (14, 15)
    assert expected[1].half_width == pytest.approx(14_979, abs=1)
    assert ledger.epsilon_spent == 0


def sized(rows: int | None) -> Policy:
    return replace(policy(), public_size=rows)


HOPELESS = [
    ("SELECT COUNT(*) AS n FROM people", 0.002, 1000),
    ("SELECT SUM(income) AS n FROM people", 0.002, 1000),
    ("SELECT AVG(age) AS n FROM people", 0.002, 1000),
    ("SELECT STDDEV(age) AS n FROM people", 0.001, 1000),
    ("SELECT MEDIAN(age) AS n FROM people", 0.01, 1000),
    ("SELECT city, COUNT(*) AS n FROM people GROUP BY city", 0.1, 60),  # three public groups
    ("SELECT town, COUNT(*) AS n FROM people GROUP BY town", 0.05, 60),  # one that holds everybody, at best
]


@pytest.mark.parametrize(("sql", "epsilon", "rows"), HOPELESS)
def test_an_answer_that_will_be_noise_is_told_of_from_what_is_declared(sql, epsilon, rows) -> None:
    table = Table(sized(rows), None)  # with no rows at hand that it could be read from
    with pytest.warns(TooMuchNoise, match=r"practically nothing: n \(± .*ask with a larger epsilon"):
        table.dry_run(sql, epsilon=epsilon)


@pytest.mark.parametrize(("sql", "epsilon", "rows"), HOPELESS)
def test_nobody_is_warned_of_what_can_be_read(sql, epsilon, rows, recwarn) -> None:
    Table(sized(rows), None).dry_run(sql, epsilon=100 * epsilon)
    Table(sized(1000 * rows), None).dry_run(sql, epsilon=epsilon)
    Table(sized(None), None).dry_run(sql, epsilon=epsilon)  # a size that nobody declared
    assert [each for each in recwarn if each.category is TooMuchNoise] == []


@pytest.mark.filterwarnings("error::sfumato.errors.TooMuchNoise")
def test_the_warning_comes_before_the_charge(ledger: Ledger) -> None:
    with pytest.raises(TooMuchNoise):
        Table(sized(400), ledger, data=people()).ask("SELECT COUNT(*) FROM people", epsilon=0.001)
    assert ledger.charges() == []


def test_what_a_dry_run_foretells_is_what_the_answer_says(pure_ledger: Ledger) -> None:
    sql = "SELECT COUNT(*), COUNT(income), SUM(age), AVG(income), VARIANCE(income) FROM people"
    table = Table(policy(), pure_ledger, data=people(1000))
    answer = table.ask(sql, epsilon=20.0)
    for item, (low, high) in zip(table.dry_run(sql, epsilon=20.0), answer.intervals[0], strict=True):
        assert (high - low) / 2 == pytest.approx(item.half_width, rel=0.05)


ODD_CSV = (
    "person,age,income,city,town,born,smoker\n"
    "1,30,1e1,Delft,x,2000-01-01,true\n"
    "2,abc,1_000,Delft,x,2000-02-31,maybe\n"
    '3, 40,inf,"Ut""recht",x,yesterday,\n'
    "4,9999999999999999999999999,nan,Delft,x,,1\n"
    "5\n"
    "6,50,20,Delft,x,2000-01-01,false,too,many,fields\n"
    "7,60.9,-5,Delft,x,2000-01-01,NO\n"
)


def test_no_row_of_a_csv_stops_a_query(tmp_path: Path, pure_ledger: Ledger) -> None:
    """What is no number or date is NULL; nothing is guessed from the rows, and nothing fails."""
    path = tmp_path / "people.csv"
    path.write_text(ODD_CSV, encoding="utf-8")
    table = Table(policy(str(path)), pure_ledger)
    answer = table.ask(
        "SELECT COUNT(age) a, COUNT(income) i, COUNT(born) b, SUM(age) s FROM people", epsilon=PLENTY
    )
    # Ages 30, 10²⁵ (clipped to 100), 50 if its row is kept, 60.9 floored; incomes 10, 20 if kept, −5 (clipped).
    assert answer.rows[0][:3] in [(4, 3, 3), (3, 2, 2)]
    assert round(answer.rows[0][3], -1) in (240, 190)
    table.ask("SELECT smoker, COUNT(*) FROM people WHERE born < '2001-01-01' GROUP BY smoker", epsilon=PLENTY)


def test_a_file_without_a_declared_column_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "people.csv"
    path.write_text("person,age\n1,2\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="expected a column income"):
        Table(policy(str(path)), ledger).ask("SELECT COUNT(*) FROM people", epsilon=1.0)
    assert ledger.epsilon_spent == 0


def test_parquet_and_csv_give_the_same(tmp_path: Path) -> None:
    data = people()
    data["born"] = data.born.dt.strftime("%Y-%m-%d")
    data.to_csv(tmp_path / "people.csv", index=False)
    data.to_parquet(tmp_path / "people.parquet")
    sql = "SELECT city, COUNT(*), SUM(income), COUNT(DISTINCT person) FROM people WHERE smoker GROUP BY city"
    tables = [
        Table(policy(str(tmp_path / name), column="person"), None) for name in ("people.csv", "people.parquet")
    ]
    one, two = ({row["key0"]: row for row in table.exact_sums(sql, salt="s").sums} for table in tables)
    assert one == two


def test_a_seeded_sampler_is_on_record(ledger: Ledger) -> None:
    table = Table(policy(), ledger, data=people(), sampler=SecretStream(test_seed=1))
    table.ask("SELECT COUNT(*) FROM people", epsilon=0.1)
    assert not ledger.private


PROCESS = """
import sys, json, pandas as pd
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Ledger
from sfumato.query import Table, load_policy
policy = load_policy(sys.argv[1])
table, answered = Table(policy, Ledger.open(policy.ledger, budget=policy.budget)), 0
for _ in range(8):
    try:
        table.ask("SELECT COUNT(*) FROM people", epsilon=0.1)
        answered += 1
    except BudgetExceeded:
        pass
print(answered)
"""


def test_the_budget_holds_across_processes(tmp_path: Path) -> None:
    people(20)[["age"]].to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(
        '[table]\nsource = "people.csv"\n[budget]\nepsilon = 1.0\nledger = "people.db"\n'
        '[columns.age]\ntype = "integer"\nlower = 0\nupper = 100\n'
    )
    command = [sys.executable, "-W", "ignore", "-c", PROCESS, str(tmp_path / "people.toml")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answered = [int(process.communicate(timeout=120)[0]) for process in running]
    assert sum(answered) == 10  # 1.0 / 0.1, whoever asks
    rule = load_policy(tmp_path / "people.toml")
    with Ledger.open(str(rule.ledger)) as ledger:
        assert ledger.epsilon_spent == pytest.approx(1.0)
        assert len(ledger.charges()) == 10


def test_answers_as_json(ledger: Ledger) -> None:
    answer = Table(policy(), ledger, data=people()).ask("SELECT HISTOGRAM(age, 2) FROM people", epsilon=1.0)
    data = json.loads(json.dumps(answer.to_json()))
    assert data["columns"] == ["age", "count"]
    assert [row[0] for row in data["rows"]] == ["[0, 50)", "[50, 100]"]
    assert {"epsilon", "epsilon_spent", "epsilon_left", "intervals"} <= data.keys()


def test_a_query_may_have_several_lines(ledger: Ledger) -> None:
    """The ledger keeps its purposes in one line."""
    Table(policy(), ledger, data=people()).ask("SELECT COUNT(*)\n\tFROM people\n", epsilon=0.5)
    assert ledger.charges()[-1].purpose == "query: SELECT COUNT(*) FROM people"


def test_months_are_counted_under_their_public_keys(pure_ledger: Ledger) -> None:
    columns = {"born": {"type": "date", "lower": date(2000, 1, 1), "upper": date(2000, 3, 31)}}
    budget = {"epsilon": 1e6}
    rule = policy_from_dict({"table": {"name": "t", "source": "t.csv"}, "budget": budget, "columns": columns})
    days = pd.DataFrame({"born": pd.to_datetime(["2000-01-05", "2000-01-31", "2000-03-01"])})
    sql = "SELECT DATE_TRUNC('month', born) AS m, COUNT(*) AS n FROM t GROUP BY m"
    answer = Table(rule, pure_ledger, data=days).ask(sql, epsilon=PLENTY)
    assert answer.rows == (("2000-01-01", 2), ("2000-02-01", 0), ("2000-03-01", 1))
