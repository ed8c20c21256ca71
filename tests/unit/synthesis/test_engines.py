"""Every engine counts the same cells, and keeps as many rows of a person."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from sfumato.policy import policy_from_dict
from sfumato.query.expressions import column_name
from sfumato.query.measures import UNIT
from sfumato.synthesis import EngineMarginals, cell_columns

COLUMNS = {
    "age": {"type": "integer", "lower": -10, "upper": 200},
    "part": {"type": "real", "lower": 0, "upper": 0.3},
    "city": {"type": "text", "categories": ["Delft", "it's"]},
    "ill": {"type": "boolean"},
    "born": {"type": "date", "lower": datetime.date(1900, 1, 1), "upper": datetime.date(2029, 12, 31)},
    "few": {"type": "date", "lower": datetime.date(2024, 2, 28), "upper": datetime.date(2024, 3, 1)},
}


def people() -> pd.DataFrame:
    days = [datetime.date(1900, 1, 1), datetime.date(2029, 12, 31), datetime.date(1960, 5, 5), None]
    leap = [datetime.date(2024, 2, 29), datetime.date(2024, 3, 1), None, datetime.date(2025, 1, 1)]
    return pd.DataFrame(
        {
            "person": ["ann", "ann", "ann", "ben"],
            "age": pd.array([-10, 200, None, 40], dtype="Int64"),
            "part": [0.0, 0.3, 0.1, np.nan],
            "city": ["Delft", "it's", None, "Urk"],
            "ill": pd.array([True, False, None, True], dtype="boolean"),
            "born": pd.array(days, dtype="date32[pyarrow]"),
            "few": pd.array(leap, dtype="date32[pyarrow]"),
        }
    )


@pytest.mark.parametrize("engine", ["duckdb", "postgres", "spark"])
@pytest.mark.parametrize("most", [None, 2])
def test_counts_of_cells(engine, most, request):
    load = request.getfixturevalue(f"{engine}_engine")
    unit = {} if most is None else {"column": "person", "rows": most}
    policy = policy_from_dict(
        {
            "table": {"name": "raw", "source": "t.csv"},
            "unit": unit,
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": COLUMNS,
        }
    )
    opened = load(people())
    table = EngineMarginals(
        opened.declared(policy),
        cell_columns(policy)[0],
        names={name: column_name(name, policy) for name in COLUMNS},
        unit=None if most is None else UNIT,
        rows=most or 1,
        salt="s",
        prepare=opened.prepare,
        fetch=opened.fetch,
    )
    if most is not None:
        assert {table.marginal((name,)).sum() for name in COLUMNS} == {3}  # two of Ann's, one of Ben's
        return
    found = {name: np.nonzero(table.marginal((name,)))[0].tolist() for name in COLUMNS}
    # 211 ages in bins of 4, 47,482 days in bins of 742; the last cell is for what is missing.
    assert found == {
        "age": [0, 12, 52, 53],
        "part": [0, 21, 63, 64],
        "city": [0, 1, 2],
        "ill": [0, 1, 2],
        "born": [0, 29, 63, 64],
        "few": [1, 2, 3],
    }
    assert table.marginal(("city", "ill")).tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 1]]
