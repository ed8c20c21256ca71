"""What every aggregate keeps to: found in the registry, so that a new one is checked by being there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from sfumato.ledger import Ledger
from sfumato.policy import Unit
from sfumato.query import Policy, Table, bounding, parse_query, policy_from_dict
from sfumato.query.aggregates import FUNCTIONS, function_of, is_aggregate, measures_for
from sfumato.query.engines import Engine
from sfumato.query.measures import Counted, Moments
from sfumato.query.plan import touched_unit
from sfumato.query.pricing import Compiled

Load = Callable[[pd.DataFrame], Engine]
Rows = list[dict[str, Any]]


@pytest.fixture
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine picks the same of a person's groups, by the hash that all of them have, and rounds alike."""
    monkeypatch.setattr(bounding, "OWN_HASH", ())
    monkeypatch.setattr(bounding, "_dither", lambda units, salt: ibis.literal(0, "int64"))


EXAMPLES = [example for function in FUNCTIONS for example in function.examples]
PEOPLE = ["p1", "p2", "p3"]


def policy(rows: int = 3, groups: int = 2) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "unit": {"column": "person", "rows": rows, "groups": groups},
            "budget": {"epsilon": 1e6},
            "columns": {
                "x": {"type": "integer", "lower": 0, "upper": 120},
                "y": {"type": "real", "lower": -10.5, "upper": 1e3},
                "b": {"type": "boolean"},
                "k": {"type": "text", "categories": ["a", "b", "c"]},
            },
        }
    )


ROW = st.fixed_dictionaries(
    {
        "person": st.sampled_from(PEOPLE),
        "x": st.one_of(st.none(), st.integers(-5, 130), st.sampled_from([2**63 - 1, -(2**63)])),
        "y": st.one_of(st.none(), st.floats(-50, 2e3), st.sampled_from([math.nan, math.inf, 5e-324, 1e308])),
        "b": st.one_of(st.none(), st.booleans()),
        "k": st.sampled_from(["a", "b", "c", "elsewhere", None]),
    }
)


def frame(rows: Rows) -> pd.DataFrame:
    types = {"person": pa.string(), "x": pa.int64(), "y": pa.float64(), "b": pa.bool_(), "k": pa.string()}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    return pd.DataFrame(
        {name: pd.arrays.ArrowExtensionArray(pa.chunked_array([values])) for name, values in columns.items()}
    )


Plans = dict[tuple[Unit, str], Compiled]


@pytest.fixture
def plans() -> Plans:
    """The SQL of each question, which does not depend on rows: made once for all examples of a test."""
    return {}


def released(
    engine: Engine, rule: Policy, sql: str, plans: Plans | None = None
) -> list[dict[Any, np.ndarray[Any, Any]]]:
    """Each measure's numbers by group (and cell): what noise would be added to."""
    table, plans = Table(rule, None, engine=engine), {} if plans is None else plans
    if (rule.unit, sql) not in plans:
        plans[rule.unit, sql] = table._compile(parse_query(sql, rule), engine, "salt")
    exact = table._fetched(plans[rule.unit, sql])
    measures = measures_for(parse_query(sql, rule), rule)
    linear = [measure for measure in measures if not isinstance(measure, Counted)]
    found = []
    for position, measure in enumerate(linear):
        numbers = {}
        for row in exact.sums:
            sums = {name: np.array([int(value)]) for name, value in row.items() if not name.startswith("key")}
            numbers[row.get("key0")] = measure.parts(position, sums)[0]
        found.append(numbers)
    for _, rows in exact.cells:
        found.append({(row.get("key0"), row["cell"]): np.array([int(row["rows"])]) for row in rows})
    return found


def check_replay(load: Load, rows: Rows, rule: Policy, sql: str, person: str, plans: Plans) -> None:
    """One person leaves: every measure moves by at most its sensitivity, in L1 and in L2."""
    others = [row for row in rows if row["person"] != person]
    everyone, without = (released(load(frame(kept)), rule, sql, plans) for kept in (rows, others))
    plan = parse_query(sql, rule)
    measures = sorted(measures_for(plan, rule), key=lambda item: isinstance(item, Counted))
    for measure, one, two in zip(measures, everyone, without, strict=True):
        nothing = np.zeros_like(next(iter({**one, **two}.values()), np.zeros(1)))
        distances = [np.abs(one.get(key, nothing) - two.get(key, nothing)) for key in {*one, *two}]
        unit = touched_unit(plan, rule)
        assert sum(int(item.sum()) for item in distances) <= measure.sensitivity(unit), measure
        squares = sum(int(value) ** 2 for item in distances for value in item)
        assert squares * measure.moved(unit) <= measure.sensitivity(unit) ** 2, measure


def queries(example: str) -> list[str]:
    return [f"SELECT {example} FROM t", f"SELECT k, {example} FROM t WHERE x > 1 OR b GROUP BY k"]


@pytest.mark.keeps_out("An aggregate whose sensitivity nobody checked")
@pytest.mark.parametrize("example", EXAMPLES)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(ROW, max_size=12),
    person=st.sampled_from(PEOPLE),
    limits=st.sampled_from([(1, 1), (3, 2), (5, 3)]),
)
def test_neighbour_replay(
    duckdb_engine: Load, plans: Plans, example: str, rows: Rows, person: str, limits: tuple[int, int]
) -> None:
    for sql in queries(example):
        check_replay(duckdb_engine, rows, policy(*limits), sql, person, plans)


@pytest.mark.parametrize("example", EXAMPLES)
def test_postgresql_gives_the_same(
    one_hash: None, duckdb_engine: Load, postgres_engine: Load, example: str
) -> None:
    rows = [
        {
            "person": PEOPLE[i % 3],
            "x": [None, 7, 130, -(2**63)][i % 4],
            "y": [math.nan, 3.5, math.inf, None, 0.1][i % 5],
            "b": [True, False, None][i % 3],
            "k": "abc"[i % 3],
        }
        for i in range(20)
    ]
    sql = queries(example)[1]
    one, two = (released(load(frame(rows)), policy(), sql) for load in (duckdb_engine, postgres_engine))
    assert [sorted((str(key), *value) for key, value in item.items()) for item in one] == [
        sorted((str(key), *value) for key, value in item.items()) for item in two
    ]


TRUTHS: dict[str, Callable[[pd.DataFrame], float]] = {
    "COUNT(*)": len,
    "COUNT(x)": lambda t: t.x.count(),
    "COUNT(DISTINCT person)": lambda t: t.person.nunique(),
    "COUNT(DISTINCT x)": lambda t: t.x.nunique(),
    "SUM(x)": lambda t: t.x.sum(),
    "AVG(x)": lambda t: t.x.mean(),
    "AVG(b)": lambda t: t.b.mean(),
    "VARIANCE(x)": lambda t: t.x.var(),
    "STDDEV(y)": lambda t: t.y.std(),
    "MEDIAN(x)": lambda t: t.x.median(),
    "COVAR_POP(x, y)": lambda t: float(np.cov(t.x, t.y, ddof=0)[0, 1]),
    "CORR(x, y)": lambda t: float(np.corrcoef(t.x, t.y)[0, 1]),
    "REGR_SLOPE(y, x)": lambda t: float(np.polyfit(t.x, t.y, 1)[0]),
}


@pytest.mark.parametrize("sql", TRUTHS)
def test_it_is_what_it_says_when_noise_vanishes(sql: str, tmp_path: Path) -> None:
    i = np.arange(600)
    x = i * 37 % 121
    table = pd.DataFrame({"person": i.astype(str), "x": x, "y": 5.0 * x + i % 50, "b": i % 3 == 0, "k": "a"})
    rule = policy(1, 1)
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        answer = Table(rule, ledger, data=table).ask(f"SELECT {sql} AS v FROM t", epsilon=4_000.0)
    truth = TRUTHS[sql](table)
    assert answer.rows[0][0] == pytest.approx(truth, rel=0.01, abs=0.02)
    low, high = answer.intervals[0][0]  # type: ignore[misc]
    assert low <= high


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_says_how_wrong_it_will_be(example: str) -> None:
    found = Table(policy(), None).dry_run(f"SELECT {example} FROM t", epsilon=1.0)
    assert len(found) == 1
    assert 0 < found[0].half_width < math.inf


def test_the_registry_is_whole() -> None:
    names = [name for function in FUNCTIONS for name in function.names]
    nodes = [node for function in FUNCTIONS for node in function.nodes]
    assert len(set(names)) == len(names)
    assert len(set(nodes)) == len(nodes)
    asked = {parse_query(f"SELECT {sql} FROM t", policy()).aggregates[0].function for sql in EXAMPLES}
    assert all(is_aggregate(sqlglot.parse_one(sql, read="duckdb")) for sql in EXAMPLES)
    assert set(names) == asked
    assert exp.Max not in nodes


def test_an_unbounded_measure_is_found_out(duckdb_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: different values of one person are counted without limit."""
    monkeypatch.setattr(bounding, "_within_rows", lambda units, *_, **__: units.mutate(kept=units["rows"]))
    rows = [{"person": "p1", "x": i, "y": 1.0, "b": True, "k": "a"} for i in range(9)]
    with pytest.raises(AssertionError):
        check_replay(duckdb_engine, rows, policy(3, 2), "SELECT COUNT(DISTINCT x) FROM t", "p1", {})


def test_a_distance_spread_over_too_many_numbers_is_found_out(
    duckdb_engine: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: rows are priced for Gaussian noise as if they could not all lie in one group."""
    rows = [{"person": "p1", "x": 7, "y": 1.0, "b": True, "k": "a"}] * 9
    sql = "SELECT k, COUNT(*) FROM t GROUP BY k"
    check_replay(duckdb_engine, rows, policy(3, 2), sql, "p1", {})
    monkeypatch.setattr(Moments, "moved", lambda self, unit: unit.groups)
    with pytest.raises(AssertionError):
        check_replay(duckdb_engine, rows, policy(3, 2), sql, "p1", {})


def test_functions_are_found_by_name() -> None:
    for sql in EXAMPLES:
        (aggregate,) = parse_query(f"SELECT {sql} FROM t", policy()).aggregates
        assert aggregate.function in function_of(aggregate).names
