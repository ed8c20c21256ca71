"""Bounds that are found privately, and what fewer rows of a person would do: what each says and costs."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Ledger
from sfumato.query import Policy, QueryRefused, Table, bounding, policy_from_dict
from sfumato.query.engines import Engine
from sfumato.query.magnitudes import WIDEST, Magnitudes, bounds_from, magnitudes
from sfumato.query.noise import WholeLaplace
from sfumato.query.plan import Query
from sfumato.randomness import SecretStream

Load = Callable[[pd.DataFrame], Engine]


def policy(*, rows: int = 2, groups: int = 2, columns: dict[str, Any] | None = None, **table: Any) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv", **table},
            "unit": {"column": "person", "rows": rows, "groups": groups},
            "budget": {"epsilon": 3.0, "delta": 1e-6},
            "columns": columns
            or {
                "income": {"type": "real"},
                "children": {"type": "integer"},
                "city": {"type": "text", "categories": ["a", "b", "c"]},
                "age": {"type": "integer", "lower": 0, "upper": 100},
            },
        }
    )


def people(count: int = 3000) -> pd.DataFrame:
    i = np.arange(count)
    return pd.DataFrame(
        {
            "person": i.astype(str),
            "income": np.where(i == 0, 1e15, -300.0 + i * 7 % 900),  # one value far out: one person's
            "children": i % 6,
            "city": "a",
            "age": i % 101,
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    rule = policy()
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        # Seeded: once in a thousand tables an empty cell shows.
        yield Table(rule, ledger, data=people(), sampler=SecretStream(test_seed=1))


def test_bounds_hold_nearly_all_and_are_nobodys(table: Table) -> None:
    """-300 to 599 in powers of two; the one value of 1e15 does not show."""
    found = table.approx_bounds("income", epsilon=1.0)
    assert (found.lower, found.upper, found.found) == (-512.0, 1024.0, True)
    assert found.epsilon_spent == pytest.approx(1.0, rel=1e-3)
    assert table.approx_bounds("CHILDREN", epsilon=1.0).upper == 8
    assert table.ledger is not None
    assert "bounds of income" in table.ledger.charges()[0].purpose


def test_an_end_near_zero_becomes_zero() -> None:
    """Rows between 8 and 1,000 only: 0 to 1,024 costs no more noise, and holds what is hidden below 8."""
    measure = magnitudes("income", policy())
    noise = WholeLaplace.calibrated(sensitivity=2, epsilon=1.0)
    counts = np.array([1000 * (8 <= edge < 1024) for edge in measure.edges[:-1]])
    assert bounds_from(measure, counts, noise) == (0.0, 1024.0, True)
    assert bounds_from(measure, counts[::-1], noise) == (-1024.0, 0.0, True)
    assert (
        bounds_from(measure, np.array([1000 * (edge == 512) for edge in measure.edges[:-1]]), noise)[0] == 512
    )


@pytest.mark.keeps_out("Bounds read off the data for nothing, or an error that says that there were none")
def test_what_noise_hides_is_no_error_but_the_widest_bounds(table: Table) -> None:
    found = table.approx_bounds("income", epsilon=1e-4)
    assert (found.lower, found.upper, found.found) == (-WIDEST, WIDEST, False)
    assert found.epsilon_spent > 0


def test_an_empty_table_looks_like_a_small_one(tmp_path: Path) -> None:
    rule = policy()
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        nobody = Table(rule, ledger, data=people().head(0), sampler=SecretStream(test_seed=1))
        found = nobody.approx_bounds("income", epsilon=1e-3)
    assert not found.found


@pytest.mark.keeps_out("Bounds read off the data for nothing, or an error that says that there were none")
def test_bounds_are_charged_first_and_refused_beyond_the_budget(table: Table) -> None:
    with pytest.raises(BudgetExceeded):
        table.approx_bounds("income", epsilon=4.0)


@pytest.mark.parametrize("name", ["city", "person", "nowhere"])
def test_only_numbers_have_bounds(table: Table, name: str) -> None:
    with pytest.raises(QueryRefused, match="income"):
        table.approx_bounds(name, epsilon=0.1)
    assert table.ledger is not None
    assert table.ledger.epsilon_spent == 0


@pytest.mark.parametrize("epsilon", [1.0, 1e-4])
def test_what_is_released_can_be_declared(table: Table, epsilon: float) -> None:
    for name in ("income", "children"):
        found = table.approx_bounds(name, epsilon=epsilon)
        declared = tomllib.loads(found.to_toml())["columns"]
        bounds = policy(columns=declared).columns[name].bounds
        assert bounds == (found.lower, found.upper)


@pytest.mark.parametrize("smallest", [-20, 0])
def test_cells_are_found_by_halving(duckdb_engine: Load, smallest: int) -> None:
    """Each edge belongs to the cell to its right, and what lies between goes to the left one."""
    edges = Magnitudes(None, smallest).edges  # type: ignore[arg-type]
    assert list(edges) == sorted(edges)
    columns = {"income": {"type": "real"}} if smallest else {"income": {"type": "integer"}}
    rule = policy(columns=columns)
    measure = magnitudes("income", rule)
    between = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    values = [*edges[1:-1], *(between if smallest else [])]
    wanted = [*range(1, measure.cells), *(range(measure.cells) if smallest else [])]
    data = pd.DataFrame({"person": [str(i) for i in range(len(values))], "income": values})
    declared = duckdb_engine(data).declared(rule)
    found = declared.select("unit", cell=measure.cell(declared, rule)).to_pandas()
    assert [int(found.cell[found.unit == str(i)].iloc[0]) for i in range(len(values))] == wanted


def test_an_empty_cell_hardly_ever_shows() -> None:
    """No rows at all: 2,000 tables, of which one in a thousand may show a cell; 16 do once in 10⁹ runs."""
    measure = magnitudes("children", policy())
    noise = WholeLaplace.calibrated(sensitivity=2, epsilon=0.5)
    worlds = 2000
    noisy = noise.release(np.zeros((worlds, measure.cells), dtype=np.int64), SecretStream())
    shown = sum(bounds_from(measure, row, noise)[2] for row in noisy)
    assert shown <= 16


ROW = st.fixed_dictionaries(
    {
        "person": st.sampled_from(["p1", "p2"]),
        "income": st.one_of(
            st.none(), st.floats(-1e3, 1e3), st.sampled_from([math.nan, math.inf, -math.inf, 1e300, 5e-324])
        ),
    }
)


def counts(engine: Engine, rule: Policy) -> dict[int, int]:
    measure = magnitudes("income", rule)
    found = bounding.Bounding(Query(outputs=()), (measure,), rule, None, "salt").cell_counts(
        engine.declared(rule), measure
    )
    return {int(row["cell"]): int(row["rows"]) for row in engine.fetch(engine.prepare(found))}


def check_neighbours(load: Load, rows: list[dict[str, Any]], most: int) -> None:
    """A person leaves: the histogram moves by no more than the rows that count."""
    rule = policy(rows=most, columns={"income": {"type": "real"}})
    data = pd.DataFrame(rows, columns=["person", "income"]).astype({"person": "string", "income": "float64"})
    everyone = counts(load(data), rule)
    others = counts(load(data[data.person != "p1"]), rule)
    moved = sum(abs(everyone.get(cell, 0) - others.get(cell, 0)) for cell in {*everyone, *others})
    assert moved <= magnitudes("income", rule).sensitivity(rule.unit) == most


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(ROW, max_size=12), most=st.integers(1, 3))
def test_one_unit_moves_the_cells_by_its_rows(
    duckdb_engine: Load, rows: list[dict[str, Any]], most: int
) -> None:
    check_neighbours(duckdb_engine, rows, most)


def test_cells_without_a_limit_are_noticed(duckdb_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: a person's rows are counted without limit."""
    monkeypatch.setattr(bounding, "_within_rows", lambda units, *_, **__: units.mutate(kept=units["rows"]))
    with pytest.raises(AssertionError):
        check_neighbours(duckdb_engine, [{"person": "p1", "income": 2.0**i} for i in range(9)], 2)


def test_tries_cost_nothing_and_read_nothing() -> None:
    tried = Table(policy(rows=10, groups=3), None).tries(
        "SELECT city, COUNT(*), AVG(age) FROM t GROUP BY city", epsilon=0.5
    )
    assert [item.best for item in tried].count(True) == 1
    assert (tried[-1].rows, tried[-1].groups, tried[-1].left_out) == (10, 3, 0.0)
    assert {(item.rows, item.groups) for item in tried} >= {(1, 1), (5, 2), (10, 1)}


def test_noise_against_rows_left_out() -> None:
    """Little data: noise decides, and one row is best. Much data: what is left out decides."""
    sql = "SELECT COUNT(*) FROM t"
    few, much = (
        next(
            item for item in Table(policy(rows=10, public_size=size), None).tries(sql, epsilon=0.1) if item.best
        )
        for size in (20, 10**6)
    )
    assert (few.rows, much.rows) == (1, 10)


def test_what_is_tried_is_what_a_policy_that_says_so_gives() -> None:
    rule = policy(rows=10, groups=3)
    sql = "SELECT SUM(age) FROM t"
    (one, *_) = Table(rule, None).tries(sql, epsilon=0.5)
    expected = Table(policy(rows=1, groups=1), None).dry_run(sql, epsilon=0.5)
    assert (one.rows, one.errors[0].half_width) == (1, expected[0].half_width)
    assert one.left_out == pytest.approx(0.9)


def test_one_row_a_person_leaves_nothing_to_try() -> None:
    rule = policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1},
            "columns": {"age": {"type": "integer", "lower": 0, "upper": 9}},
        }
    )
    with pytest.raises(InvalidInput, match=r"unit\.column"):
        Table(rule, None).tries("SELECT COUNT(*) FROM t", epsilon=1.0)
