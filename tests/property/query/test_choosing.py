"""Rows that DuckDB chooses in one pass: no unit counts more than it may, and nobody else's rows matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import ibis
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.policy import Unit
from sfumato.query import Policy, Table, bounding, choosing, parse_query, policy_from_dict
from sfumato.query.aggregates import measures_for
from sfumato.query.engines import Engine
from sfumato.query.plan import public_keys, touched_unit
from sfumato.query.pricing import Compiled

Load = Callable[[pd.DataFrame], Engine]
Rows = list[dict[str, Any]]
SQL = "SELECT k, g, COUNT(x), AVG(x), SUM(y), COVAR_POP(x, y) FROM t GROUP BY k, g"
ROW = st.fixed_dictionaries(
    {
        "person": st.sampled_from(["p1", "p2", "p3"]),
        "x": st.one_of(st.none(), st.integers(-3, 130)),
        "y": st.one_of(st.none(), st.floats(-20, 2e3)),
        "k": st.sampled_from(["a", "b", "é", "elsewhere", None]),
        "g": st.one_of(st.none(), st.integers(3, 8)),
    }
)


def policy(rows: int, groups: int) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "unit": {"column": "person", "rows": rows, "groups": groups},
            "budget": {"epsilon": 1e6},
            "columns": {
                "x": {"type": "integer", "lower": 0, "upper": 120},
                "y": {"type": "real", "lower": -10.5, "upper": 1e3},
                "k": {"type": "text", "categories": ["a", "b", "é"]},
                "g": {"type": "integer", "categories": [4, 5, 7]},
            },
        }
    )


def frame(rows: Rows) -> pd.DataFrame:
    types = {"person": pa.string(), "x": pa.int64(), "y": pa.float64(), "k": pa.string(), "g": pa.int64()}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    return pd.DataFrame(
        {name: pd.arrays.ArrowExtensionArray(pa.chunked_array([values])) for name, values in columns.items()}
    )


Plans = dict[tuple[Unit, bool], Compiled]


@pytest.fixture
def plans() -> Plans:
    """The SQL, which does not depend on rows: made once for all examples of a test."""
    return {}


def found(engine: Engine, rule: Policy, plans: Plans) -> dict[tuple[Any, ...], dict[str, int]]:
    table, how = Table(rule, None, engine=engine), (rule.unit, bool(bounding.OWN_HASH))
    if how not in plans:
        plans[how] = table._compile(parse_query(SQL, rule), engine, "salt")
    rows = table._fetched(plans[how]).sums
    return {(row.pop("key0"), row.pop("key1")): {**row} for row in rows if row["rows"]}


def check_neighbours(load: Load, rows: Rows, rule: Policy, person: str, plans: Plans) -> None:
    others = [row for row in rows if row["person"] != person]
    one, two = (found(load(frame(kept)), rule, plans) for kept in (rows, others))
    names = {name for sums in (*one.values(), *two.values()) for name in sums}
    moved = Counter[str]()
    for group in {*one, *two}:
        for name in names:
            moved[name] += abs(one.get(group, {}).get(name, 0) - two.get(group, {}).get(name, 0))
    plan = parse_query(SQL, rule)
    unit = touched_unit(plan, rule)
    assert moved["rows"] <= unit.rows
    for position, measure in enumerate(measures_for(plan, rule)):
        for name, reach in measure.row_reach(position).items():
            letter = "s" if name.startswith("x") else "q"
            assert moved[f"n{position}"] <= unit.rows
            assert moved.get(f"{letter}{position}", 0) <= max(unit.rows * reach, measure.sensitivity(unit))


def test_these_queries_are_chosen_in_one_pass() -> None:
    rule = policy(3, 2)
    plan = parse_query(SQL, rule)
    assert choosing.applies(measures_for(plan, rule), rule.unit, public_keys(plan, rule))


@pytest.mark.keeps_out(
    "Rows of one person chosen by what other people's rows hold, or one row too many of them"
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(ROW, max_size=25),
    person=st.sampled_from(["p1", "p2", "p3"]),
    limits=st.sampled_from([(1, 1), (3, 2), (4, 4), (6, 1)]),
)
def test_one_unit_moves_no_more_than_its_rows(
    duckdb_engine: Load, plans: Plans, rows: Rows, person: str, limits: tuple[int, int]
) -> None:
    check_neighbours(duckdb_engine, rows, policy(*limits), person, plans)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(ROW, max_size=12))
def test_with_room_for_all_rows_it_is_what_every_engine_gives(
    duckdb_engine: Load, plans: Plans, rows: Rows
) -> None:
    engine, rule = duckdb_engine(frame(rows)), policy(12, 12)
    quick = found(engine, rule, plans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounding, "OWN_HASH", ())
        slow = found(engine, rule, plans)
    assert {group: {**sums, "units": 0} for group, sums in quick.items()} == {
        group: {**sums, "units": 0} for group, sums in slow.items()
    }


def test_a_unit_keeps_to_its_first_groups(duckdb_engine: Load) -> None:
    """Six groups with two rows each: of three rows in two groups, two and one; never in three groups."""
    rows = [{"person": "p1", "x": 1, "y": 1.0, "k": k, "g": g} for k in "ab" for g in (4, 5, 7)] * 2
    counts = [
        sorted(
            int(row["rows"])
            for row in Table(policy(most, groups), None, engine=duckdb_engine(frame(rows)))
            .exact_sums(SQL, salt=salt)
            .sums
        )
        for most, groups in ((3, 2), (6, 2), (6, 6))
        for salt in "abcde"
    ]
    assert counts == [[1, 2]] * 5 + [[2, 2]] * 5 + [[2, 2, 2]] * 5


def test_another_salt_chooses_other_rows(duckdb_engine: Load) -> None:
    rows = [{"person": f"p{i}", "x": x, "y": 1.0, "k": "a", "g": 4} for i in range(40) for x in (0, 100)]
    table = Table(policy(1, 1), None, engine=duckdb_engine(frame(rows)))
    sums = {int(table.exact_sums(SQL, salt=f"salt{i}").sums[0]["s0"]) for i in range(5)}
    assert len(sums) > 1
    # A fair choice takes 0 or 100 of each person; 40 of the same have chance 2·2⁻⁴⁰ a salt.
    span = measures_for(parse_query(SQL, table.policy), table.policy)[0].row_reach(0)["x0"]
    assert all(0 < value < 40 * span * 100 // 120 for value in sums)


@pytest.mark.keeps_out(
    "Rows of one person chosen by what other people's rows hold, or one row too many of them"
)
def test_a_row_too_many_is_noticed(duckdb_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: a unit keeps one row more than it may."""
    least = choosing._least
    monkeypatch.setattr(choosing, "_least", lambda of, most: least(of, ibis.literal(4, "int64")))
    rows = [{"person": "p1", "x": 1, "y": 1.0, "k": "a", "g": 4}] * 9
    with pytest.raises(AssertionError):
        check_neighbours(duckdb_engine, rows, policy(3, 3), "p1", {})


def test_no_group_comes_before_the_others(duckdb_engine: Load) -> None:
    """Two thousand people in three of six groups, one of which counts: each group by a third of them."""
    chosen = [("a", 4), ("a", 5), ("b", 4)]
    rows = [{"person": f"p{i}", "x": 1, "y": 1.0, "k": k, "g": g} for i in range(2000) for k, g in chosen]
    table = Table(policy(1, 1), None, engine=duckdb_engine(frame(rows)))
    counts = {(row["key0"], row["key1"]): int(row["rows"]) for row in table.exact_sums(SQL, salt="s").sums}
    assert sum(counts.values()) == 2000
    # Binomial of 2,000 and 1/3: deviation 21; 6 of them have a chance of 2e-9. XOR gave one group a half.
    assert all(abs(counts[group] - 2000 / 3) < 6 * 21.1 for group in chosen)


SHARES = "SELECT COUNT_IF(x > 0), COUNT(y), COUNT(*) FROM t"


def shares(load: Load) -> list[float]:
    """Of 900 people with five rows each, two of them positive and one missing, three rows count."""
    rows = [
        {"person": f"p{i}", "x": x, "y": None if x == 4 else 1.0, "k": "a", "g": 4}
        for i in range(900)
        for x in (0, 0, 0, 3, 4)
    ]
    table = Table(policy(3, 1), None, engine=load(frame(rows)))
    (sums,) = table.exact_sums(SHARES, salt="s").sums
    measures = measures_for(parse_query(SHARES, table.policy), table.policy)
    return [int(sums[f"n{place}"]) / 900 for place in range(len(measures)) if f"n{place}" in sums]


@pytest.mark.parametrize(
    "engine", ["duckdb_engine", "postgres_engine", pytest.param("spark_engine", marks=pytest.mark.slow)]
)
def test_a_share_of_a_persons_rows_is_not_rounded_down(engine: str, request: pytest.FixtureRequest) -> None:
    """3·2/5 and 3·4/5: rounded by chance, a deviation of at most ½ a person, 1/60 of the mean, 6 of them."""
    found = shares(request.getfixturevalue(engine))
    assert found == pytest.approx([1.2, 2.4], abs=0.1)


def test_shares_that_are_rounded_down_are_noticed(duckdb_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "_dither", lambda units, salt: ibis.literal(0, "int64"))
    assert shares(duckdb_engine) == [1.0, 2.0]
