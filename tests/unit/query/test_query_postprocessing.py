"""What is computed from an answer: free, run on noisy values alone, with intervals by simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sfumato.ledger import Ledger
from sfumato.query import Answer, Policy, QueryRefused, Table, parse_query, policy_from_dict

POLICY = policy_from_dict(
    {
        "table": {"name": "visits", "source": "visits.csv"},
        "budget": {"epsilon": 1e6},
        "columns": {
            "days": {"type": "integer", "lower": 0, "upper": 30},
            "cost": {"type": "real", "lower": 0, "upper": 1000},
            "ward": {"type": "text", "categories": ["heart", "lung", "eye"]},
            "urgent": {"type": "boolean"},
        },
    }
)
PLENTY = 2000.0


def visits() -> pd.DataFrame:
    i = np.arange(900)
    ward = np.array(["heart", "lung", "eye"])[(i % 6) // 2 % 3 * (i % 5 > 0)]
    return pd.DataFrame({"days": i % 30, "cost": i * 1.0, "ward": ward, "urgent": i % 4 == 0})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(POLICY, Ledger.open(tmp_path / "l.db", budget=POLICY.budget), data=visits())


def asked(table: Table, sql: str, epsilon: float = PLENTY) -> Answer:
    return table.ask(sql, epsilon=epsilon)


def test_ratios_and_shares(table: Table) -> None:
    sql = (
        "SELECT ward, SUM(cost) / SUM(days) AS daily, 100 * COUNT(*) / SUM(COUNT(*)) OVER () AS share, "
        "ROUND(AVG(days), 1) AS days FROM visits GROUP BY ward ORDER BY share DESC"
    )
    answer, data = asked(table, sql), visits()
    shares = [row[2] for row in answer.rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100)
    for (ward, daily, share, days), intervals in zip(answer.rows, answer.intervals, strict=True):
        group = data[data.ward == ward]
        assert daily == pytest.approx(group.cost.sum() / group.days.sum(), rel=0.01)
        assert share == pytest.approx(100 * len(group) / len(data), abs=0.5)
        assert days == pytest.approx(group.days.mean(), abs=0.11)
        assert intervals[0] is None
        assert intervals[1][0] <= daily <= intervals[1][1]  # type: ignore[index]


def test_groups_are_chosen_by_noisy_values(table: Table) -> None:
    answer = asked(
        table, "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward HAVING n > 200 AND AVG(days) < 31"
    )
    counts = visits().ward.value_counts()
    assert {row[0] for row in answer.rows} == set(counts[counts > 200].index)
    first = asked(
        table,
        "SELECT ward, COUNT(*) AS n, RANK() OVER (ORDER BY COUNT(*) DESC) AS place FROM visits GROUP BY ward "
        "QUALIFY place = 1",
    )
    assert first.rows == ((counts.index[0], int(counts.iloc[0]), 1),)


def test_an_aggregate_keeps_its_own_interval(table: Table) -> None:
    """Beside a computed column, COUNT(*) is what it would be alone."""
    answer = asked(table, "SELECT COUNT(*) AS n, COUNT(*) / 2 AS half FROM visits", epsilon=1.0)
    (n, half), (own, simulated) = answer.rows[0], answer.intervals[0]
    assert isinstance(n, int)
    assert half == n / 2
    assert own == (n - 3, n + 3)  # ln 20 = 2.996
    # The same noise, halved: ends of 200 draws, the true ones being ±1.5.
    assert simulated[0] - half == pytest.approx(-1.5, abs=1)  # type: ignore[index]
    assert simulated[1] - half == pytest.approx(1.5, abs=1)  # type: ignore[index]


def test_simulated_intervals_hold_the_truth(table: Table) -> None:
    """Of a ratio of sums, in at least 42 of 60 worlds: 57 expected; fewer once in 10⁹ runs."""
    data = visits()
    truth = data.cost.sum() / data.days.sum()
    inside = 0
    for _ in range(60):
        answer = asked(table, "SELECT SUM(cost) / SUM(days) AS daily FROM visits", epsilon=0.5)
        low, high = answer.intervals[0][0]  # type: ignore[misc]
        inside += low <= truth <= high
    assert inside >= 42


def test_it_costs_what_its_aggregates_cost(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.db", budget=POLICY.budget) as ledger:
        Table(POLICY, ledger, data=visits()).ask(
            "SELECT AVG(days) / COUNT(*) + AVG(days) AS x FROM visits HAVING COUNT(*) > 0", epsilon=0.5
        )
        assert ledger.epsilon_spent == pytest.approx(0.5)


def test_dividing_by_nothing_is_no_error(table: Table) -> None:
    sql = "SELECT AVG(cost) / (COUNT(*) - COUNT(*)) AS x, LN(0 - COUNT(*)) AS y FROM visits"
    assert asked(table, sql).rows == ((None, None),)


BY_WARD = "SELECT ward, COUNT(*) AS n, AVG(days) AS days FROM visits GROUP BY ward"


def test_a_select_around_an_answer(table: Table) -> None:
    counts = visits().ward.value_counts()
    sql = (
        f"WITH x AS ({BY_WARD}) SELECT ward, n, 100 * x.n / SUM(n) OVER () AS share FROM x "
        "WHERE n > 200 AND x.ward <> 'none' ORDER BY n DESC"
    )
    answer = asked(table, sql)
    large = counts[counts > 200]
    assert [row[0] for row in answer.rows] == list(large.index)
    # WHERE comes before the window: shares of what is left.
    assert [row[2] for row in answer.rows] == pytest.approx(list(100 * large / large.sum()), abs=0.5)
    assert answer.intervals[0][0] is None
    low, high = answer.intervals[0][1]  # type: ignore[misc]
    assert (low, high) == (answer.rows[0][1] - high + answer.rows[0][1], high)  # its own, about its value


def test_the_rows_of_an_answer_add_up(table: Table) -> None:
    counts = visits().ward.value_counts()
    sql = f"SELECT COUNT(*), MAX(n), SUM(n) / 2 AS half, AVG(n) FROM ({BY_WARD}) AS x WHERE n > 200"
    large = counts[counts > 200]
    ((groups, most, half, mean),) = asked(table, sql).rows
    assert (groups, most, half) == (len(large), large.max(), pytest.approx(large.sum() / 2, abs=1))
    assert mean == pytest.approx(large.mean(), abs=1)
    nobody = asked(table, f"SELECT COUNT(*), SUM(n) FROM ({BY_WARD}) WHERE n < -1000")
    assert nobody.rows == ((0, None),)


def test_answers_in_answers(table: Table) -> None:
    counts = visits().ward.value_counts()
    sql = (
        f"WITH a AS ({BY_WARD} ORDER BY n DESC LIMIT 2), b AS (SELECT *, RANK() OVER (ORDER BY n) AS r FROM a) "
        "SELECT ward, r FROM b WHERE r = 1"
    )
    assert asked(table, sql).rows == ((counts.index[1], 1),)
    second = f"SELECT ward FROM (SELECT ward, n FROM ({BY_WARD}) ORDER BY n DESC LIMIT 1 OFFSET 1)"
    assert asked(table, second).rows == ((counts.index[1],),)


def test_a_select_around_an_answer_is_free(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.db", budget=POLICY.budget) as ledger:
        Table(POLICY, ledger, data=visits()).ask(f"SELECT MAX(n) - MIN(n) AS d FROM ({BY_WARD})", epsilon=0.5)
        assert ledger.epsilon_spent == pytest.approx(0.5)


REFUSED = {
    f"SELECT ward, COUNT(*) FROM ({BY_WARD}) GROUP BY ward": "not grouped again",
    f"SELECT COUNT(*) FROM ({BY_WARD}) x JOIN visits v ON x.ward = v.ward": "not joined",
    f"SELECT cost FROM ({BY_WARD})": "no column of the answer",
    f"SELECT y.n FROM ({BY_WARD}) x": "no column of the answer",
    f"SELECT n, MAX(n) FROM ({BY_WARD})": "cannot be computed",
    f"SELECT DISTINCT n FROM ({BY_WARD})": "DISTINCT",
    f"SELECT read_csv('/etc/passwd') FROM ({BY_WARD})": "no arithmetic",
    f"SELECT STRING_AGG(ward, ',') FROM ({BY_WARD})": "no arithmetic",
    f"SELECT n FROM ({BY_WARD}) WHERE n > (SELECT AVG(n) FROM x)": "sub-queries",
    f"WITH RECURSIVE x AS ({BY_WARD}) SELECT n FROM x": "RECURSIVE",
    f"WITH x AS ({BY_WARD}), y AS (SELECT n FROM x) SELECT COUNT(*) FROM visits": "no FROM reads",
    f"WITH x AS ({BY_WARD}) SELECT COUNT(*) FROM visits JOIN x ON TRUE": "",
    "SELECT n FROM (SELECT days AS n FROM visits)": "one row of each person",
    "SELECT COUNT(*) + days FROM visits": "single rows",
    "SELECT COUNT(*) / MAX(days) FROM visits": "one person's value",
    "SELECT ward || 'x', COUNT(*) FROM visits GROUP BY ward": "not answered",
    "SELECT COUNT(*) FROM visits HAVING read_csv('/etc/passwd') > 1": "no arithmetic",
    "SELECT COUNT(*) FROM visits HAVING (SELECT 1) > 0": "sub-queries",
    "SELECT ward, COUNT(*) + ward AS x FROM visits GROUP BY ward": "cannot be computed",
    "SELECT SUM(days) OVER (PARTITION BY ward) FROM visits": "single rows",
    "SELECT ARRAY_AGG(COUNT(*)) OVER () FROM visits": "no such window",
    "SELECT COUNT(*) AS n FROM visits ORDER BY days + 1": "single rows",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_reads_rows_or_the_machine_is_refused_before_the_charge(sql: str) -> None:
    with pytest.raises(QueryRefused, match=REFUSED[sql]):
        parse_query(sql, POLICY)


def test_no_name_of_the_user_reaches_the_sandbox() -> None:
    rule: Policy = POLICY
    sql = (
        'SELECT COUNT(*) + 1 AS "answer; DROP TABLE x", ward AS draw FROM visits GROUP BY ward ORDER BY "draw"'
    )
    query = parse_query(sql, rule)
    assert query.post is not None
    text = " ".join([*query.post.outputs, *(node for node, _ in query.post.order), query.post.having])
    assert "DROP" not in text
    assert "draw" not in text
