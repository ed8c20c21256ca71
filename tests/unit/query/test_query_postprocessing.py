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
    """Of a ratio of sums, in at least 45 of 60 worlds: 57 expected, 7 standard errors above."""
    data = visits()
    truth = data.cost.sum() / data.days.sum()
    inside = 0
    for _ in range(60):
        answer = asked(table, "SELECT SUM(cost) / SUM(days) AS daily FROM visits", epsilon=0.5)
        low, high = answer.intervals[0][0]  # type: ignore[misc]
        inside += low <= truth <= high
    assert inside >= 45


def test_it_costs_what_its_aggregates_cost(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.db", budget=POLICY.budget) as ledger:
        Table(POLICY, ledger, data=visits()).ask(
            "SELECT AVG(days) / COUNT(*) + AVG(days) AS x FROM visits HAVING COUNT(*) > 0", epsilon=0.5
        )
        assert ledger.epsilon_spent == pytest.approx(0.5)


def test_dividing_by_nothing_is_no_error(table: Table) -> None:
    sql = "SELECT AVG(cost) / (COUNT(*) - COUNT(*)) AS x, LN(0 - COUNT(*)) AS y FROM visits"
    assert asked(table, sql).rows == ((None, None),)


REFUSED = {
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
    text = " ".join([*query.post.outputs, query.post.order, query.post.having])
    assert "DROP" not in text
    assert "draw" not in text
