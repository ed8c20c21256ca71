"""Conditions that no row can meet are refused from the policy alone, and all others are not."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.ledger import Ledger
from sfumato.query import QueryRefused, Table, parse_query, policy_from_dict

POLICY = policy_from_dict(
    {
        "table": {"name": "visits", "source": "visits.csv"},
        "unit": {"column": "person", "rows": 4, "groups": 2},
        "budget": {"epsilon": 10},
        "columns": {
            "days": {"type": "integer", "lower": 0, "upper": 30},
            "free": {"type": "integer"},
            "ward": {"type": "text", "categories": ["heart", "lung"]},
            "name": {"type": "text"},
            "day": {"type": "date", "lower": datetime.date(2024, 1, 1), "upper": datetime.date(2024, 12, 31)},
        },
    }
)
PERSONS = "(SELECT person, COUNT(*) AS n FROM visits GROUP BY person)"
IMPOSSIBLE = {
    f"SELECT COUNT_IF(n >= 5) FROM {PERSONS}": "between 0 and 4; .*LEAST",
    f"SELECT COUNT(*) FROM {PERSONS} WHERE n = 5": "between 0 and 4",
    f"SELECT AVG(n) FROM {PERSONS[:-1]} HAVING COUNT(*) > 4)": "LEAST",
    "SELECT COUNT(*) FROM visits WHERE days > 30": "between 0 and 30",
    "SELECT COUNT(*) FROM visits WHERE 31 <= days": "between 0 and 30",
    "SELECT COUNT(*) FROM visits WHERE days + 5 < 5": "between 5 and 35",
    "SELECT COUNT(*) FROM visits WHERE days BETWEEN 40 AND 50": "between 0 and 30",
    "SELECT COUNT(*) FROM visits WHERE days IN (3, 31)": "asks for 31",
    "SELECT COUNT(*) FILTER (WHERE days < 0) FROM visits": "between 0 and 30",
    "SELECT SUM(CASE WHEN days > 99 THEN 1 ELSE 0 END) FROM visits": "between 0 and 30",
    "SELECT COUNT(*) FROM visits WHERE ward = 'eye'": "one of 'heart', 'lung'",
    "SELECT COUNT(*) FROM visits WHERE ward IN ('heart', 'eye')": "asks for 'eye'",
    "SELECT COUNT(*) FROM visits WHERE LOWER(ward) = 'Heart'": "one of 'heart', 'lung'",
    "SELECT COUNT(*) FROM visits WHERE ward LIKE 'e%'": "one of 'heart', 'lung'",
    "SELECT COUNT(*) FROM visits WHERE day >= '2025-01-01'": "2024-12-31",
    "SELECT COUNT(*) FROM visits WHERE day = '2023-12-31'": "2024-01-01",
    "SELECT COUNT(*) FROM visits WHERE EXTRACT(month FROM day) = 13": "between 1 and 12",
}


@pytest.mark.keeps_out("A budget spent on a condition that no row can meet")
@pytest.mark.parametrize("sql", IMPOSSIBLE)
def test_what_no_row_can_meet_is_refused_and_costs_nothing(sql: str, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.db", budget=POLICY.budget) as ledger:
        table = Table(POLICY, ledger, data=pd.DataFrame())  # nothing of it is read
        with pytest.raises(QueryRefused, match=IMPOSSIBLE[sql]):
            table.ask(sql, epsilon=1.0)
        assert not ledger.charges()


POSSIBLE = [
    "SELECT COUNT(*) FROM visits WHERE days >= 30 OR days <= 0",
    "SELECT COUNT(*) FROM visits WHERE free > 1000000 AND name = 'eye' AND name LIKE 'e%'",
    "SELECT COUNT(*) FROM visits WHERE ward <> 'heart' AND NOT ward IN ('heart', 'lung')",
    "SELECT COUNT(*) FROM visits WHERE ward ILIKE 'HE%' AND UPPER(ward) = 'HEART'",
    "SELECT COUNT(*) FROM visits WHERE day BETWEEN '2023-06-01' AND '2024-02-01'",
    f"SELECT COUNT_IF(n >= 4) FROM {PERSONS}",
    "SELECT COUNT_IF(n >= 9) FROM (SELECT person, LEAST(COUNT(*), 10) AS n FROM visits GROUP BY person)",
]


@pytest.mark.parametrize("sql", POSSIBLE)
def test_what_some_row_can_meet_is_answered(sql: str) -> None:
    assert parse_query(sql, POLICY).aggregates


OPERATORS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
SCALES: dict[str, Callable[[int], int]] = {
    "days": lambda days: days,
    "30 - days": lambda days: 30 - days,
    "days - 15": lambda days: days - 15,
    "days + days": lambda days: 2 * days,
}


@settings(max_examples=60, deadline=None)
@given(
    constant=st.integers(-20, 65), sign=st.sampled_from(list(OPERATORS)), scale=st.sampled_from(list(SCALES))
)
def test_it_is_refused_exactly_where_no_number_of_days_meets_it(constant: int, sign: str, scale: str) -> None:
    values = [SCALES[scale](days) for days in range(31)]
    between = sign == "=" and min(values) <= constant <= max(values)  # an odd number among even ones passes
    met = any(OPERATORS[sign](value, constant) for value in values)
    try:
        parse_query(f"SELECT COUNT(*) FROM visits WHERE {scale} {sign} {constant}", POLICY)
    except QueryRefused:
        assert not met
    else:
        assert met or between
