"""Cells come from the policy alone."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidInput
from sfumato.policy import Policy, policy_from_dict
from sfumato.randomness import SecretStream, public_generator
from sfumato.synthesis import CellColumn, cell_columns
from sfumato.synthesis.cells import MOST_CELLS, coarser, merge_table, merged, to_table


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


CITY = CellColumn(name="city", type="text", values=("a", "b", "c", "d"))
INCOME = CellColumn(name="income", type="real", lower=0, upper=8, width=1)


def test_rare_values_share_a_bucket_and_keep_their_proportions():
    bucket = merged(CITY, np.array([500.0, 20.0, 10.0, 400.0, 0.0]), sigma=10)
    assert bucket.place[1] == bucket.place[2] != bucket.place[0] != bucket.place[3]
    shares = bucket.shares[bucket.place[1]]
    np.testing.assert_allclose(shares[[1, 2]], [2 / 3, 1 / 3], atol=1e-6)


def test_missing_values_are_drawn_only_where_they_are_certain():
    few = merged(CITY, np.array([500.0, 500, 500, 500, 39]), sigma=10)
    assert (few.shares[:, CITY.missing] == 0).all()
    many = merged(CITY, np.array([500.0, 500, 500, 500, 41]), sigma=10)
    assert many.shares[many.place[CITY.missing], CITY.missing] == 1


def test_neighbouring_bins_are_joined():
    bucket = merged(INCOME, np.array([5.0, 5, 100, 100, 0, 0, 0, 5, 0]), sigma=10)
    assert bucket.place[:3].tolist() == [0, 0, 0]
    assert (np.diff(bucket.place[:8]) >= 0).all()


@given(
    noisy=st.lists(st.floats(-100, 1000), min_size=9, max_size=9),
    column=st.sampled_from([INCOME, CellColumn(name="c", type="text", values=tuple("abcdefgh"))]),
)
def test_every_cell_has_one_bucket_and_every_bucket_a_distribution(noisy, column):
    bucket = merged(column, np.array(noisy), sigma=10)
    assert sorted(set(bucket.place.tolist())) == list(range(bucket.size))
    np.testing.assert_allclose(bucket.shares.sum(axis=1), 1)
    outside = bucket.place[None, :] != np.arange(bucket.size)[:, None]
    assert (bucket.shares[outside] == 0).all()


@given(
    noisy=st.lists(st.floats(-100, 1000), min_size=9, max_size=9),
    column=st.sampled_from([INCOME, CellColumn(name="c", type="text", values=tuple("abcdefgh"))]),
    most=st.integers(2, 7),
)
def test_a_view_joins_whole_buckets_and_keeps_missing_numbers_apart(noisy, column, most):
    fine = merged(column, np.array(noisy), sigma=10)
    view = coarser(column, fine, fine.counts(np.array(noisy)), most)
    assert sorted(set(view.place.tolist())) == list(range(view.size))
    assert view.size <= most
    np.testing.assert_allclose(view.shares.sum(axis=1), 1)
    for bucket in range(fine.size):
        assert len(set(view.place[fine.place == bucket])) == 1
    if column is INCOME:
        assert (np.diff(view.place[:8]) >= 0).all()
        if fine.place[8] not in fine.place[:8]:
            assert view.place[8] not in view.place[:8]


def test_in_two_buckets_a_number_is_there_or_missing():
    even = np.array([100.0] * 9)
    fine = merged(INCOME, even, sigma=10)
    assert coarser(INCOME, fine, even, 2).place.tolist() == [0] * 8 + [1]
    assert coarser(INCOME, fine, even, 5).place.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_merging_a_table_adds_up_its_cells():
    counts = public_generator(1).integers(0, 9, (5, 9))
    first = merged(CITY, np.array([500.0, 2, 1, 400, 0]), sigma=10)
    second = merged(INCOME, np.array([50.0] * 9), sigma=10)
    found = merge_table(counts, [first, second])
    slow = np.zeros_like(found)
    for (i, j), count in np.ndenumerate(counts):
        slow[first.place[i], second.place[j]] += count
    assert (found == slow).all()


@pytest.mark.parametrize(
    ("lower", "upper", "decimals"),
    [(0, 200_000, 0), (0, 100, 2), (0, 1, 4), (-3, 3, 4), (36.5, 42.1, 4), (2**-40, 2**-20, 10)],
)
def test_real_numbers_are_as_long_as_their_bins_make_sense_of(lower, upper, decimals):
    column = CellColumn(name="x", type="real", lower=lower, upper=upper, width=(upper - lower) / 64)
    cells = np.arange(64).repeat(50)
    found = to_table([column], {"x": cells}, SecretStream())["x"].to_numpy()
    assert all(round(value, decimals) == value for value in found.tolist())
    first = lower + cells * column.width
    assert ((first <= found) & (found < first + column.width * (1 + 1e-12))).all()
    assert len(np.unique(found)) > 1000  # hundred numbers or more in every bin


def test_numbers_that_no_grid_fits_are_drawn_all_the_same():
    wide = CellColumn(name="x", type="real", lower=-(2.0**52), upper=2.0**52, width=2.0**53 / 64)
    found = to_table([wide], {"x": np.array([0, 63, 64])}, SecretStream())["x"].to_pylist()
    assert -(2.0**52) <= found[0] < -(2.0**51) < 2.0**51 < found[1] <= 2.0**52
    assert found[2] is None


def test_a_missing_value_stays_missing_and_changes_no_other():
    column = CellColumn(name="x", type="real", lower=0, upper=640, width=10)
    found = to_table([column], {"x": np.array([64, 3])}, SecretStream())["x"].to_pylist()
    assert found[0] is None
    assert round(found[1], 1) == found[1]
