"""The order of rows in a file, or in which threads meet them, decides nothing: others change it."""

import numpy as np
import pandas as pd
import pytest

from sfumato.query import Table, policy_from_dict

POLICY = policy_from_dict(
    {
        "table": {"name": "visits", "source": "visits.csv"},
        "columns": {
            "ward": {"type": "text", "categories": ["heart", "lung"]},
            "day": {"type": "date"},
            "cost": {"type": "real", "lower": 0, "upper": 1000},
            "gain": {"type": "real"},
            "steps": {"type": "integer"},
        },
        "unit": {"column": "person", "rows": 3, "groups": 2},
        "budget": {"epsilon": 1, "delta": 1e-6},
    }
)
LARGE = 2**52


def visits(people: int = 40) -> pd.DataFrame:
    """Every person has the same six visits on one day; in doubles their sums depend on the order."""
    one = pd.DataFrame(
        {
            "ward": ["heart", "lung"] * 3,
            "day": pd.Timestamp("2024-05-01"),
            "cost": [999.9999999999999, 0.1, 0.2, 0.3, 500.00000000000006, 1e-9],
            "gain": [float(LARGE), 0.25, 0.25, -float(LARGE), 0.25, 0.25],
            "steps": [LARGE, LARGE, 1, -LARGE, 1, -LARGE],
        }
    )
    return pd.concat([one.assign(person=number) for number in range(people)])


VALUES = {
    "a": "ARG_MIN(cost, day)",
    "b": "GREATEST(LEAST(SUM(gain), 2), 0)",
    "c": "GREATEST(LEAST(SUM(steps), 5), 0)",
    "d": "SUM(cost)",
    "e": "GREATEST(LEAST(AVG(gain), 1), 0)",
}
NUMBERS = f"""
    SELECT {", ".join(f"SUM({name})" for name in VALUES)}
    FROM (SELECT person, {", ".join(f"{value} AS {name}" for name, value in VALUES.items())}
          FROM visits GROUP BY person)
"""
WARDS = """
    SELECT first, last, COUNT(*)
    FROM (SELECT person, ARG_MIN(ward, day) AS first, ARG_MAX(ward, day) AS last FROM visits GROUP BY person)
    GROUP BY first, last
"""


@pytest.mark.keeps_out(
    "Sums and ties of one person that depend on the order in which threads meet the rows, and so on "
    "who else is there"
)
@pytest.mark.parametrize("sql", [NUMBERS, WARDS])
def test_the_order_of_rows_decides_nothing(sql):
    chance, rows = np.random.default_rng(3), visits()
    tables = [Table(POLICY, None, data=rows.iloc[chance.permutation(len(rows))]) for _ in range(3)]
    found = [table.exact_sums(sql, salt="s").sums for table in tables]
    ordered = [sorted(tuple(row.items()) for row in sums) for sums in found]
    assert ordered == [ordered[0]] * 3


def test_a_sum_is_what_exact_arithmetic_says():
    sql = (
        "SELECT SUM(v) AS a, SUM(w) AS b FROM (SELECT person, GREATEST(LEAST(SUM(gain), 2), 0) AS v, "
        "GREATEST(LEAST(SUM(steps), 5), 0) AS w FROM visits GROUP BY person)"
    )
    (row,) = Table(POLICY, None, data=visits(people=8)).exact_sums(sql, salt="s").sums
    assert (row["s0"] * 2.0**-28, row["s1"] * 2.0**-27) == (8 * 1.0, 8 * 2.0)
