"""Cells come from the policy alone."""

from __future__ import annotations

import datetime

import pytest

from sfumato.errors import InvalidInput
from sfumato.policy import Policy, policy_from_dict
from sfumato.synthesis import CellColumn, cell_columns
from sfumato.synthesis.cells import MOST_CELLS


def policy(**columns: dict[str, object]) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": columns,
        }
    )


def one(**spec: object) -> CellColumn:
    return cell_columns(policy(c=spec))[0][0]


def test_few_whole_numbers_keep_their_values():
    column = one(type="integer", lower=-1, upper=3)
    assert column.values == (-1, 0, 1, 2, 3)
    assert (column.missing, column.size) == (5, 6)


@pytest.mark.parametrize("upper", [64, 65, 120, 1000, 10**9, 2**52])
def test_many_whole_numbers_are_cut_into_bins_that_cover_the_bounds(upper):
    column = one(type="integer", lower=0, upper=upper)
    assert column.missing <= MOST_CELLS
    assert (column.missing - 1) * column.width <= upper < column.missing * column.width


def test_reals_have_bins_of_one_width():
    column = one(type="real", lower=-2, upper=6)
    assert column.missing == MOST_CELLS
    assert column.label(0) == "-2.0 to -1.875"


def test_dates_few_and_many():
    few = one(type="date", lower=datetime.date(2024, 2, 28), upper=datetime.date(2024, 3, 1))
    assert few.values == tuple(datetime.date(2024, *day) for day in ((2, 28), (2, 29), (3, 1)))
    many = one(type="date", lower=datetime.date(1900, 1, 1), upper=datetime.date(2029, 12, 31))
    assert many.missing <= MOST_CELLS
    assert many.label(0).startswith("1900-01-01")


def test_what_has_neither_bounds_nor_categories_is_refused_or_left_out_on_purpose():
    rules = policy(a={"type": "boolean"}, note={"type": "text"}, born={"type": "date"}, x={"type": "real"})
    with pytest.raises(InvalidInput, match="--leave-out note --leave-out born --leave-out x"):
        cell_columns(rules)
    columns, left_out = cell_columns(rules, leave_out=["note", "born", "X"])
    assert [column.name for column in columns] == ["a"]
    assert left_out == ("note", "born", "x")


def test_no_column_with_cells():
    with pytest.raises(InvalidInput, match="at least one column"):
        cell_columns(policy(note={"type": "text"}), leave_out=["note"])


def test_a_column_named_that_has_no_cells():
    with pytest.raises(InvalidInput, match="note"):
        cell_columns(policy(a={"type": "boolean"}, note={"type": "text"}), ["note", "a"])


def test_five_hundred_columns():
    many = policy(**{f"c{place}": {"type": "boolean"} for place in range(500)})
    with pytest.raises(InvalidInput, match="--columns"):
        cell_columns(many)
    assert len(cell_columns(many, ["c3", "C4"])[0]) == 2


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "text", "categories": ["x", "y"]},
        {"type": "boolean"},
        {"type": "date", "categories": ["2024-01-01"]},
        {"type": "real", "lower": 0, "upper": 1},
        {"type": "integer", "lower": 0, "upper": 1000},
    ],
)
def test_a_column_survives_json(spec):
    column = one(**spec)
    assert CellColumn.from_json(column.to_json()) == column
